"""Forecast and measured: peak memory and tokens/s of many shapes.

    python -m bench.plan memory --data DATASET [--only NAME]          # on a machine with a CUDA card
    python -m bench.plan card --seed 1 [--count 24]                   # there too: random shapes
    python -m bench.plan shapes --data DATASET --seed 1 [--count 8]   # on a CPU: with and without --probe
    python -m bench.plan coverage                         # of the speed band, leaving reference rows out

`memory` and `card`: each line is a real model that does real updates and one evaluation batch. `shapes`:
short runs of `glass train`. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from bench import glass
from glassgpt.config import TrainConfig
from glassgpt.estimate.batching import eval_batch_rows
from glassgpt.estimate.cards import find_card
from glassgpt.estimate.memory import GIB
from glassgpt.estimate.speed import MfuRange, SpeedReference, expected_mfu_range, reference_rows
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.record.machine import measure_busy_cores, read_cpu_times

if TYPE_CHECKING:
    from glassgpt.training.train_state import TrainSetup

SMALL_MODEL = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256}
MEDIUM_MODEL = {"n_layer": 24, "n_head": 16, "n_embd": 1024}
LARGE_MODEL = {"n_layer": 36, "n_head": 20, "n_embd": 1280}
XL_MODEL = {"n_layer": 48, "n_head": 25, "n_embd": 1600}
MODERN_MUON = {"arch": "modern", "optimizer": "muon", "tie_embeddings": False, "n_head": 6}
CHECKPOINTED = {"activation_checkpointing": True}

SHAPES: dict[str, dict[str, Any]] = {
    "small, 8": SMALL_MODEL | {"batch_size": 8},
    "small, 64": SMALL_MODEL | {"batch_size": 64},
    "small, 64, dropout": SMALL_MODEL | {"batch_size": 64, "dropout": 0.2},
    "124M, 1": {"batch_size": 1},
    "124M, 4": {"batch_size": 4},
    "124M, 16": {"batch_size": 16},
    "124M, 64": {"batch_size": 64},
    "124M, 16, accumulating": {"batch_size": 16, "gradient_accumulation_steps": 2},
    "124M, 64 x 256": {"batch_size": 64, "block_size": 256},
    "124M, 8 x 2048": {"batch_size": 8, "block_size": 2048},
    "124M, 16, float32": {"batch_size": 16, "dtype": "float32"},
    "124M, 16, plain": {"batch_size": 16, "kernels": "plain"},
    "124M, 16, compiled": {"batch_size": 16, "compile": "on"},
    "124M, 64, compiled": {"batch_size": 64, "compile": "on"},
    "124M, 32, again": {"batch_size": 32, **CHECKPOINTED},
    "124M, 16, FP8": {"batch_size": 16, "fp8": True},
    "modern, 16, Muon": MODERN_MUON | {"batch_size": 16},
    "modern, 16, plain": MODERN_MUON | {"batch_size": 16, "kernels": "plain"},
    "modern, 16, compiled": MODERN_MUON | {"batch_size": 16, "compile": "on"},
    "350M, 8": MEDIUM_MODEL | {"batch_size": 8},
    "350M, 8, Muon, again": MEDIUM_MODEL
    | CHECKPOINTED
    | {"batch_size": 8, "arch": "modern", "optimizer": "muon"},
    "774M, 4": LARGE_MODEL | {"batch_size": 4},
    "1.5B, 1": XL_MODEL | {"batch_size": 1},
    "1.5B, 8, again": XL_MODEL | CHECKPOINTED | {"batch_size": 8},
}
_PARALLEL_PROCESSES = 5  # that share the card: memory is counted per process


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument("what", choices=["memory", "card", "shapes", "coverage", "one"])
    parser.add_argument("--data", type=Path, help="a prepared dataset, of `memory` and `shapes`")
    parser.add_argument("--seed", type=int, default=1, help="of random shapes")
    parser.add_argument("--count", type=int, default=8, help="of random shapes")
    parser.add_argument("--only", default="", help="of `memory`: shapes whose names contain this")
    parser.add_argument("--settings", help=argparse.SUPPRESS)  # of `one`, which the others start
    asked = parser.parse_args()
    if asked.data is None and asked.what in ("memory", "shapes"):
        parser.error(f"{asked.what} needs --data")
    if asked.what == "one":
        print(json.dumps(measure_memory(json.loads(asked.settings), asked.data)))
        return 0
    if asked.what == "coverage":
        rows = coverage_rows()
    elif asked.what == "shapes":
        shapes = enumerate(random_shapes(asked.seed, asked.count))
        rows = [shape_row(number, shape, asked.data) for number, shape in shapes]
    elif asked.what == "card":
        rows = card_rows(asked.seed, asked.count)
    else:
        chosen = {name: settings for name, settings in SHAPES.items() if asked.only in name}
        rows = measure_shapes(chosen, lambda settings: asked.data)
    print(json.dumps({"bench": f"plan, {asked.what}", "rows": rows}))
    return 0


def measure_shapes(
    shapes: dict[str, dict[str, Any]], data_of: Callable[[dict[str, Any]], Path]
) -> list[dict[str, Any]]:
    """Each in a process of its own, since cuBLAS keeps working space for every stream there ever was. They
    start side by side, but only one at a time is timed."""

    def measure(settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bench.plan", "one", "--data", str(data_of(settings))]
        command += ["--settings", json.dumps(settings)]
        return subprocess.run(command, capture_output=True, text=True)

    rows = []
    with ThreadPoolExecutor(_PARALLEL_PROCESSES) as pool:
        for (name, settings), done in zip(shapes.items(), pool.map(measure, shapes.values()), strict=True):
            row: dict[str, Any] = {"name": name, "settings": settings}
            if done.returncode:
                row["error"] = done.stderr[-300:]
                print(f"{name}: {row['error']}", flush=True)
            else:
                row |= json.loads(done.stdout.splitlines()[-1])
                row["off"] = row["expected"] / row["measured"] - 1
                print(_line(row), flush=True)
            rows.append(row)
    return rows


def _line(row: dict[str, Any]) -> str:
    parts = {part: round(size / GIB, 3) for part, size in row["parts"].items()}
    memory = (
        f"{row['name']:24} expected {row['expected'] / GIB:7.3f} measured {row['measured'] / GIB:7.3f} GiB "
        f"{row['off']:+.1%}, {row['moment']}, updates {row['updates'] / GIB:.3f}, evaluation "
        f"{row['evaluation'] / GIB:.3f}, reserved {row['reserved'] / GIB:.2f} {row['fallbacks']} {parts}"
    )
    if "tokens_per_s" not in row:
        return memory
    low, mid, high = row["tokens_per_s"]
    row["in_band"] = low <= row["measured_tokens_per_s"] <= high
    return (
        f"{memory}; {row['measured_tokens_per_s']:,.0f} tokens/s, expected {mid:,.0f} ({low:,.0f} to "
        f"{high:,.0f}) {'' if row['in_band'] else 'OUT '}{row['choices']}"
    )


def measure_memory(settings: dict[str, Any], data: Path) -> dict[str, Any]:
    """Four updates and an evaluation, in this process."""
    import torch

    from glassgpt.training.evaluate import evaluate

    is_timed = settings.pop("timed", False)
    with (
        tempfile.TemporaryDirectory() as folder,
        glass.set_up_run(TrainConfig(**_complete_settings(settings, data, folder))) as (run, state),
    ):
        for update in range(4):
            run.learner.update(update, update * run.batch_plan.sequences)
        run.execution.synchronize()
        rate = _steady_tokens_per_s(run) if is_timed else None
        updates = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        evaluate(run.learner, run.eval_windows["val"], run.ledger)
        forecast, evaluation = state.forecast_check.forecast, torch.cuda.max_memory_allocated()
        found: dict[str, Any] = {
            "moment": forecast.memory.peak_phase,
            "parts": dict(forecast.memory.parts),
            "expected": forecast.memory.allocated_bytes,
            "measured": max(updates, evaluation),
            "updates": updates,
            "evaluation": evaluation,
            "reserved": torch.cuda.max_memory_reserved(),
            "fallbacks": list(run.learner.fallbacks),
        }
        if is_timed:
            throughput, work = forecast.throughput, run.compute_plan.spec.workload
            assert throughput is not None
            found["tokens_per_s"] = [throughput.low, throughput.mid, throughput.high]
            found["measured_tokens_per_s"] = rate
            found["choices"] = [work.dtype, "triton" if work.kernels else "plain"]
            found["choices"] += ["graph"] if work.graph else []
            found["choices"] += ["fp8"] if work.config.fp8 else []
        return found


def _steady_tokens_per_s(run: TrainSetup) -> float:
    """By at least 10 updates and a second, while no other process of this benchmark is timed."""
    with Path(tempfile.gettempdir(), "glassgpt-bench-timed").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done, warm_up = 4, 3
        started = time.perf_counter()
        while done < 14 or time.perf_counter() - started < 1:
            run.learner.update(done, done * run.batch_plan.sequences)
            done += 1
            if done <= 4 + warm_up:
                run.learner.take_losses_and_norms()
                started = time.perf_counter()
            elif done % 5 == 0:
                run.execution.synchronize()
        run.learner.take_losses_and_norms()
        return (done - 4 - warm_up) * run.batch_plan.tokens / (time.perf_counter() - started)


def _complete_settings(settings: dict[str, Any], data: Path, folder: str) -> dict[str, Any]:
    usual: dict[str, Any] = {"probe_seconds": 0.0}
    if settings.get("compile") != "on":
        usual["kernels"] = "triton"  # so few updates would not be worth building them
    few = {"max_iters": 4, "eval_interval": 4, "eval_tokens": 65_536, "warmup_iters": 0}
    return {**usual, **few, "data_dir": str(data), "out_dir": f"{folder}/run", **settings}


# --- random shapes, on whatever machine this is ---

_RUN_S = 25.0  # of updates, as planned
_QUIET_CORES = 0.3  # used by others: a busier machine is waited for …
_MAX_WAIT_S = 20.0  # … so long
_PEAK_OF_CHILD = (
    "import resource, subprocess, sys; "
    "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode; "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024); sys.exit(code)"
)


def random_shapes(seed: int, count: int) -> list[dict[str, Any]]:
    """Small enough for two cores; of every kind that a run may have there."""
    draw = random.Random(seed)
    shapes = []
    for _ in range(count):
        heads = draw.choice([1, 2, 3, 4, 6, 8])
        arch = draw.choice(["gpt2", "modern"])
        shapes.append(
            {
                "n_layer": draw.randint(1, 8),
                "n_head": heads,
                "n_embd": heads * draw.choice([16, 32, 48, 64]),
                "block_size": draw.choice([32, 64, 100, 128, 256]),
                "batch_size": draw.choice([2, 4, 8, 12, 16, 24]),
                "gradient_accumulation_steps": draw.choice([1, 1, 2, 4]),
                "arch": arch,
                "optimizer": draw.choice(["adamw", "muon"]),
                "dropout": draw.choice([0.0, 0.0, 0.1]),
                "bias": arch == "gpt2" and draw.random() < 0.5,
                "tie_embeddings": draw.random() < 0.5,
                "dtype": draw.choice(["auto", "float32"]),
                "activation_checkpointing": draw.random() < 0.2,
            }
        )
    return shapes


def draw_card_workload(seed: int) -> TrainingWorkload:
    """A shape that nobody chose: odd widths, few layers, small and large vocabularies, every option."""
    draw = random.Random(seed)
    while True:
        head_dim, heads = (
            draw.choice([16, 24, 36, 40, 48, 50, 56, 64, 64, 72, 80, 96, 100, 128]),
            draw.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 20, 25]),
        )
        T, B = (
            draw.choice([32, 64, 100, 128, 256, 512, 1000, 1024, 2048, 4096]),
            draw.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]),
        )
        width, layers = head_dim * heads, draw.choice([1, 1, 2, 3, 4, 6, 8, 12, 16, 24, 36])
        if 48 <= width <= 2560 and width * layers <= 40_000 and 512 <= B * T <= 131_072 and B * T % 16 == 0:
            break
    dtype = draw.choice(["bfloat16"] * 4 + ["float32", "float16"])
    arch: Literal["gpt2", "modern"] = draw.choice(["gpt2", "gpt2", "modern"])
    kernels = dtype != "float32" and draw.random() < 0.55
    config = TrainConfig(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        block_size=T,
        batch_size=B,
        arch=arch,
        dropout=draw.choice([0.0, 0.0, 0.1, 0.2]),
        bias=arch == "gpt2" and draw.random() < 0.4,
        activation_checkpointing=draw.random() < 0.3,
        fp8=kernels and dtype == "bfloat16" and width % 16 == 0 and draw.random() < 0.3,
        optimizer=draw.choice(["adamw", "adamw", "muon"]),
        tie_embeddings=draw.random() < 0.7,
    )
    return TrainingWorkload(
        config=config,
        vocab_size=draw.choice(
            [27, 64, 256, 2048, 8192, 16_000, 32_768, 50_257, 50_304, 100_288, 151_936, 256_000]
        ),
        batch_size=B,
        micro_steps=draw.choice([1, 1, 2, 4]),
        dtype=dtype,
        kernels=kernels,
        graph=draw.random() < 0.4,
        attention="manual" if draw.random() < 0.1 else "sdpa",
        eval_batch_tokens=eval_batch_rows(config, "cuda") * T,
    )


def card_rows(seed: int, count: int) -> list[dict[str, Any]]:
    """Random shapes on this card: memory and tokens/s as each run forecasts them, and as measured."""
    works = {str(number): draw_card_workload(number) for number in range(seed, seed + count)}
    shapes = {name: card_settings(work) for name, work in works.items()}
    with tempfile.TemporaryDirectory() as folder:
        places = {}
        for name, work in works.items():
            vocab_size = min(work.vocab_size, 2**16)  # as nanoGPT's files can hold
            place = Path(folder, str(vocab_size))
            if not place.is_dir():
                glass.write_random_tokens(place, vocab_size, train=1_000_000, val=200_000)
            places[json.dumps(shapes[name])] = place
        rows = measure_shapes(shapes, lambda settings: places[json.dumps(settings)])
    measured = [row for row in rows if "off" in row]
    worst = max((abs(row["off"]) for row in measured), default=math.nan)
    near, inside = sum(abs(row["off"]) < 0.05 for row in measured), sum(row["in_band"] for row in measured)
    print(f"{len(measured)} shapes: memory within 5% in {near}, worst {worst:.1%}; in the band {inside}")
    return rows


def card_settings(work: TrainingWorkload) -> dict[str, Any]:
    names = ("n_layer", "n_head", "n_embd", "block_size", "batch_size", "arch", "dropout", "bias", "fp8",
             "activation_checkpointing", "optimizer", "tie_embeddings")  # fmt: skip
    settings = {name: getattr(work.config, name) for name in names}
    settings |= {"gradient_accumulation_steps": work.micro_steps, "dtype": work.dtype, "timed": True}
    settings |= {"kernels": "triton" if work.kernels else "plain", "compile": "off", "max_iters": 400}
    settings |= {"attention": "manual" if work.attention == "manual" else "auto", "eval_interval": 400}
    return settings | {"graph": "auto" if work.graph else "off"}


def shape_row(number: int, shape: dict[str, Any], data: Path) -> dict[str, Any]:
    """Planned without and with --probe, then run. History is off: each shape is the first of its kind."""
    usual = {"data_dir": data, "history": "off", "compile": "off", "eval_tokens": 4096, "closing_eval": False}
    flags = [f"--{key}={value}" for key, value in {**usual, **shape}.items()]
    wait_s = wait_until_quiet()

    def plan(*more: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "glassgpt", "plan", "shakespeare_char_cpu", "--json", *flags, *more]
        return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))

    first = plan("--max_iters=1000")
    updates = max(20, round(_RUN_S * 1000 / first["time"]["updates_s"][1]))
    length = [
        f"--max_iters={updates}",
        f"--eval_interval={max(1, updates // 3)}",
        f"--log_interval={max(1, updates // 20)}",
    ]
    plain, probed = plan(*length), plan("--probe", *length)
    with tempfile.TemporaryDirectory() as folder:
        train = [sys.executable, "-m", "glassgpt", "train", "shakespeare_char_cpu", *flags, *length]
        before = read_cpu_times()
        done = subprocess.run(
            [sys.executable, "-c", _PEAK_OF_CHILD, *train, f"--out_dir={folder}/run"],
            capture_output=True,
            text=True,
        )
        load = (read_cpu_times().busy_s - before.busy_s) / (read_cpu_times().wall_s - before.wall_s)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        end = json.loads((Path(folder) / "run" / "journal.jsonl").read_text().splitlines()[-1])
    forecast = end["forecast"]
    measured = {
        "memory": int(done.stdout.split()[-1]),
        "tokens_per_s": forecast["tokens_per_s"]["measured"],
        "total_s": forecast["total_s"]["measured"],
    }
    row: dict[str, Any] = {
        "shape": shape,
        "updates": updates,
        "waited_s": wait_s,
        "cores_used": load,
        **measured,
    }
    for name, document in (("plan", plain), ("probe", probed)):
        pace = document["time"]["pace"]
        row[name] = {
            "memory": document["memory"]["measured"] or document["memory"]["total"],
            "tokens_per_s": [pace["low"], pace["mid"], pace["high"]],
            "total_s": document["time"]["total_s"],
        }
    row["revised_total_s"] = forecast["total_s"]["revised"]
    print(_shape_line(number, row), flush=True)
    return row


def _shape_line(number: int, row: dict[str, Any]) -> str:
    parts = [
        f"{number}: {row['memory'] / 2**20:.0f} MiB, {row['tokens_per_s']:,.0f} tok/s, {row['total_s']:.0f} s"
    ]
    for name in ("plan", "probe"):
        planned = row[name]
        off = planned["memory"] / row["memory"] - 1
        inside = ", ".join(
            f"{what} {planned[what][1] / row[what] - 1:+.0%} "
            f"{'in' if planned[what][0] <= row[what] <= planned[what][2] else 'OUT'} "
            f"({planned[what][0] / row[what]:.2f} to {planned[what][2] / row[what]:.2f})"
            for what in ("tokens_per_s", "total_s")
        )
        parts.append(f"{name}: memory {off:+.1%}, {inside}")
    if row["revised_total_s"]:
        low, _, high = row["revised_total_s"]
        parts.append(f"revised {'in' if low <= row['total_s'] <= high else 'OUT'}")
    parts.append(f"{row['cores_used']:.1f} cores used in all")
    return " | ".join(parts)


def wait_until_quiet() -> float:
    """Seconds waited. Gives up after a while: what is measured then says how many cores were in use."""
    begin = time.monotonic()
    while measure_busy_cores(2.0) > _QUIET_CORES and time.monotonic() - begin < _MAX_WAIT_S:
        time.sleep(3)
    return time.monotonic() - begin


# --- the band of a card that is not there ---


@dataclass(frozen=True)
class LeftOutPrediction:
    """A reference run, and the MFU that the others lead to."""

    row: SpeedReference
    expected: MfuRange
    uses_its_card: bool  # whether other rows of its card were left

    @property
    def mfu(self) -> float:
        assert self.row.mfu is not None
        return self.row.mfu

    @property
    def is_inside(self) -> bool:
        return self.expected.low <= self.mfu <= self.expected.high

    @property
    def score(self) -> float:
        """At most 1: inside. The logarithm of the range would have to be so many times as wide."""
        end = self.expected.high if self.mfu > self.expected.mid else self.expected.low
        return math.log(self.mfu / self.expected.mid) / math.log(end / self.expected.mid)


LEFT_OUT: dict[str, Callable[[SpeedReference], object]] = {
    "the row": lambda row: row.name,
    "all rows of its card and model": lambda row: (row.card, row.shape),
    "all rows of its card": lambda row: row.card,
}


def predict_left_out(left_out: str) -> list[LeftOutPrediction]:
    """Every row on a card that counts, predicted without the rows that `left_out` names."""
    key, found = LEFT_OUT[left_out], []
    for row in reference_rows():
        card, peak = find_card(row.card) if row.card else None, row.peak_flops_per_s
        if not row.counts or card is None or peak is None:
            continue
        without = [other.name for other in reference_rows() if key(other) == key(row)]
        expected = expected_mfu_range(card, peak, row.work, row.flops_per_token, without)
        its_card = {other.name for other in reference_rows() if other.card == row.card}
        found.append(LeftOutPrediction(row, expected, not its_card.isdisjoint(expected.rows)))
    return found


def coverage_by_card(predictions: Sequence[LeftOutPrediction]) -> float:
    """The share of rows inside the band, each card weighing the same: rows of one card are much alike."""
    by_card: dict[str, list[bool]] = {}
    for one in predictions:
        by_card.setdefault(one.row.card, []).append(one.is_inside)
    return fmean(fmean(inside) for inside in by_card.values())


def conformal_quantile(predictions: Sequence[LeftOutPrediction], share: float = 0.8) -> float:
    """The score that `share` of the cards stay below, each weighing the same, one more counted as above."""
    rows_of = Counter(one.row.card for one in predictions)
    reached = 0.0
    for one in sorted(predictions, key=lambda one: one.score):
        reached += 1 / rows_of[one.row.card]
        if reached >= share * (len(rows_of) + 1):
            return one.score
    return math.inf


def coverage_rows() -> list[dict[str, Any]]:
    """Each reference run predicted without itself, without its card and model, and without its card."""
    found: list[dict[str, Any]] = []
    for left_out in LEFT_OUT:
        predictions = predict_left_out(left_out)
        inside = [one for one in predictions if one.is_inside]
        row = {"left_out": left_out, "inside": len(inside), "rows": len(predictions)}
        row["by_card"] = coverage_by_card(predictions)
        print(f"without {left_out}: {len(inside)} of {len(predictions)} inside, by card {row['by_card']:.0%}")
        for one in predictions:
            low, high = one.expected.low, one.expected.high
            mark = " " if one.is_inside else "!"
            print(f"{mark} {one.row.name:52} {one.mfu:5.1f}%  expected {low:5.1f} to {high:5.1f}")
        found.append(row)
    return found


if __name__ == "__main__":
    sys.exit(main())
