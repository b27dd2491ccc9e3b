"""`glass tune`: from the config of a run to the fastest one on this machine, and the file it is written to.

with TrialRunner() as runner:
    tuning = tune(config, 90, runner)
tuning.tuned                                # a TrainConfig
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, raise_if_any
from glassgpt.files import atomic_write, expand_user_path
from glassgpt.flags import parse_duration
from glassgpt.format import format_count, format_duration, pluralize
from glassgpt.recipe import to_toml
from glassgpt.tune.ranking import SettingResult, TuneResult, summarize_trials
from glassgpt.tune.results import Trial
from glassgpt.tune.search import Budget, Search, TrialEvent
from glassgpt.tune.speed_settings import TUNABLE_DIMENSIONS, SpeedSettings, TuneContext, describe_dimension
from glassgpt.tune.trial_runner import TrialRunner
from glassgpt.validate import find_config_problems


@dataclass(frozen=True)
class TuneOptions:
    """Measure on this machine which settings train fastest, and write them to a file.

    PRESET and FILE as in `glass train`. Its settings may be given too, and are kept: --block_size=512. Tokens
    per update, model and precision do not change, so the loss does not either.
    """

    # How long it may take: 90s, 2m or 90.
    budget: str = "90s"
    # The file to write. Empty: tuned.toml, or tuned-2.toml, … if that exists.
    out: str = ""
    # Overwrite the file if it exists.
    force: bool = False
    # Print everything as one JSON document.
    json: bool = False
    # Vocabulary size of random tokens, if the dataset is not prepared. none: the dataset's usual one.
    vocab_size: int | None = None


def check_tune_options(options: TuneOptions) -> list[str]:
    problems = []
    if parse_duration(options.budget) is None:
        problems.append(
            f"--budget={options.budget} is not a time of at most a day: try --budget=90s or --budget=2m"
        )
    if options.vocab_size is not None and not 2 <= options.vocab_size <= 2**24:
        problems.append(f"--vocab_size={options.vocab_size} must be at least 2 and at most {2**24:,}")
    return problems


# The updates of one trial are timed for 1/60 of the budget: about twenty trials fit, start-up included.
_BUDGET_TRIALS = 60
_MIN_TRIAL_S, _MAX_TRIAL_S = 0.25, 1.5


@dataclass(frozen=True)
class Tuning:
    requested: TrainConfig
    context: TuneContext
    result: TuneResult
    budget_s: float
    took_s: float

    @property
    def tuned(self) -> TrainConfig:
        return self.context.config_with(self.requested, self.result.chosen.setting)

    def as_dict(self) -> dict[str, Any]:
        context = dataclasses.asdict(self.context)
        context.pop("automatic_settings")
        return {
            "ground": context | {"tokens": self.context.tokens_per_update},
            "budget_s": self.budget_s,
            "took_s": self.took_s,
            "trials": [_row(row) for row in self.result.rows],
            "chosen": _row(self.result.chosen),
            "sentence": self.result.summary,
            "settings": dataclasses.asdict(self.tuned),
        }


def _row(row: SettingResult) -> dict[str, Any]:
    """Flat, to be read as a table."""
    document = dataclasses.asdict(row)
    stats = document.pop("stats") or {}
    document["update_ms"] = stats["update_s"] * 1000 if stats else None
    document["first_update_s"] = stats.get("first_s")
    document["peak_bytes"] = stats.get("peak_bytes")
    return document


def check_tunable(config: TrainConfig) -> None:
    """Raises for configs that cannot be tuned."""
    problems = find_config_problems(config)
    if config.eval_only:
        problems.append("nothing is trained with --eval_only=True, so there is nothing to tune")
    if config.init_from == "resume":
        problems.append("a resumed run keeps its settings: --init_from=resume cannot be tuned")
    raise_if_any(problems)


def tune(
    config: TrainConfig,
    budget_s: float,
    runner: TrialRunner,
    *,
    fixed: Collection[str] = (),
    vocab_size: int | None = None,
    on_event: Callable[[TuneContext | TrialEvent], None] = lambda event: None,
    started_at: float | None = None,
) -> Tuning:
    """`fixed`: names of settings to keep. `started_at`: start of the budget, by time.monotonic; else now."""
    check_tunable(config)
    budget = Budget(budget_s, time.monotonic() if started_at is None else started_at)
    runner.timed_s = max(_MIN_TRIAL_S, min(_MAX_TRIAL_S, budget_s / _BUDGET_TRIALS))
    context = runner.inspect_machine(config, vocab_size, budget_s - budget.spent_s, budget_s)
    on_event(context)
    results = Search(config, context, runner.measure, budget, fixed, on_event).run()
    return Tuning(config, context, summarize_trials(results), budget_s, budget.spent_s)


def tuned_config(
    config: TrainConfig, budget_s: float, print_line: Callable[[str], None], fixed: Collection[str] = ()
) -> TrainConfig:
    """For `glass train --tune`: the fastest settings found. `fixed`: settings given by flag."""
    check_tunable(config)
    context: TuneContext | None = None

    def print_event(event: TuneContext | TrialEvent) -> None:
        nonlocal context
        if isinstance(event, TuneContext):
            context = event
            print_line(f"tuning for {context.device_name}, on {context.data}")
        elif event.trial is not None and context is not None:
            print_line(f"{describe_setting(context, event.setting)}: {describe_trial(context, event.trial)}")

    with TrialRunner() as runner:
        tuning = tune(config, budget_s, runner, fixed=fixed, on_event=print_event)
    print_line(tuning.result.summary)
    return tuning.tuned


def describe_setting(context: TuneContext, setting: SpeedSettings) -> str:
    """The micro-batch, and how it differs from a run's own choice for that micro-batch."""
    base = context.automatic_setting_at(setting.micro_batch)
    changed = [describe_dimension(setting, name) for name in setting.differences(base)]
    return ", ".join([f"micro-batch {setting.micro_batch}", *changed])


def describe_trial(context: TuneContext, trial: Trial) -> str:
    if trial.outcome != "ran":
        return trial.outcome
    return f"{format_count(context.tokens_per_update / median(trial.update_s))} tokens/s"


def tuned_file_notes(tuning: Tuning) -> list[str]:
    """Comment lines for the top of tuned.toml."""
    context, chosen, automatic = tuning.context, tuning.result.chosen, tuning.result.automatic_result
    day = time.strftime("%Y-%m-%d")
    tried = sum(row.trials for row in tuning.result.rows)
    speed = f"{format_count(chosen.tokens_per_s or 0)} tokens/s"
    if automatic is not None and automatic is not chosen and automatic.tokens_per_s and chosen.tokens_per_s:
        speed += f", where the automatic choice has {format_count(automatic.tokens_per_s)}"
    return [
        f"Measured by `glass tune` on {day}: {context.device_name}, torch {context.torch}, {context.dtype}, "
        f"{pluralize(tried, 'trial')} in {format_duration(tuning.took_s)}.",
        f"Measured on {context.data}.",
        f"{speed}. {tuning.result.summary}",
        "Tokens per update, model and precision are unchanged, so the loss is unaffected.",
    ]


def describe_automatic_setting(context: TuneContext) -> str:
    """The settings that a run would choose by itself."""
    setting = context.automatic_setting
    parts = [f"micro-batch {setting.micro_batch}"]
    parts += [
        describe_dimension(setting, name)
        for name in TUNABLE_DIMENSIONS[context.device_type]
        if name != "threads"
    ]
    if context.device_type == "cpu":
        parts.append(pluralize(context.threads, "thread"))
    return ", ".join(parts)


FILE_NAME = "tuned.toml"


def check_output_path(out: str, force: bool) -> list[str]:
    """Problems with the output file, before anything is measured."""
    path = expand_user_path(out or FILE_NAME)
    if not out:
        folder = path.absolute().parent
        is_writable = os.access(folder, os.W_OK)
        return [] if is_writable else [f"{folder} cannot be written to: choose another place with --out=FILE"]
    problems = []
    if path.is_dir():
        problems.append(f"--out={out} is a folder: name a file")
    elif not path.parent.is_dir():
        problems.append(f"--out={out}: there is no folder {path.parent}")
    elif not os.access(path.parent, os.W_OK):
        problems.append(f"--out={out}: {path.parent} cannot be written to")
    elif os.path.lexists(path) and not force:
        problems.append(f"--out={out} exists: choose another name, or --force overwrites it")
    if path.suffix != ".toml":
        problems.append(f"--out={out} must end in .toml, as `glass train` requires")
    return problems


def output_path(out: str, force: bool) -> Path:
    path = expand_user_path(out or FILE_NAME)
    number, free = 1, path
    while not out and not force and os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def write_tuned_file(text: str, out: str, force: bool) -> Path:
    """Writes the whole file or nothing."""
    raise_if_any(check_output_path(out, force))  # again: the file may have appeared meanwhile
    path = output_path(out, force)
    try:
        atomic_write(path, text.encode())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another --out=FILE") from None
    return path


def tuned_file_text(
    tuned: TrainConfig,
    requested: TrainConfig,
    name: str,
    measured_fields: Collection[str],
    notes: Sequence[str],
) -> str:
    """First the measured fields, then the others. `notes`: comment lines."""

    def toml_lines(config: TrainConfig) -> dict[str, str]:
        return {line.partition(" = ")[0]: line for line in to_toml(config).splitlines()}

    measured, others = [], []
    for field, line in toml_lines(tuned).items():
        before, now = getattr(requested, field), getattr(tuned, field)
        if field not in measured_fields and now == before:
            others.append(line)
        elif field == "eval_tokens" and requested.eval_iters is not None:
            measured.append(f"{line}  # was eval_iters = {requested.eval_iters}, which counts micro-batches")
        elif now == before:
            measured.append(f"{line}  # unchanged")
        else:
            measured.append(f"{line}  # was {'not set' if before is None else before}")
    quoted = toml_lines(TrainConfig(out_dir=f"{name}, tuned for this machine"))["out_dir"].partition(" = ")[2]
    parts = [f"# {note}" for note in notes] + [f"about = {quoted}", "", "# --- measured ---", *measured]
    return "\n".join([*parts, "", f"# --- unchanged, from {name} ---", *others]) + "\n"
