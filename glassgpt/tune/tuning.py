"""`glass tune` from the settings of a run to those that are fastest here.

with Workshop() as workshop:
    tuning = tune(config, 90, workshop)
tuning.tuned                                # a TrainConfig
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.format import count, duration, plural
from glassgpt.tune.ranking import Outcome, Row, outcome_of
from glassgpt.tune.search import Budget, Search, Step
from glassgpt.tune.setting import DIMENSIONS, Setting, in_words
from glassgpt.tune.tune_facts import Ground
from glassgpt.tune.worker_process import Workshop
from glassgpt.validate import find_problems

# Of the budget, how long one trial's updates are timed: about twenty trials, each with its start, fit in.
_TRIALS = 60
_SHORTEST_S, _LONGEST_S = 0.25, 1.5


@dataclass(frozen=True)
class Tuning:
    """What was asked, what was found."""

    asked: TrainConfig
    ground: Ground
    outcome: Outcome
    budget_s: float
    took_s: float

    @property
    def tuned(self) -> TrainConfig:
        return self.ground.tuned(self.asked, self.outcome.chosen.setting)

    def as_dict(self) -> dict[str, Any]:
        ground = dataclasses.asdict(self.ground)
        ground.pop("automatics")
        return {
            "ground": ground | {"tokens": self.ground.tokens},
            "budget_s": self.budget_s,
            "took_s": self.took_s,
            "trials": [_row(row) for row in self.outcome.rows],
            "chosen": _row(self.outcome.chosen),
            "sentence": self.outcome.sentence,
            "settings": dataclasses.asdict(self.tuned),
        }


def _row(row: Row) -> dict[str, Any]:
    """Flat, so that it can be read as a table."""
    document = dataclasses.asdict(row)
    figures = document.pop("figures") or {}
    document["update_ms"] = figures["update_s"] * 1000 if figures else None
    document["first_update_s"] = figures.get("first_s")
    document["peak_bytes"] = figures.get("peak_bytes")
    return document


def check(config: TrainConfig) -> None:
    """Complains about what cannot be tuned."""
    problems = find_problems(config)
    if config.eval_only:
        problems.append("nothing is trained with --eval_only=True, so there is nothing to tune")
    if config.init_from == "resume":
        problems.append("a run that goes on has its settings: --init_from=resume cannot be tuned")
    if problems:
        raise UserError(problems)


def tune(
    config: TrainConfig,
    budget_s: float,
    workshop: Workshop,
    *,
    fixed: Collection[str] = (),
    vocab_size: int | None = None,
    told: Callable[[Ground | Step], None] = lambda step: None,
    began: float | None = None,
) -> Tuning:
    """`fixed`: names of settings that shall stay. `began`: the budget, by time.monotonic; else now."""
    check(config)
    budget = Budget(budget_s, time.monotonic() if began is None else began)
    workshop.seconds = max(_SHORTEST_S, min(_LONGEST_S, budget_s / _TRIALS))
    ground = workshop.look(config, vocab_size, budget_s - budget.spent_s, budget_s)
    told(ground)
    evidence = Search(config, ground, workshop.measure, budget, fixed, told).run()
    return Tuning(config, ground, outcome_of(evidence), budget_s, budget.spent_s)


def tuned_config(
    config: TrainConfig, budget_s: float, say: Callable[[str], None], fixed: Collection[str] = ()
) -> TrainConfig:
    """For `glass train --tune`: the fastest settings found. `fixed`: what the user has said by flag."""
    check(config)
    with Workshop() as workshop:
        tuning = tune(config, budget_s, workshop, fixed=fixed, told=_Teller(say))
    say(tuning.outcome.sentence)
    return tuning.tuned


class _Teller:
    """Each trial in a line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._ground: Ground | None = None

    def __call__(self, step: Ground | Step) -> None:
        if isinstance(step, Ground):
            self._ground = step
            self._say(f"tuning for {step.device_name}, on {step.data}")
        elif step.trial is not None and self._ground is not None:
            self._say(f"{setting_in_words(self._ground, step.setting)}: {result(self._ground, step)}")


def setting_in_words(ground: Ground, setting: Setting) -> str:
    """The micro-batch, and how it differs from what a run would decide for that."""
    base = ground.automatic_at(setting.micro_batch)
    changed = [in_words(setting, name) for name in setting.differences(base)]
    return ", ".join([f"micro-batch {setting.micro_batch}", *changed])


def result(ground: Ground, step: Step) -> str:
    trial = step.trial
    if trial is None or trial.outcome != "ran":
        return "under way" if trial is None else trial.outcome
    middle = sorted(trial.update_s)[len(trial.update_s) // 2]
    return f"{count(ground.tokens / middle)} tokens/s"


def notes_of(tuning: Tuning) -> list[str]:
    """For the head of tuned.toml."""
    ground, chosen, automatic = tuning.ground, tuning.outcome.chosen, tuning.outcome.automatic
    day = time.strftime("%Y-%m-%d")
    tried = sum(row.trials for row in tuning.outcome.rows)
    speed = f"{count(chosen.tokens_per_s or 0)} tokens/s"
    if automatic is not None and automatic is not chosen and automatic.tokens_per_s and chosen.tokens_per_s:
        speed += f", where the automatic choice has {count(automatic.tokens_per_s)}"
    return [
        f"Measured by `glass tune` on {day}: {ground.device_name}, torch {ground.torch}, {ground.dtype}, "
        f"{plural(tried, 'trial')} in {duration(tuning.took_s)}.",
        f"Measured on {ground.data}.",
        f"{speed}. {tuning.outcome.sentence}",
        "Tokens per update, model and precision are as they were: so is what the run learns.",
    ]


def automatic_in_words(ground: Ground) -> str:
    """What a run would decide by itself."""
    setting = ground.automatic
    parts = [f"micro-batch {setting.micro_batch}"]
    parts += [in_words(setting, name) for name in DIMENSIONS[ground.device_type] if name != "threads"]
    if ground.device_type == "cpu":
        parts.append(plural(ground.threads, "thread"))
    return ", ".join(parts)
