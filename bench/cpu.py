"""GlassGPT and nanoGPT side by side on this CPU, on the CPU command of nanoGPT's README.

    python bench/cpu.py --nanogpt PATH/TO/nanoGPT --source tinyshakespeare.txt [--rounds 3] [--full]

The two run in alternation, same data, same settings, same number of threads. Speed is the median time of an
update, evaluations left out on both sides: nanoGPT's printed iteration times where it did not evaluate,
GlassGPT's step times. With --full both also train all 2000 updates once, and one evaluator scores both
results on the whole validation split. nanoGPT is not part of this repository; nothing of it is written to.
The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from glassgpt.account import journal
from glassgpt.data.batches import evaluation_batch, evaluation_windows
from glassgpt.data.dataset import open_dataset
from glassgpt.data.options import PrepareOptions
from glassgpt.data.prepare import prepare
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.train import checkpoint

TOKENS_PER_UPDATE = 12 * 64
README_FLAGS = [
    "--device=cpu",
    "--compile=False",
    "--eval_iters=20",
    "--log_interval=1",
    "--block_size=64",
    "--batch_size=12",
    "--n_layer=4",
    "--n_head=4",
    "--n_embd=128",
    "--dropout=0.0",
]
WARM_UP = 20  # updates at the start of a process that are not counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--source", type=Path, required=True, help="tinyshakespeare.txt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=250, help="per round and side")
    parser.add_argument(
        "--full", action="store_true", help="also train both for 2000 updates and compare losses"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        nanogpt = copy_nanogpt(options.nanogpt, options.source, work / "nanoGPT")
        prepare(
            PrepareOptions("shakespeare_char", source=str(options.source), out_dir=str(work / "data")),
            print,
            False,
        )
        result = speed(nanogpt, work, options.rounds, options.updates)
        if options.full:
            result |= full(nanogpt, work)
    print(json.dumps(result))


def copy_nanogpt(checkout: Path, source: Path, place: Path) -> Path:
    """A scratch copy with its own data prepared by its own script."""
    shutil.copytree(checkout, place, ignore=shutil.ignore_patterns(".git", "out*"))
    shutil.copyfile(source, place / "data" / "shakespeare_char" / "input.txt")
    subprocess.run(
        [sys.executable, "data/shakespeare_char/prepare.py"], cwd=place, check=True, capture_output=True
    )
    return place


def run_nanogpt(place: Path, updates: int) -> tuple[list[float], float, Path]:
    """Milliseconds of every iteration without an evaluation, wall seconds, and its checkpoint."""
    out = place / f"out-{time.time_ns()}"
    flags = [*README_FLAGS, f"--max_iters={updates - 1}", "--lr_decay_iters=2000", f"--out_dir={out}"]
    command = [sys.executable, "train.py", "config/train_shakespeare_char.py", *flags]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)
    wall = time.perf_counter() - started
    lines = re.findall(r"^iter (\d+): loss \S+ time ([\d.]+)ms", done.stdout, re.MULTILINE)
    return [float(ms) for number, ms in lines if int(number) >= WARM_UP and int(number) % 250], wall, out


def run_glass(work: Path, updates: int) -> tuple[list[float], float, Path]:
    """The same of GlassGPT, from its journal."""
    out = work / f"glass-{time.time_ns()}"
    flags = [f"--data_dir={work / 'data'}", f"--out_dir={out}", f"--max_iters={updates}", "--log_interval=1"]
    command = [sys.executable, "-m", "glassgpt", "train", "shakespeare_char_cpu", *flags]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=os.environ)
    wall = time.perf_counter() - started
    steps = [record for record in journal.read(out / journal.NAME) if record["kind"] == "step"]
    return [step["step_ms"] for step in steps if step["iter"] > WARM_UP], wall, out


def speed(nanogpt: Path, work: Path, rounds: int, updates: int) -> dict[str, object]:
    medians: dict[str, list[float]] = {"nanogpt": [], "glassgpt": []}
    for number in range(rounds):
        for name, times in (
            ("nanogpt", run_nanogpt(nanogpt, updates)[0]),
            ("glassgpt", run_glass(work, updates)[0]),
        ):
            medians[name].append(statistics.median(times))
            print(f"round {number}  {name:<9} {medians[name][-1]:.2f} ms per update", flush=True)
    ms = {name: statistics.median(values) for name, values in medians.items()}
    ratios = [theirs / ours for theirs, ours in zip(medians["nanogpt"], medians["glassgpt"], strict=True)]
    print("\n          ms/update   tokens/s   spread of rounds")
    for name, value in ms.items():
        spread = f"{min(medians[name]):.2f} to {max(medians[name]):.2f} ms"
        print(f"{name:<9} {value:9.2f} {TOKENS_PER_UPDATE / value * 1000:10,.0f}   {spread}")
    ratio = statistics.median(ratios)
    print(f"GlassGPT does {ratio:.3f} x nanoGPT's tokens/s (rounds: {', '.join(f'{r:.3f}' for r in ratios)})")
    return {"ms": ms, "tokens_per_s_ratio": ratio, "rounds": ratios}


def full(nanogpt: Path, work: Path) -> dict[str, object]:
    """Both runs of the README whole: loss on the whole validation split by one evaluator, wall time."""
    tokens = open_dataset(work / "data").tokens("val")
    _, their_wall, their_out = run_nanogpt(nanogpt, 2001)
    saved = torch.load(their_out / "ckpt.pt", weights_only=True)
    shape = {
        name: saved["model_args"][name]
        for name in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
    }
    theirs = GPT(GPTConfig(**shape))
    theirs.load_state_dict(saved["model"])
    _, our_wall, our_out = run_glass(work, 2000)
    last = checkpoint.describe(checkpoint.committed(our_out)[-1])
    ours = GPT(GPTConfig(**last.state["model"]))
    weights = checkpoint.load_tensors(last)["model"]
    ours.load_state_dict(weights | {"lm_head.weight": weights["transformer.wte.weight"]})
    end = [record for record in journal.read(our_out / journal.NAME) if record["kind"] == "end"][-1]
    losses = {"nanogpt": whole_split_loss(theirs, tokens), "glassgpt": whole_split_loss(ours, tokens)}
    walls = {"nanogpt": their_wall, "glassgpt": our_wall}
    print("\n          validation loss   wall s")
    for name in losses:
        print(f"{name:<9} {losses[name]:15.4f} {walls[name]:8.1f}")
    shares = {name: seconds / end["wall_s"] for name, seconds in end["ledger"].items()}
    print("GlassGPT's ledger: " + "  ".join(f"{name} {share:.2%}" for name, share in shares.items()))
    print(f"wall by the ledger {end['wall_s']:.2f} s, by this script {our_wall:.2f} s")
    return {"val_loss": losses, "wall_s": walls, "ledger_share": shares, "ledger_wall_s": end["wall_s"]}


@torch.no_grad()
def whole_split_loss(model: GPT, tokens: np.ndarray) -> float:
    """One evaluator for both: non-overlapping windows of the context both were trained with."""
    model.eval()
    T = model.config.block_size
    starts = evaluation_windows(len(tokens), T, None)
    total, count = 0.0, 0
    for i in range(0, len(starts), 32):
        x, y = evaluation_batch(tokens, starts[i : i + 32], T)
        total += float(model(torch.from_numpy(x), torch.from_numpy(y), "none").double().sum())
        count += int((y >= 0).sum())
    return total / count


if __name__ == "__main__":
    main()
