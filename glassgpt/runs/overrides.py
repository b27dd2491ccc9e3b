"""Settings from the command line for logs that do not have them: `--a.n_layer=12 --b.parameters=33M`.

    overrides = parse_overrides(["--a.n_layer=12", "--b.config=config/train_gpt2.py"], runs=2)
    run_log = apply_overrides(run_log, overrides[0])

The letter is the run's place on the command line. A flag has priority over the log, and the log over a config
file, whose settings the run's own command line may have overridden.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glassgpt.config import DEVICE_TYPES, ConfigValue, TrainConfig
from glassgpt.errors import UserError
from glassgpt.flags import check_settings, coerce_value, field_types, setting_name, setting_value
from glassgpt.recipe import find_recipe
from glassgpt.runs.log_numbers import MAX_COUNT, MAX_FLOPS
from glassgpt.runs.run_log import RunLog
from glassgpt.validate import find_config_problems

# Fields of LoggedSetup that a flag can set.
_SETUP_FIELDS: Mapping[str, Any] = {
    "parameters": int,
    "tokens_per_iteration": int,
    "flops_per_token": float,
    "device_name": str,
    "peak_flops": float,
    "world_size": int,
    "planned_iterations": int,
    "memory_bytes": int,
    "bytes_per_token": float,
}
_DATA_FIELDS: Mapping[str, Any] = {"vocab_size": int, "tokenizer": str}
_DERIVED_FROM = {
    "tokens_per_iteration": ("batch_size", "block_size", "gradient_accumulation_steps"),
    "flops_per_token": ("n_layer", "n_embd", "block_size"),
}
_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_NUMBER_WITH_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmbgt])\s*", re.IGNORECASE)
_FLAG = re.compile(r"--([A-Za-z]{1,2})\.([^=]*)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True)
class RunOverrides:
    """What the command line says about one run."""

    from_config: Mapping[str, ConfigValue] = field(default_factory=dict)
    from_flags: Mapping[str, ConfigValue] = field(default_factory=dict)


def is_override_flag(argument: str) -> bool:
    """Whether it is `--a.key` or `--a.key=value`."""
    return _FLAG.fullmatch(argument) is not None


def parse_overrides(arguments: Sequence[str], runs: int) -> list[RunOverrides]:
    """One for each run, in order. Every argument is such a flag, or the value of the previous one."""
    files: list[dict[str, ConfigValue]] = [{} for _ in range(runs)]
    flags: list[dict[str, ConfigValue]] = [{} for _ in range(runs)]
    problems: list[str] = []
    for flag, value in _split_flags(arguments, problems):
        match = _FLAG.fullmatch(flag)
        letter, name = (match[1].lower(), match[2].replace("-", "_")) if match else ("", flag)
        name, value = setting_name(name, field_types(TrainConfig)), setting_value(name, value)
        index = -1
        for char in letter:  # a is 0, z is 25, aa is 26
            index = (index + 1) * 26 + ord(char) - ord("a")
        if not 0 <= index < runs:
            count = "is only 1 run" if runs == 1 else f"are only {runs} runs"
            problems.append(f"{flag} is for run {letter.upper() or '?'}, but there {count}")
            continue
        try:
            if name == "config":
                files[index] |= _config_file_settings(value)
            else:
                flags[index][name] = _parse_value(letter, name, value)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    return [RunOverrides(file, flag) for file, flag in zip(files, flags, strict=True)]


def _split_flags(arguments: Sequence[str], problems: list[str]) -> list[tuple[str, str]]:
    """`--a.key=value` and `--a.key value`, as flag and value."""
    pairs = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        match = _FLAG.fullmatch(argument)
        if match is None:
            problems.append(f"{argument} is not a setting of a run; write --a.KEY=VALUE")
        elif match[3] is not None:
            pairs.append((argument.partition("=")[0], match[3]))
        elif rest and not rest[0].startswith("--"):
            pairs.append((argument, rest.pop(0)))
        else:
            problems.append(f"{argument} needs a value: {argument}=...")
    return pairs


def _parse_value(letter: str, name: str, text: str) -> ConfigValue:
    known: Mapping[str, Any] = {**field_types(TrainConfig), **_SETUP_FIELDS, **_DATA_FIELDS}
    if name not in known:
        # Also for names of other trainers, which `glass train` knows.
        _, problems = check_settings({name: ""}, TrainConfig)
        suggested = re.search(r"did you mean --(\w+)", " ".join(problems))
        close = difflib.get_close_matches(name, [*known, "config"], n=1, cutoff=0.6)
        best = suggested[1] if suggested else close[0] if close else None
        others = ", ".join([*_SETUP_FIELDS, *_DATA_FIELDS, "config"])
        hint = (
            f"did you mean --{letter}.{best}?"
            if best
            else f"it takes the settings of `glass train`, and {others}"
        )
        raise UserError(f"unknown setting --{letter}.{name}; {hint}")
    wanted_type = known[name]
    unit = _NUMBER_WITH_UNIT.fullmatch(text)
    if unit and wanted_type in (int, float, int | None, float | None):
        number = float(unit[1]) * _UNITS[unit[2].lower()]
        if not math.isfinite(number):
            raise UserError(f"--{letter}.{name} is not a finite number")
        value: ConfigValue = round(number) if wanted_type in (int, int | None) else number
    else:
        value = coerce_value(f"--{letter}.{name}", text, wanted_type)
    need = _unmet_requirement(name, value)
    if need:
        raise UserError(f"--{letter}.{name}={text} must be {need}")
    return value


def _unmet_requirement(name: str, value: ConfigValue) -> str | None:
    """What the number must be and is not, by the rules of `glass train` for a single setting."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    is_rate = name in ("flops_per_token", "peak_flops")
    if value >= (MAX_FLOPS if is_rate else MAX_COUNT) and name != "seed":
        return "below 10^30" if is_rate else "below 10^15"
    if name in (*_SETUP_FIELDS, *_DATA_FIELDS):
        return None if value > 0 else "greater than 0"
    alone: Any = {name: value}
    start = f"--{name}={value} must be "
    problems = find_config_problems(dataclasses.replace(TrainConfig(), **alone))
    return next((one.removeprefix(start) for one in problems if one.startswith(start)), None)


def _config_file_settings(name: str) -> dict[str, ConfigValue]:
    """The settings of the file, over the defaults that it relies on. No code in it is executed."""
    recipe = find_recipe(name)
    settings: dict[str, ConfigValue] = {**dataclasses.asdict(TrainConfig()), **recipe.settings}
    device = str(settings["device"]).partition(":")[0]
    if device in DEVICE_TYPES:
        settings |= recipe.by_device.get(device, {})
    problems = [
        f"{name}: {key}={value} must be {need}"
        for key, value in settings.items()
        if (need := _unmet_requirement(key, value)) is not None
    ]
    if problems:
        raise UserError(problems)
    return {key: value for key, value in settings.items() if value not in (None, "", "auto")}


def apply_overrides(run_log: RunLog, overrides: RunOverrides) -> RunLog:
    """The run as if its log had these settings."""
    flags = dict(overrides.from_flags)
    fields: dict[str, Any] = {name: flags.pop(name) for name in _SETUP_FIELDS if name in flags}
    fields |= {"parameters_are_claimed": True} if "parameters" in fields else {}
    data = dict(run_log.setup.data)
    if "tokenizer" in flags:
        data["tokenizer"] = flags.pop("tokenizer")
    for name, sources in _DERIVED_FROM.items():
        if all(source in flags for source in sources):
            fields.setdefault(name, None)  # the log's value was computed from settings that flags correct
    settings = {**overrides.from_config, **run_log.setup.settings, **flags}
    setup = dataclasses.replace(run_log.setup, settings=settings, data=data, **fields)
    return dataclasses.replace(run_log, setup=setup)
