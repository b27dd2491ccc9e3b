"""How long `glass explain` takes on very long logs and journals, and how much memory.

    python bench/logs.py [--lines=1000000]      --lines=39000000: about 2 GB of nanoGPT's lines

Writes logs of that many lines into a temporary folder, explains each in a process of its own and prints a
table, then one JSON line. The bar: 1,000,000 lines in 10 s and 300 MB, start of the process included.
Seconds are those of the CPU in user mode, which other programs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

MAX_SECONDS, MAX_MB = 10.0, 300.0


def nanogpt_log(lines: int) -> Iterator[str]:
    """An iteration a line, an evaluation and a save every 2,000."""
    dice = random.Random(1)
    yield "tokens per iteration will be: 491,520"
    yield "number of parameters: 123.59M"
    for i in range(lines):
        if i % 2000 == 0:
            yield f"step {i}: train loss {3 + 7 / (1 + i / 500):.4f}, val loss {3.1 + 7 / (1 + i / 500):.4f}"
            yield "saving checkpoint to out"
        ms = 30_000 if i % 2000 == 0 else 250 + dice.random()
        yield f"iter {i}: loss {3 + 7 / (1 + i / 500) + dice.gauss(0, 0.05):.4f}, time {ms:.2f}ms, mfu 41.00%"


def llmc_log(lines: int) -> Iterator[str]:
    dice = random.Random(2)
    yield "| total batch size      | 524288                                             |"
    for i in range(1, lines + 1):
        if i % 250 == 1:
            yield f"val loss {3.1 + 7 / (1 + i / 500):.6f}"
        loss, norm = 3 + 7 / (1 + i / 500), 0.3 + 0.01 * dice.random()
        yield (
            f"step {i:4d}/{lines} | loss {loss:.6f} (+0.10z)| norm {norm:.4f} (+0.02z)| lr 6.00e-04 | "
            f"{320 + dice.random():.2f} ms | 44.1% bf16 MFU | 1638400 tok/s"
        )


def unknown_log(lines: int) -> Iterator[str]:
    """Of a trainer that nobody knows, which counts the steps of each epoch."""
    dice = random.Random(4)
    for i in range(lines):
        loss, norm, seconds = 3 + 7 / (1 + i / 500), dice.random(), 0.2 + dice.random() / 50
        yield (
            f"Epoch {1 + i // 1000} | Step {i % 1000}/1000, Loss: {loss:.4f}, LR: 3e-4, "
            f"grad_norm={norm:.3f}, Time: {seconds:.3f}s"
        )


def noisy_log(lines: int) -> Iterator[str]:
    """Nine of ten lines are a progress bar's."""
    for i in range(lines // 10):
        yield f"iter {i}: loss {3 + 7 / (1 + i / 500):.4f}, time 250.00ms, mfu 41.00%"
        for part in range(9):
            yield f" {part * 11:2d}%|{'#' * part:<9}| {i * 9 + part}/{lines} [00:12<06:21,  1.19s/it]"


def journal(lines: int) -> Iterator[str]:
    """A record an update, an evaluation every 20."""
    dice = random.Random(3)
    phases = {"startup": 0.0, "compile": 0.0, "data": 0.2, "train": 19.8, "eval": 0.0, "log": 0.1}
    for i in range(1, lines + 1):
        record = {"kind": "step", "time": 1e9 + i / 50, "process": 0, "iter": i, "lr": 1e-3, "grad_norm": 1.0}
        record |= {"loss": 3 + 7 / (1 + i / 500) + dice.gauss(0, 0.05), "step_ms": 20 + dice.random()}
        record |= {"tokens": 16384 * i, "phases": phases, "memory": {"rss": 1 << 30}, "mfu": None}
        if i % 20 == 0:
            record = {"kind": "eval", "time": 1e9 + i / 50, "process": 0, "iter": i, "split": "val"}
            record |= {"loss": 3.1 + 7 / (1 + i / 500), "stderr": 0.01, "tokens": 4096, "ms": 40.0}
        yield json.dumps(record)


def _metric_rows(lines: int) -> Iterator[dict[str, float]]:
    dice = random.Random(5)
    for i in range(lines):
        loss = 3 + 7 / (1 + i / 500) + dice.gauss(0, 0.05)
        yield {"step": i, "loss": round(loss, 4), "lr": 3e-4, "grad_norm": round(dice.random(), 3)}


def json_lines(lines: int) -> Iterator[str]:
    return map(json.dumps, _metric_rows(lines))


def csv_table(lines: int) -> Iterator[str]:
    yield "step,loss"
    for row in _metric_rows(lines - 1):
        yield f"{row['step']},{row['loss']}"


LOG_MAKERS: dict[str, Callable[[int], Iterator[str]]] = {
    "nanoGPT": nanogpt_log,
    "llm.c": llmc_log,
    "unknown trainer": unknown_log,
    "nine tenths noise": noisy_log,
    "JSON lines": json_lines,
    "CSV": csv_table,
    "journal": journal,
}


def measure_explain(path: Path) -> tuple[float, float, int]:
    """User CPU seconds, MB and logged iterations of one `glass explain --json`."""
    command = [sys.executable, "-m", "glassgpt", "explain", str(path), "--json"]
    # A process between, so that the largest child is this one and not an earlier one.
    watched = (
        "import resource, subprocess, sys; "
        "done = subprocess.run(sys.argv[1:], check=True, capture_output=True); "
        "usage = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "sys.stdout.buffer.write(f'{usage.ru_utime} {usage.ru_maxrss}\\n'.encode() + done.stdout)"
    )
    done = subprocess.run(
        [sys.executable, "-c", watched, *command], check=True, capture_output=True, text=True
    )
    usage, document = done.stdout.split("\n", 1)
    seconds, peak = usage.split()
    unit = 1 if sys.platform == "darwin" else 1024  # what ru_maxrss counts
    return float(seconds), int(peak) * unit / 1e6, json.loads(document)["facts"]["iterations_logged"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1_000_000)
    lines = parser.parse_args().lines
    results = []
    print(f"{'log':<20}{'MB':>8}{'seconds':>10}{'peak MB':>10}{'iterations':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in LOG_MAKERS.items():
            path = Path(folder) / "train.log"
            with path.open("w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in make(lines))
            size = path.stat().st_size / 1e6
            seconds, peak, iterations = measure_explain(path)
            print(f"{name:<20}{size:>8.0f}{seconds:>10.1f}{peak:>10.0f}{iterations:>12,}")
            results.append(
                {"log": name, "lines": lines, "seconds": round(seconds, 2), "peak_mb": round(peak)}
            )
    within = all(one["seconds"] <= MAX_SECONDS and one["peak_mb"] <= MAX_MB for one in results)
    print(json.dumps({"bench": "logs", "results": results, "within_the_bar": within}))


if __name__ == "__main__":
    main()
