"""What trainers print about a run before its first step: settings, sizes, the device, whether it resumes.

Every trainer's patterns (`Trainer.header`) are tried on every log: forks print each other's lines. Below are
only those that belong to no trainer in particular.
"""

from __future__ import annotations

import ast
import math
import re

from glassgpt.config import ConfigValue
from glassgpt.runs.builder import PROMPT, RunBuilder
from glassgpt.runs.log_numbers import COUNT, MAX_COUNT, parse_count
from glassgpt.runs.trainer import HeaderPattern
from glassgpt.runs.trainers import TRAINERS
from glassgpt.sanitize import sanitize_text

# The settings that explain a run, by the names of TrainConfig.
# fmt: off
KNOWN_SETTINGS = frozenset((
    "n_layer", "n_head", "n_embd", "block_size", "vocab_size", "bias", "dropout", "batch_size",
    "gradient_accumulation_steps", "learning_rate", "min_lr", "warmup_iters", "lr_decay_iters", "decay_lr",
    "max_iters", "weight_decay", "beta1", "beta2", "grad_clip", "eval_interval", "eval_iters", "eval_only",
    "log_interval", "always_save_checkpoint", "init_from", "dataset", "out_dir", "device", "dtype", "compile",
    "seed", "wsd_decay_fraction", "wsd_decay_iters",
))
# fmt: on
_SETTING_ALIASES = {alias: name for trainer in TRAINERS for alias, name in trainer.setting_names.items()}

# The forms in which settings are printed. `Overriding: ` is by nanoGPT's configurator.py and its many copies.
_ASSIGNMENT = re.compile(r"""^(?:Overriding:\s*)?["']?(\w+)["']?\s*[:=]\s*([^#(]+?),?\s*(?:#.*)?$""")
_KEYWORD_ARGUMENT = re.compile(r"\b(\w+)=([^,()]+)")
_FLAG = re.compile(r"--(\w+)=(\S+)")
_TABLE_ROW = re.compile(r"^\|\s*([^|]+?)\s*\|\s*([^|]+?)\s*\|$")
_LIST_ITEM = re.compile(r"^\s*([A-Z][\w ]+?)\s*=\s*([\d,]+)\s*$")

# A shell's prompt, or its `set -x`, and a program that trains.
_PROMPT = r"^(?:[^$#%❯]{0,80}[$#%❯]|\+) (?:[A-Z_]{1,30}=\S{1,80} |(?:nohup|time|sudo) ){0,6}(?:\S{0,80}/)?"
_LAUNCHERS = ("uv", "torchrun", "accelerate", "deepspeed", "srun", "mpirun")
_PROGRAMS = {"python": r"[\d.]{0,4}"} | dict.fromkeys(
    (*_LAUNCHERS, *(trainer.command for trainer in TRAINERS if trainer.command)), ""
)
_COMMANDS = [(name, re.compile(rf"{_PROMPT}{name}{version}\s")) for name, version in _PROGRAMS.items()]

_OF_ANY_TRAINER = (
    HeaderPattern(
        "parameters",
        re.compile(rf"(?<!able )(?<!\w)[Nn]umber of parameters:?\s*=?\s*{COUNT}"),
        "parameters",
    ),
    HeaderPattern(
        "param", re.compile(rf"(?:Total|Model|model)[ _]param(?:eter)?s:?\s*{COUNT}"), "parameters"
    ),
    HeaderPattern(
        "aram",
        re.compile(rf"(?:^|\| )(?:Model )?(?:Param(?:eter)?s|Parameter [Cc]ount):\s*{COUNT}(?=$|[\s|])"),
        "parameters",
    ),
    HeaderPattern("total parameters", re.compile(rf"\bsize: {COUNT} total parameters"), "parameters"),
    HeaderPattern(
        "parameters", re.compile(rf"Number of trainable parameters\s*[:=]\s*{COUNT}"), "trainable_parameters"
    ),
    HeaderPattern(
        "parameters",
        re.compile(rf"Number of non[- ]trainable parameters\s*[:=]\s*{COUNT}"),
        "frozen_parameters",
    ),
    HeaderPattern("using device", re.compile(r"using device:\s*(\S+)"), "device"),
    HeaderPattern(
        "world", re.compile(rf"(?<![*/] )\b(?:ddp_)?world[_ ]size[:= ]+{COUNT}", re.I), "world_size"
    ),
    # As the program reports it: a config may set tensor_parallel, and a trainer without it ignore that.
    *(
        HeaderPattern(name, re.compile(rf"\b{name}(?:_size|_degree)?\s?[=:]\s*{COUNT}"), field)
        for name, field in (
            ("tp_size", "tensor_parallel"),
            ("pp_size", "pipeline_parallel"),
            ("dp_size", "data_parallel"),
            ("tensor_model_parallel", "tensor_parallel"),
            ("pipeline_model_parallel", "pipeline_parallel"),
        )
    ),
)
_COUNTS = (
    "parameters", "tokens_per_iteration", "planned_iterations",
    "world_size", "tensor_parallel", "pipeline_parallel", "data_parallel",
)  # fmt: skip
_PATTERNS = sorted(
    (*(pattern for trainer in TRAINERS for pattern in trainer.header), *_OF_ANY_TRAINER),
    # A process's start first: it discards earlier settings.
    key=lambda pattern: pattern.field not in ("", "resumed"),
)


def read_header(line: str, builder: RunBuilder) -> None:
    """Record what the line says about the run as a whole."""
    for program, pattern in _COMMANDS:
        if program in line and pattern.search(line):
            builder.mark_process_start(PROMPT)
    for substring, pattern, field in _PATTERNS:
        if substring in line and (match := pattern.search(line)):
            try:
                _record(field, match[match.lastindex or 0], line, builder)
            except ValueError:
                continue  # "number of parameters: ..."

    # Once it trains, lines that look like settings are samples and noise.
    is_too_late = builder.last_iteration is not None
    if is_too_late or len(line) > 2000 or not ("=" in line or ":" in line or "|" in line):
        return
    if "--" in line and ".py" in line:
        for name, text in _FLAG.findall(line):
            _record_setting(name, text, builder)
    elif match := _TABLE_ROW.match(line) or _LIST_ITEM.match(line) or _ASSIGNMENT.match(line):
        _record_setting(match[1], match[2], builder)
    elif "=" in line:
        for name, text in _KEYWORD_ARGUMENT.findall(line):
            _record_setting(name, text, builder)


def _record(field: str, text: str, line: str, builder: RunBuilder) -> None:
    """Raises ValueError where a count or a number is expected, and the text is none."""
    setup = builder.setup
    if field == "":
        builder.start_process(text=line)
    elif field == "resumed":
        builder.start_process(resumed=True, text=line)
    elif field == "compile":
        setup.settings.setdefault("compile", True)
    elif field in _COUNTS:
        setup.values[field] = parse_count(text)
    elif field in ("decayed_parameters", "undecayed_parameters"):
        setattr(setup, field, parse_count(text))
    elif field in ("trainable_parameters", "frozen_parameters"):
        setattr(setup, field, parse_count(text))
        total, known = setup.trainable_parameters + setup.frozen_parameters, setup.values.get("parameters")
        setup.values["parameters"] = max(total, known if isinstance(known, int) else 0)
    elif field == "vocab_size":
        setup.settings[field] = parse_count(text)
    elif field == "flops_per_token":
        setup.values[field] = float(text)
    elif field == "peak_flops":
        peak = float(text)
        setup.values[field] = peak * 1e12 if peak < 1e6 else peak  # some print TFLOP/s
    elif field == "device_name":
        setup.values[field] = text.strip()
    else:
        _record_setting(field, text, builder)


def _record_setting(name: str, text: str, builder: RunBuilder) -> None:
    known_name = known_setting_name(name)
    value = None if known_name is None else parse_setting(text)
    if known_name is not None and value is not None:
        builder.setup.settings[known_name] = value


def known_setting_name(name: str) -> str | None:
    """TrainConfig's name of a setting, by that or by a trainer's own name."""
    return name if name in KNOWN_SETTINGS else _SETTING_ALIASES.get(name)


def parse_setting(text: str) -> ConfigValue | None:
    """A number, a truth value or a word; never an expression. None: not a setting's value."""
    text = text.strip()
    value: ConfigValue | None = None
    if text in ("true", "false"):
        value = text == "true"
    elif "," in text and text.replace(",", "").isdigit():
        value = int(text.replace(",", ""))
    elif len(text) < 200:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = text if re.fullmatch(r"[\w./:-]{1,100}", text) else None
        else:
            if isinstance(value, str):
                value = sanitize_text(value)  # escape sequences in the quotes have just become real ones
            elif not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > MAX_COUNT:
                value = None
    return value
