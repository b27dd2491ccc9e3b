"""An update of many sizes, contexts and micro-batches, beside nanoGPT's, on one card.

    python -m bench.grid --nanogpt PATH [--sides nanogpt,glass,fp8] [--only 124M] [--out FILE]
    python -m bench.grid --page bench/README.md --out FILE       # the table of what was measured

nanoGPT's side is its model.py, compiled, in the loop of its train.py: bfloat16, fused AdamW, clipping, the
next batch read while the card computes. Ours is what `glass train` sets up, with its own choices. Both train
the same model on the same random tokens. Every point is a process of its own; they start side by side, and
are timed one at a time. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bench.glass import set_up_run, write_random_tokens
from bench.peers import load_nanogpt_model
from glassgpt.config import TrainConfig

SIZES = {"10M": (6, 6, 384), "124M": (12, 12, 768), "350M": (24, 16, 1024), "774M": (36, 20, 1280),
         "1.5B": (48, 25, 1600)}  # fmt: skip
# Name, context, micro-batch; large and small ones alternate: those that start together have to fit.
POINTS = (
    ("1.5B", 1024, 4), ("10M", 256, 64), ("124M", 1024, 64), ("774M", 1024, 8), ("124M", 1024, 1),
    ("350M", 1024, 16), ("10M", 256, 8), ("124M", 1024, 4), ("1.5B", 1024, 1), ("350M", 1024, 1),
    ("124M", 1024, 16), ("350M", 1024, 4), ("124M", 256, 64), ("774M", 1024, 1), ("124M", 4096, 4),
    ("350M", 4096, 2), ("10M", 1024, 16),
)  # fmt: skip
_LOCK = Path(tempfile.gettempdir()) / "glassgpt-bench-grid.lock"
_SECONDS, _FEWEST_UPDATES, _MOST_UPDATES = 1.2, 10, 400
_TABLE = "<!-- grid -->", "<!-- end of grid -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.grid", description=__doc__)
    parser.add_argument("--nanogpt", type=Path, help="its folder")
    parser.add_argument("--sides", default="nanogpt,glass,fp8")
    parser.add_argument("--only", default="", help="points whose size is this")
    parser.add_argument("--parallel", type=int, default=4, help="processes that start side by side")
    parser.add_argument("--out", type=Path, help="rows of JSON, one a line; new ones are added")
    parser.add_argument("--page", type=Path, help="write the table of --out into this page, measure nothing")
    parser.add_argument("--one", help="(inside) one side of one point, as JSON")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(json.loads(asked.one), asked.nanogpt)))
        return 0
    if asked.page:
        rows = [json.loads(line) for line in asked.out.read_text(encoding="utf-8").splitlines()]
        page = asked.page.read_text(encoding="utf-8")
        asked.page.write_text(with_table(page, rows), encoding="utf-8")
        return 0
    points = [point for point in POINTS if asked.only in ("", point[0])]
    jobs = [(*point, side) for point in points for side in asked.sides.split(",")]
    with ThreadPoolExecutor(asked.parallel) as pool:
        rows = list(pool.map(lambda job: _measure_in_process(asked.nanogpt, *job), jobs))
    if asked.out:
        with asked.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    print(json.dumps({"bench": "grid", "rows": rows}))
    return 0


def _measure_in_process(nanogpt: Path, size: str, context: int, batch: int, side: str) -> dict[str, Any]:
    point = {"size": size, "context": context, "batch": batch, "side": side}
    command = [sys.executable, "-m", "bench.grid", "--one", json.dumps(point), "--nanogpt", str(nanogpt)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return point | {"error": done.stderr[-300:]}
    row: dict[str, Any] = point | json.loads(done.stdout.splitlines()[-1])
    print(f"{size:5} {context:5} x {batch:<3} {side:8} {row['ms']:8.2f} ms {row['gib']:6.2f} GiB", flush=True)
    return row


def measure(point: dict[str, Any], nanogpt: Path) -> dict[str, Any]:
    """One side of one point, in this process."""
    import torch

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make = nanogpt_update if point["side"] == "nanogpt" else glass_update
        update, choices = make(point, folder, nanogpt, stack)
        times = _timed(update)
        return {
            "ms": median(times),
            "p99_ms": sorted(times)[int(0.99 * (len(times) - 1))],
            "gib": torch.cuda.max_memory_allocated() / 2**30,
            **choices,
        }


def _timed(update: Callable[[], None]) -> list[float]:
    """Milliseconds by the card's clock, while no other process of this benchmark is timed."""
    import torch

    for _ in range(5):
        update()
    torch.cuda.synchronize()
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(3):
            update()
        events = [torch.cuda.Event(enable_timing=True)]
        events[0].record()
        begin = time.perf_counter()
        while len(events) <= _FEWEST_UPDATES or time.perf_counter() - begin < _SECONDS:
            update()
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
            if len(events) % 4 == 0:  # the host must not run far ahead
                events[-2].synchronize()
            if len(events) > _MOST_UPDATES:
                break
        torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in pairwise(events)]


def random_data(folder: Path) -> Path:
    return write_random_tokens(folder, 50257, train=600_000, val=20_000)


def nanogpt_update(
    point: dict[str, Any], folder: Path, nanogpt: Path, stack: ExitStack
) -> tuple[Callable[[], None], dict[str, Any]]:
    """The inner loop of its train.py."""
    import numpy as np
    import torch

    theirs = load_nanogpt_model(nanogpt)
    layers, heads, channels = SIZES[point["size"]]
    T, B = point["context"], point["batch"]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    shape = {"n_layer": layers, "n_head": heads, "n_embd": channels, "block_size": T, "vocab_size": 50304}
    with torch.device("cuda"):  # its weights are drawn there: quicker, and their values do not matter
        model = theirs.GPT(theirs.GPTConfig(**shape, dropout=0.0, bias=False))
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cuda")
    compiled: Any = torch.compile(model)
    data = np.memmap(random_data(folder) / "train.bin", dtype=np.uint16, mode="r")

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(data) - T, (B,))
        rows = [torch.from_numpy(data[start : start + T + 1].astype(np.int64)) for start in starts.tolist()]
        x, y = torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])
        return x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to("cuda", non_blocking=True)

    batch = get_batch()

    def update() -> None:
        nonlocal batch
        with torch.autocast("cuda", dtype=torch.bfloat16):
            _, loss = compiled(*batch)
        batch = get_batch()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update, {}


def glass_update(
    point: dict[str, Any], folder: Path, nanogpt: Path, stack: ExitStack
) -> tuple[Callable[[], None], dict[str, Any]]:
    layers, heads, channels = SIZES[point["size"]]
    config = TrainConfig(
        n_layer=layers, n_head=heads, n_embd=channels, block_size=point["context"], batch_size=point["batch"],
        gradient_accumulation_steps=1, fp8=point["side"] == "fp8", data_dir=str(random_data(folder)),
        out_dir=str(folder / "run"), max_iters=2000, eval_interval=2000, eval_tokens=65_536,
        probe_seconds=0.0, history="off",
    )  # fmt: skip
    run, _ = stack.enter_context(set_up_run(config))
    done = 0

    def update() -> None:
        nonlocal done
        run.learner.update(done, done * run.batch_plan.sequences)
        done += 1

    work = run.compute_plan.spec.workload
    choices = {"kernels": work.kernels, "graph": work.graph, "fp8": work.config.fp8}
    return update, choices


def with_table(page: str, rows: Sequence[dict[str, Any]]) -> str:
    """The page with the newest row of each side of each point."""
    newest = {(row["size"], row["context"], row["batch"], row["side"]): row for row in rows if "ms" in row}
    points = sorted({key[:3] for key in newest}, key=lambda one: (list(SIZES).index(one[0]), *one[1:]))
    lines = [
        "| model | context x micro-batch | nanoGPT | GlassGPT | speed | memory | FP8 | FP8's speed |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for point in points:
        sides = {side: newest.get((*point, side)) for side in ("nanogpt", "glass", "fp8")}
        theirs, ours, fp8 = sides["nanogpt"], sides["glass"], sides["fp8"]
        cells = [point[0], f"{point[1]} x {point[2]}"]
        cells += [f"{row['ms']:.1f} ms" if row else "" for row in (theirs, ours)]
        cells += (
            [f"{theirs['ms'] / ours['ms']:.2f}", f"{ours['gib'] / theirs['gib']:.2f}"]
            if theirs and ours
            else ["", ""]
        )
        if fp8 and ours:
            is_on = fp8["fp8"]
            cells += (
                [f"{fp8['ms']:.1f} ms", f"{ours['ms'] / fp8['ms']:.2f}"] if is_on else ["off by itself", ""]
            )
        else:
            cells += ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    head, _, rest = page.partition(_TABLE[0])
    _, _, tail = rest.partition(_TABLE[1])
    return "\n".join([head + _TABLE[0], "", *lines, "", _TABLE[1]]) + tail


if __name__ == "__main__":
    sys.exit(main())
