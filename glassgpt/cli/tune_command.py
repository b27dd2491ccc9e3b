"""glass tune: measure which settings train fastest on this machine.

    glass tune gpt2_124m --budget=2m

The trials run in a separate process; this one never imports torch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from glassgpt.cli.command import command, make_console, print_json, recipe_from_names
from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, collect_problems
from glassgpt.flags import check_settings, did_you_mean, field_types, parse_duration, parse_flags
from glassgpt.recipe import DEFAULT_PRESET, Recipe, build_config
from glassgpt.tune.tuning import TuneOptions, check_tune_options


@dataclass(frozen=True)
class _TuneFlags(TuneOptions, TrainConfig):
    """All flags of `glass tune`: its options and the settings of a run."""


@command("glass tune [PRESET|FILE]", TuneOptions, _TuneFlags)
def tune(words: list[str]) -> int:
    started = time.monotonic()
    recipe, options, flags = _parse_command_line(words)
    from glassgpt.show.terminal.tune_view import TuneConsole, print_tuned_file, print_tuning
    from glassgpt.tune import tuning
    from glassgpt.tune.speed_settings import tuned_config_fields
    from glassgpt.tune.trial_runner import TrialRunner

    budget_s = parse_duration(options.budget) or 0.0
    out = make_console(stderr=options.json)
    with TrialRunner() as runner, TuneConsole(out, recipe.name, budget_s, quiet=options.json) as console:
        device_type = None
        if recipe.by_device:
            device = str({**recipe.settings, **flags}.get("device", "auto"))
            device_type = runner.device_type(device, budget_s)
        config = build_config(recipe, flags, device_type)
        result = tuning.tune(
            config,
            budget_s,
            runner,
            fixed=flags,
            vocab_size=options.vocab_size,
            on_event=console,
            started_at=started,
        )
    tuned_fields = tuned_config_fields(result.context.device_type)
    notes = tuning.tuned_file_notes(result)
    text = tuning.tuned_file_text(result.tuned, config, recipe.name, tuned_fields, notes)
    if not options.json:
        print_tuning(result, out)
    path = tuning.write_tuned_file(text, options.out, options.force)
    if options.json:
        print_json({"file": str(path), **result.as_dict()})
    else:
        print_tuned_file(result, path, out)
    return 0


def _parse_command_line(words: list[str]) -> tuple[Recipe, TuneOptions, dict[str, str]]:
    """What to tune, the options, and the flags of settings, which stay as given; all problems at once."""
    from glassgpt.tune import tuning

    names, flags, problems = parse_flags(words, _TuneFlags)
    option_fields, config_fields = field_types(TuneOptions), field_types(TrainConfig)
    option_flags = {}
    for name in list(flags):
        is_option = name in option_fields
        if not is_option and name not in config_fields:  # misspelt: which of the two is it like?
            is_option = "did you mean" in did_you_mean(name, option_fields)
            is_option &= "did you mean" not in did_you_mean(name, config_fields)
        if is_option:
            option_flags[name] = flags.pop(name)
    values, option_problems = check_settings(option_flags, TuneOptions)
    problems += option_problems
    options = TuneOptions(**values)  # type: ignore[arg-type]
    problems += check_tune_options(options) + tuning.check_output_path(options.out, options.force)
    recipe = recipe_from_names(names, problems, DEFAULT_PRESET)
    if recipe is None or recipe.by_device:  # which of its tables applies is not known yet
        problems += check_settings(flags, TrainConfig)[1]
    else:
        with collect_problems(problems):
            tuning.check_tunable(build_config(recipe, flags))
    if problems or recipe is None:
        raise UserError(problems)
    return recipe, options, flags
