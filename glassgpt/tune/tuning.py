"""`glass tune` from the settings of a run to those that are fastest here.

with Workshop() as workshop:
    tuning = tune(config, 90, workshop)
tuning.tuned                                # a TrainConfig
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.format import format_count
from glassgpt.format import format_duration
from glassgpt.format import pluralize
from glassgpt.tune.ranking import SettingResult
from glassgpt.tune.ranking import TuneResult
from glassgpt.tune.ranking import summarize_trials
from glassgpt.tune.search import Budget
from glassgpt.tune.search import Search
from glassgpt.tune.search import TrialEvent
from glassgpt.tune.setting import TUNABLE_DIMENSIONS
from glassgpt.tune.setting import SpeedSettings
from glassgpt.tune.setting import describe_dimension
from glassgpt.tune.tune_facts import TuneContext
from glassgpt.tune.worker_process import TrialRunner
from glassgpt.validate import find_config_problems

# Of the budget, how long one trial's updates are timed: about twenty trials, each with its start, fit in.
_BUDGET_TRIALS = 60
_MIN_TRIAL_S, _MAX_TRIAL_S = 0.25, 1.5


@dataclass(frozen=True)
class Tuning:
    """What was asked, what was found."""

    requested: TrainConfig
    context: TuneContext
    result: TuneResult
    budget_s: float
    took_s: float

    @property
    def tuned(self) -> TrainConfig:
        return self.context.config_with(self.requested, self.result.chosen.setting)

    def as_dict(self) -> dict[str, Any]:
        ground = dataclasses.asdict(self.context)
        ground.pop("automatics")
        return {
            "ground": ground | {"tokens": self.context.tokens_per_update},
            "budget_s": self.budget_s,
            "took_s": self.took_s,
            "trials": [_row(row) for row in self.result.rows],
            "chosen": _row(self.result.chosen),
            "sentence": self.result.summary,
            "settings": dataclasses.asdict(self.tuned),
        }


def _row(row: SettingResult) -> dict[str, Any]:
    """Flat, so that it can be read as a table."""
    document = dataclasses.asdict(row)
    figures = document.pop("figures") or {}
    document["update_ms"] = figures["update_s"] * 1000 if figures else None
    document["first_update_s"] = figures.get("first_s")
    document["peak_bytes"] = figures.get("peak_bytes")
    return document


def check_tunable(config: TrainConfig) -> None:
    """Complains about what cannot be tuned."""
    problems = find_config_problems(config)
    if config.eval_only:
        problems.append("nothing is trained with --eval_only=True, so there is nothing to tune")
    if config.init_from == "resume":
        problems.append("a run that goes on has its settings: --init_from=resume cannot be tuned")
    if problems:
        raise UserError(problems)


def tune(
    config: TrainConfig,
    budget_s: float,
    workshop: TrialRunner,
    *,
    fixed: Collection[str] = (),
    vocab_size: int | None = None,
    told: Callable[[TuneContext | TrialEvent], None] = lambda step: None,
    began: float | None = None,
) -> Tuning:
    """`fixed`: names of settings that shall stay. `began`: the budget, by time.monotonic; else now."""
    check_tunable(config)
    budget = Budget(budget_s, time.monotonic() if began is None else began)
    workshop.timed_s = max(_MIN_TRIAL_S, min(_MAX_TRIAL_S, budget_s / _BUDGET_TRIALS))
    ground = workshop.inspect_machine(config, vocab_size, budget_s - budget.spent_s, budget_s)
    told(ground)
    evidence = Search(config, ground, workshop.measure, budget, fixed, told).run()
    return Tuning(config, ground, summarize_trials(evidence), budget_s, budget.spent_s)


def tuned_config(
    config: TrainConfig, budget_s: float, say: Callable[[str], None], fixed: Collection[str] = ()
) -> TrainConfig:
    """For `glass train --tune`: the fastest settings found. `fixed`: what the user has said by flag."""
    check_tunable(config)
    with TrialRunner() as workshop:
        tuning = tune(config, budget_s, workshop, fixed=fixed, told=_ProgressPrinter(say))
    say(tuning.result.summary)
    return tuning.tuned


class _ProgressPrinter:
    """Each trial in a line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._ground: TuneContext | None = None

    def __call__(self, step: TuneContext | TrialEvent) -> None:
        if isinstance(step, TuneContext):
            self._ground = step
            self._say(f"tuning for {step.device_name}, on {step.data}")
        elif step.trial is not None and self._ground is not None:
            self._say(f"{describe_setting(self._ground, step.setting)}: {describe_trial(self._ground, step)}")


def describe_setting(ground: TuneContext, setting: SpeedSettings) -> str:
    """The micro-batch, and how it differs from what a run would decide for that."""
    base = ground.automatic_setting_at(setting.micro_batch)
    changed = [describe_dimension(setting, name) for name in setting.differences(base)]
    return ", ".join([f"micro-batch {setting.micro_batch}", *changed])


def describe_trial(ground: TuneContext, step: TrialEvent) -> str:
    trial = step.trial
    if trial is None or trial.outcome != "ran":
        return "under way" if trial is None else trial.outcome
    middle = sorted(trial.update_s)[len(trial.update_s) // 2]
    return f"{format_count(ground.tokens_per_update / middle)} tokens/s"


def tuned_file_notes(tuning: Tuning) -> list[str]:
    """For the head of tuned.toml."""
    ground, chosen, automatic = tuning.context, tuning.result.chosen, tuning.result.automatic_result
    day = time.strftime("%Y-%m-%d")
    tried = sum(row.trials for row in tuning.result.rows)
    speed = f"{format_count(chosen.tokens_per_s or 0)} tokens/s"
    if automatic is not None and automatic is not chosen and automatic.tokens_per_s and chosen.tokens_per_s:
        speed += f", where the automatic choice has {format_count(automatic.tokens_per_s)}"
    return [
        f"Measured by `glass tune` on {day}: {ground.device_name}, torch {ground.torch}, {ground.dtype}, "
        f"{pluralize(tried, 'trial')} in {format_duration(tuning.took_s)}.",
        f"Measured on {ground.data}.",
        f"{speed}. {tuning.result.summary}",
        "Tokens per update, model and precision are as they were: so is what the run learns.",
    ]


def describe_automatic_setting(ground: TuneContext) -> str:
    """What a run would decide by itself."""
    setting = ground.automatic_setting
    parts = [f"micro-batch {setting.micro_batch}"]
    parts += [
        describe_dimension(setting, name)
        for name in TUNABLE_DIMENSIONS[ground.device_type]
        if name != "threads"
    ]
    if ground.device_type == "cpu":
        parts.append(pluralize(ground.threads, "thread"))
    return ", ".join(parts)
