"""Records as a GlassGPT run writes them (docs/journal.md), with figures that are easy to recognize."""

from __future__ import annotations

from typing import Any

from glassgpt.record.journal import Record

LEDGER = {
    "startup": 2.0, "compile": 10.0, "data": 0.5, "train": 70.0,
    "eval": 12.0, "checkpoint": 4.0, "log": 1.0, "other": 0.5,
}  # fmt: skip


def record(kind: str, iteration: int, process: int = 0, **fields: Any) -> Record:
    return {"kind": kind, "time": 1.0e9 + iteration, "process": process, "iter": iteration} | fields


def run(max_iters: int = 100, process: int = 0) -> Record:
    return record(
        "run",
        0,
        process,
        config={
            "max_iters": max_iters, "dataset": "mine", "learning_rate": 1e-3, "eval_interval": 50,
            "seed": None,
        },
        choices=[{"name": "device", "value": "cpu", "reason": "no GPU found"}],
        model={
            "arch": "gpt2", "n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "vocab_size": 65,
            "parameters": 10_745_088, "parameters_without_positions": 10_646_784,
            "flops_per_token": 70_958_592,
        },
        batch={"tokens": 16_384},
        peak={"value": 96e9, "source": "measured"},
        data={
            "name": "mine", "tokens": {"train": 1_003_854, "val": 111_540},
            "bytes_per_token": {"val": 1.0},
        },
        machine={"glassgpt": "0.1.0", "device": {"name": "NVIDIA H200", "memory": 150_000_000_000}},
    )  # fmt: skip


def step(iteration: int, process: int = 0, **changes: Any) -> Record:
    fields = {
        "loss": 4.0 - iteration / 50, "lr": 1e-3, "grad_norm": 0.75, "step_ms": 38.0 + iteration % 3,
        "first_update_ms": None, "tokens_per_s": 430_000.0, "mfu": 12.5,
        "phases": {"train": 380.0, "data": 10.0},
    }  # fmt: skip
    return record("step", iteration, process, **fields | changes)


def first_step(process: int = 0, iteration: int = 1) -> Record:
    """The first update has a time of its own; there is no steady one yet."""
    return step(iteration, process, first_update_ms=1530.0, step_ms=None, tokens_per_s=None, mfu=None)


def evaluation(iteration: int, split: str, loss: float, process: int = 0, **changes: Any) -> Record:
    fields = {
        "split": split,
        "loss": loss,
        "stderr": 0.0125,
        "tokens": 32_768,
        "closing": False,
        "best": False,
        "ms": 400.0,
    }
    return record("eval", iteration, process, **fields | changes)


def checkpoint(iteration: int, process: int = 0) -> Record:
    return record(
        "checkpoint", iteration, process, bytes=164_768, blocking_ms=0.25, background_ms=14.5, best=True
    )


def resume(iteration: int, process: int) -> Record:
    return record("resume", iteration, process, from_iter=iteration)


def end(iteration: int, reason: str = "finished", process: int = 0, **changes: Any) -> Record:
    fields = {"reason": reason, "exit_code": 0, "ledger": LEDGER, "wall_s": sum(LEDGER.values())}
    return record("end", iteration, process, **fields | changes)


def whole_run() -> list[Record]:
    """100 updates, a line each ten."""
    return [
        run(),
        evaluation(0, "train", 4.20),
        evaluation(0, "val", 4.25),
        first_step(),
        *(step(at) for at in range(10, 60, 10)),
        evaluation(50, "train", 2.20),
        evaluation(50, "val", 2.25, best=True),
        checkpoint(50),
        *(step(at) for at in range(60, 110, 10)),
        evaluation(100, "train", 2.00),
        evaluation(100, "val", 2.75),
        evaluation(100, "val", 2.30, closing=True),
        checkpoint(100),
        record("finding", 100, severity="warning", title="x", evidence="y", advice="z"),
        end(100),
    ]
