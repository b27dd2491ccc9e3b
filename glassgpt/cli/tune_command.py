"""glass tune: measures in a process of its own; this one never imports torch."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from glassgpt.cli.command import make_console, print_help, recipe_from_names, wants_help
from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.flags import check_settings, did_you_mean, field_types, parse_flags
from glassgpt.recipe import DEFAULT_PRESET, Recipe, build_config
from glassgpt.tune.tuning import TuneOptions, budget_seconds, check_tune_options

if TYPE_CHECKING:
    from glassgpt.tune.tuning import Tuning
    from glassgpt.tune.worker_process import TrialRunner


class _TuneFlags(TuneOptions, TrainConfig):
    """Whatever may be said: our own options and the settings of a run."""


def tune(words: list[str]) -> int:
    if wants_help(words):
        return print_help(TuneOptions, "glass tune [PRESET|FILE] [--key=value …]")
    began = time.monotonic()
    recipe, options, flags = _parse_command_line(words)
    from glassgpt.show.terminal.tune_view import TuneConsole, print_tuned_file, print_tuning
    from glassgpt.tune import tuning
    from glassgpt.tune.speed_settings import tuned_config_fields
    from glassgpt.tune.worker_process import TrialRunner

    budget_s = budget_seconds(options.budget) or 0.0
    out = make_console(stderr=options.json)
    with TrialRunner() as workshop, TuneConsole(out, recipe.name, budget_s, quiet=options.json) as told:
        config = build_config(recipe, flags, _device_type(recipe, flags, workshop, budget_s))
        found = tuning.tune(
            config,
            budget_s,
            workshop,
            fixed=flags,
            vocab_size=options.vocab_size,
            on_event=told,
            started_at=began,
        )
    settled = tuned_config_fields(found.context.device_type)
    text = tuning.tuned_file_text(found.tuned, config, recipe.name, settled, tuning.tuned_file_notes(found))
    if not options.json:
        print_tuning(found, out)
    path = tuning.write_tuned_file(text, options.out, options.force)
    if options.json:
        _print_json(found, str(path))
    else:
        print_tuned_file(found, path, out)
    return 0


def _parse_command_line(words: list[str]) -> tuple[Recipe, TuneOptions, dict[str, str]]:
    """What to tune, how, and what shall stay; all problems at once."""
    from glassgpt.tune import tuning

    names, flags, problems = parse_flags(words, _TuneFlags)
    own = {name: flags.pop(name) for name in list(flags) if _is_own(name)}
    known, more = check_settings(own, TuneOptions)
    problems += more
    options = TuneOptions(**known)  # type: ignore[arg-type]
    problems += check_tune_options(options) + tuning.check_output_path(options.out, options.force)
    recipe = recipe_from_names(names, problems, DEFAULT_PRESET)
    if recipe is None or recipe.by_device:  # which of its tables holds is not known yet
        problems += check_settings(flags, TrainConfig)[1]
    else:
        try:
            tuning.check_tunable(build_config(recipe, flags))
        except UserError as error:
            problems += error.problems
    if problems or recipe is None:
        raise UserError(problems)
    return recipe, options, flags


def _is_own(name: str) -> bool:
    """One of our options, or misspelt so that it looks like one of ours alone."""
    ours, theirs = field_types(TuneOptions), field_types(TrainConfig)
    if name in ours or name in theirs:
        return name in ours
    return "did you mean" in did_you_mean(name, ours) and "did you mean" not in did_you_mean(name, theirs)


def _device_type(recipe: Recipe, flags: dict[str, str], workshop: TrialRunner, budget_s: float) -> str | None:
    if not recipe.by_device:
        return None
    return workshop.device_type(str({**recipe.settings, **flags}.get("device", "auto")), budget_s)


def _print_json(found: Tuning, path: str) -> None:
    from glassgpt.record import journal

    document: dict[str, Any] = {"file": path, **found.as_dict()}
    print(json.dumps(journal.nonfinite_to_words(document), indent=1, allow_nan=False))
