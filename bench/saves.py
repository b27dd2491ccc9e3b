"""What a checkpoint costs the run it is made of: how long it blocks, and the updates beside it.

    python bench/saves.py [--device=cuda]

Two runs on random tokens: a small model, whose updates are all launching, and on a GPU also GPT-2 124M. Every
update is timed. The updates beside a save (from the one after it until it is on the disk) are compared with
those well away from any. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.glass import write_random_tokens

SMALL_MODEL = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "batch_size": 64, "dropout": 0.2}
TINY_MODEL = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "batch_size": 12}
GPT2_MODEL = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "batch_size": 16}


def run_training(
    folder: Path, name: str, vocab_size: int, model: dict[str, Any], updates: int, device: str
) -> list[Any]:
    """`updates`, with a checkpoint after every sixth part of them."""
    out, data = folder / name, folder / f"{name}-data"
    write_random_tokens(data, vocab_size)
    settings = {
        **model, "data_dir": data, "out_dir": out, "device": device, "compile": "off", "log_interval": 1,
        "gradient_accumulation_steps": 1, "max_iters": updates, "checkpoint_interval": updates // 6,
        "eval_interval": 10 * updates, "eval_tokens": 16_384, "probe_seconds": 0, "sample_tokens": 0,
        "warmup_iters": 10,
    }  # fmt: skip
    flags = [f"--{key}={value}" for key, value in settings.items()]
    subprocess.run([sys.executable, "-m", "glassgpt", "train", *flags], check=True, stdout=subprocess.PIPE)
    return [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]


def measure_saves(records: list[Any]) -> dict[str, Any]:
    steps = {r["iter"]: r["step_ms"] for r in records if r["kind"] == "step" and r["step_ms"]}
    saves = [r for r in records if r["kind"] == "checkpoint"][:-1]  # no update follows the last one
    away_ms = statistics.median(
        ms for at, ms in steps.items() if all(not 0 <= at - save["iter"] <= 30 for save in saves)
    )
    after, beside = [], []
    for save in saves:
        while_writing = max(1, int(save["background_ms"] / away_ms))
        after.append(steps[save["iter"] + 1])
        beside += [steps[at] for at in range(save["iter"] + 1, save["iter"] + 1 + min(while_writing, 30))]
    return {
        "mib": round(saves[0]["bytes"] / 2**20),
        "blocking_ms": [round(save["blocking_ms"], 1) for save in saves],
        "background_ms": [round(save["background_ms"]) for save in saves],
        "step_ms": round(away_ms, 2),
        "spread": [round(float(np.percentile(list(steps.values()), q)) / away_ms, 3) for q in (5, 95)],
        "update_after": round(statistics.median(after) / away_ms, 3),
        "updates_beside": round(statistics.median(beside) / away_ms, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    runs: dict[str, tuple[int, dict[str, Any], int]] = {"4 layers x 128": (65, TINY_MODEL, 360)}
    if device != "cpu":
        runs = {
            "6 layers x 384, 65 characters": (65, SMALL_MODEL, 600),
            "GPT-2 124M": (50257, GPT2_MODEL, 480),
        }
    results = {}
    print(
        "| model | MiB | blocks, ms | in the background, ms | update, ms | the one after a save | beside it |"
    )
    print("|---|---:|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        for number, (model, settings) in enumerate(runs.items()):
            found = measure_saves(run_training(Path(name), f"run{number}", *settings, device))
            results[model] = found
            print(
                f"| {model} | {found['mib']} | {found['blocking_ms']} | {found['background_ms']} | "
                f"{found['step_ms']} | x {found['update_after']} | x {found['updates_beside']} |"
            )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
