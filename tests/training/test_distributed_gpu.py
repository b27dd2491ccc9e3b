"""Ranks on CUDA cards, with NCCL: one rank on one card trains what a plain run trains; two on two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rank_processes
import torch
from tiny import MakeConfig, choices, records, run_evals, run_losses

pytestmark = pytest.mark.gpu

SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "n_embd": 64,
    "block_size": 32,
    "batch_size": 4,
    "gradient_accumulation_steps": 4,
    "max_iters": 20,
    "eval_interval": 10,
    "sample_tokens": 4,
}


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"dtype": "float32", "kernels": "plain", "graph": "off"}, 1e-4),
        ({"dtype": "bfloat16", "kernels": "plain", "graph": "on"}, 1e-2),
        ({"dtype": "bfloat16", "kernels": "triton", "optimizer": "muon", "arch": "modern"}, 1e-2),
        ({"dtype": "float32", "kernels": "plain", "shard": True}, 1e-3),
        ({"dtype": "bfloat16", "kernels": "triton", "shard": True, "optimizer": "muon"}, 2e-2),
    ],
)
def test_one_rank_trains_what_a_plain_run_trains(
    tiny: MakeConfig, tmp_path: Path, changes: dict[str, Any], tolerance: float
) -> None:
    """The same arithmetic, up to the order in which a card adds."""
    plain = tiny("plain", **SETTINGS | changes | {"shard": False, "compile": "off"})
    # In a separate process as well: this one must not touch the card before others are forked.
    assert (
        rank_processes.start_ranks(1, tmp_path, rank_processes.train_command(plain), environment=ALONE)[
            0
        ].wait(180)
        == 0
    )
    config = tiny("rank", **SETTINGS | changes | {"compile": "off"})
    (process,) = rank_processes.start_ranks(1, tmp_path, rank_processes.train_command(config))
    assert process.wait(180) == 0, process.output_text
    assert choices(config.out_dir)["backend"] == ("nccl", "between CUDA cards")
    assert records(config.out_dir, "run")[0]["team"]["size"] == 1
    assert "team" not in records(plain.out_dir, "run")[0]
    assert run_losses(config.out_dir) == pytest.approx(run_losses(plain.out_dir), abs=tolerance)
    assert run_evals(config.out_dir) == pytest.approx(run_evals(plain.out_dir), abs=tolerance)
    assert [record for record in records(config.out_dir, "finding") if record["severity"] == "warning"] == []
    shared = records(config.out_dir, "step")[-1]["ranks"]
    assert shared["work_ms"][0] > 0
    assert shared["exchange_ms"][0] >= 0


ALONE = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"), "")


def test_two_cards_train_what_one_trains(tiny: MakeConfig, tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device here; this needs two")
    plain = tiny("plain", **SETTINGS, dtype="float32")
    assert (
        rank_processes.start_ranks(1, tmp_path, rank_processes.train_command(plain), environment=ALONE)[
            0
        ].wait(180)
        == 0
    )
    for shard in (False, True):
        config = tiny(f"two-{shard}", **SETTINGS, dtype="float32", shard=shard)
        ranks = rank_processes.start_ranks(2, tmp_path, rank_processes.train_command(config))
        assert [process.wait(180) for process in ranks] == [0, 0], ranks[0].output_text
        assert run_losses(config.out_dir) == pytest.approx(run_losses(plain.out_dir), abs=1e-3)
