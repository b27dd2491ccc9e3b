"""A small run on a CPU, and the row that it leaves in the local history."""

from __future__ import annotations

from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.estimate import flops
from glassgpt.estimate.local_history import HistoryRow
from glassgpt.estimate.measured_speed import work_key
from glassgpt.estimate.training_workload import TrainingWorkload

CONFIG = TrainConfig(dataset="a_secret_diary", n_layer=2, n_head=2, n_embd=32, block_size=50)
WORK = TrainingWorkload(
    config=CONFIG, vocab_size=64, batch_size=4, device_type="cpu", dtype="float32", kernels=False
)


def make_row(**changes: Any) -> HistoryRow:
    fields: dict[str, Any] = {
        "machine": "a CPU, 2 cores",
        "work": work_key(WORK),
        "flops_per_token": flops.model_flops_per_token(CONFIG, WORK.vocab_size),
        "ranks": 1,
        "threads": 2,
        "tokens_per_s": 1000.0,
        "seconds": 60.0,
        "updates": 300,
        "peak_flops_per_s": 2e11,
        "peak_bytes": 350 * 2**20,
        "start_s": 4.0,
        "busy_cores": 0.1,
        "torch": "2.13.0",
        "glassgpt": "0.1.0",
        "day": "2026-11-18",
    }
    return HistoryRow(**fields | changes)
