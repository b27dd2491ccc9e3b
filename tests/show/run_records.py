"""Records as a run writes them, with figures that are easy to recognize in what is shown."""

from __future__ import annotations

import dataclasses
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.record.journal import Record
from glassgpt.record.ledger import PHASES


def record(kind: str, iteration: int, fields: Record, changes: Record) -> Record:
    return {"kind": kind, "time": 1.0e9 + iteration, "process": 0, "iter": iteration} | fields | changes


def run_record(max_iters: int = 100, **changes: Any) -> Record:
    config = dataclasses.asdict(TrainConfig(max_iters=max_iters, dataset="mine"))
    fields: Record = {
        "out_dir": "runs/mine",
        "config": config,
        "choices": [
            {"name": "device", "value": "cpu", "reason": "no GPU found"},
            {"name": "dtype", "value": "float32", "reason": "n_embd < 64"},
        ],
        "model": {
            "arch": "gpt2",
            "n_layer": 6,
            "n_head": 6,
            "n_embd": 384,
            "block_size": 256,
            "parameters": 10_745_088,
            "flops_per_token": 70_958_592,
        },
        "peak": {
            "table": None,
            "table_source": None,
            "measured": 96e9,
            "measured_how": "measured: float32 matmuls for 1 s",
            "value": 96e9,
            "source": "measured: float32 matmuls for 1 s",
        },
        "data": {
            "name": "mine",
            "tokens": {"train": 1_003_854, "val": 111_540},
            "tokenizer": "char",
            "epochs": 1.6,
        },
        "machine": {"glassgpt": "0.1.0", "torch": "2.13.0", "cpu": {"torch_threads": 4}},
    }
    return record("run", 0, fields, changes)


def step_record(iteration: int, **changes: Any) -> Record:
    fields: Record = {
        "loss": 2.5,
        "lr": 1e-3,
        "grad_norm": 0.75,
        "step_ms": 38.125,
        "first_update_ms": None,
        "tokens_per_s": 19_412.0,
        "mfu": 12.34,
        "eta_s": 187.0,
        "phases": dict.fromkeys(PHASES, 0.0),
    }
    return record("step", iteration, fields, changes)


def eval_record(iteration: int, split: str, loss: float, **changes: Any) -> Record:
    fields: Record = {
        "split": split,
        "loss": loss,
        "stderr": 0.0123,
        "tokens": 32_768,
        "whole_split": False,
        "closing": False,
        "best": False,
        "bits_per_byte": 2.345,
        "ms": 400.0,
        "compile_ms": 0.0,
    }
    return record("eval", iteration, fields, changes)


def checkpoint_record(iteration: int, **changes: Any) -> Record:
    fields: Record = {"bytes": 164_768, "blocking_ms": 0.24, "background_ms": 14.5, "best": True}
    return record("checkpoint", iteration, fields, changes)


LEDGER = {
    "startup": 2.0,
    "compile": 10.0,
    "data": 0.5,
    "train": 70.0,
    "eval": 12.0,
    "checkpoint": 4.0,
    "log": 1.0,
    "other": 0.5,
}


def end_record(iteration: int, reason: str = "finished", **changes: Any) -> Record:
    fields: Record = {
        "reason": reason,
        "exit_code": 0,
        "best_val_loss": 2.25,
        "best_iter": 50,
        "ledger": LEDGER,
        "wall_s": sum(LEDGER.values()),
    }
    return record("end", iteration, fields, changes)


def sample_record(iteration: int, text: str) -> Record:
    return record("sample", iteration, {"text": text, "ms": 250.0}, {})


def whole_run() -> list[Record]:
    """A run of 100 updates in which everything that can be shown happens."""
    finding = {
        "severity": "warning",
        "title": "compiling failed",
        "evidence": "RuntimeError: no",
        "advice": "--compile=off skips the attempt",
    }
    first = {"first_update_ms": 1530.0, "step_ms": None, "tokens_per_s": None, "mfu": None, "eta_s": None}
    compiling = dict.fromkeys(PHASES, 0.0) | {"compile": 4200.0}
    return [
        run_record(),
        eval_record(0, "train", 4.2),
        eval_record(0, "val", 4.25, compile_ms=1500.0, best=True),
        record("finding", 1, finding, {}),
        step_record(1, **first, phases=compiling),
        step_record(50),
        eval_record(50, "train", 2.2),
        eval_record(50, "val", 2.25, best=True),
        checkpoint_record(50),
        step_record(100, loss=float("nan"), eta_s=0.0),
        eval_record(100, "train", 2.0),
        eval_record(100, "val", 2.75, stderr=float("nan")),
        eval_record(100, "val", 2.3, whole_split=True, closing=True),
        sample_record(100, "To be,\nor not"),
        end_record(100),
    ]
