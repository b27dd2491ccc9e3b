"""Recommended settings for the cards people own: a row each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from glassgpt.errors import UserError
from glassgpt.estimate.cards import resolve_card_name
from glassgpt.plan.dataset_size import known_dataset_info
from glassgpt.plan.planning import make_plan
from glassgpt.plan.propose import ProposedRun, propose
from glassgpt.plan.target import FOUND_BY_NAME, PlanTarget, target_of_card
from glassgpt.recipe import build_config, find_recipe

COMMON_CARDS = (
    "RTX 2060 6GB", "RTX 2070", "RTX 2080 Ti", "RTX 3050 8GB", "RTX 3060", "RTX 3060 Laptop GPU", "RTX 3070",
    "RTX 3080 10GB", "RTX 3090", "RTX 4050 Laptop GPU", "RTX 4060", "RTX 4060 Laptop GPU", "RTX 4060 Ti 16GB",
    "RTX 4070", "RTX 4070 Laptop GPU", "RTX 4070 Ti", "RTX 4080", "RTX 4090", "RTX 5060 Ti 16GB", "RTX 5070",
    "RTX 5080", "RTX 5090", "T4", "V100 SXM2 16GB", "A10", "A40", "L4", "L40S", "A100 SXM4 40GB",
    "A100 SXM4 80GB", "H100 SXM5", "H200", "B200", "Instinct MI300X", "Apple M1 8-core GPU",
    "Apple M2 Pro 19-core GPU", "Apple M3 Max 40-core GPU", "Apple M4 10-core GPU",
)  # fmt: skip
MEASURED_CARDS = ("H200",)  # where these runs were made; all others are predicted
GPT2_TOKENS = 2_500_000_000  # 20 per parameter
DAY_HOURS = 24.0  # hours


@dataclass(frozen=True)
class Recommendation:
    card: str
    memory_gib: float
    shakespeare_s: float | None
    gpt2_batch: int | None  # sequences of 1024 at a time; None: it does not fit
    gpt2_tokens_per_s: float | None
    gpt2_hours: float | None  # for 20 tokens per parameter
    day: ProposedRun | None  # the best that a day can do
    measured: bool


def recommend_for_cards(names: Iterable[str] = COMMON_CARDS) -> list[Recommendation]:
    return [recommend_for(target_of_card(resolve_card_name(name).card, FOUND_BY_NAME)) for name in names]


def recommend_for(target: PlanTarget) -> Recommendation:
    shakespeare = make_plan(
        build_config(find_recipe("shakespeare_char"), {}, target.device_type),
        target,
        known_dataset_info("shakespeare_char"),
    )
    batch = rate = None
    try:
        web = {"dataset": "fineweb_edu", "batch_tokens": 491_520}
        gpt2 = make_plan(
            build_config(find_recipe("gpt2_124m"), web, target.device_type),
            target,
            known_dataset_info("fineweb_edu"),
        )
        batch = gpt2.spec.batch.batch_size
        rate = None if gpt2.times is None else gpt2.times.pace.mid
    except UserError:  # not even one sequence fits
        pass
    return Recommendation(
        target.name,
        target.memory_bytes / 2**30,
        None if shakespeare.times is None else shakespeare.times.total_s[1],
        batch,
        rate,
        None if rate is None else GPT2_TOKENS / rate / 3600,
        _day(target),
        target.name in MEASURED_CARDS,
    )


def _day(target: PlanTarget) -> ProposedRun | None:
    config = build_config(find_recipe("gpt2_124m"), {"dataset": "fineweb_edu"}, target.device_type)
    try:
        return propose(config, target, known_dataset_info("fineweb_edu"), DAY_HOURS).best
    except UserError:
        return None
