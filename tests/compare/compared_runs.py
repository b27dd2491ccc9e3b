"""Synthetic run logs, and helpers to compare them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from run_logs import make_run_log, make_steps

from glassgpt.compare import Comparison, compare
from glassgpt.compare.compared_run import Claim
from glassgpt.config import ConfigValue
from glassgpt.record import journal
from glassgpt.runs.run_log import RunLog

SHAPE: dict[str, ConfigValue] = {
    "n_layer": 6, "n_embd": 384, "block_size": 256, "batch_size": 64, "gradient_accumulation_steps": 1,
    "dataset": "shakespeare_char", "vocab_size": 65, "eval_iters": 200,
}  # fmt: skip


def make_run(
    losses: Sequence[tuple[int, float]] = ((0, 4.2), (500, 2.0), (1000, 1.6)),
    ms: float = 50.0,
    last: int = 1000,
    **settings: str | int | float | bool | None,
) -> RunLog:
    steps = make_steps(range(0, last + 1, 10), ms)
    return make_run_log(steps, [(at, None, val) for at, val in losses], settings={**SHAPE, **settings})


def compare_run_logs(*run_logs: RunLog) -> Comparison:
    comparison = compare(run_logs)
    json.dumps(journal.nonfinite_to_words(comparison.as_dict()), allow_nan=False)
    return comparison


def claim_ids(comparison: Comparison) -> list[str]:
    return [claim.id for claim in comparison.verdict]


def find_claim(comparison: Comparison, id: str) -> Claim:
    (claim,) = [claim for claim in comparison.verdict if claim.id == id]
    return claim


def keys(claim: Claim) -> list[str]:
    """Which sentences it consists of."""
    return [message.key for message in (claim.message, *claim.detail_messages)]
