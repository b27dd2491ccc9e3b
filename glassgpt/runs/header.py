"""What trainers say about a run before it starts: settings, sizes, the device, where it goes on from."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable

from glassgpt.config import ConfigValue
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.numbers import parse_count
from glassgpt.runs.trainers import TRAINERS
from glassgpt.sanitize import sanitize_text

# The settings that explain a run, by the names of TrainConfig.
# fmt: off
KNOWN_SETTINGS = frozenset((
    "n_layer", "n_head", "n_embd", "block_size", "vocab_size", "bias", "dropout", "batch_size",
    "gradient_accumulation_steps", "learning_rate", "min_lr", "warmup_iters", "lr_decay_iters", "decay_lr",
    "max_iters", "weight_decay", "beta1", "beta2", "grad_clip", "eval_interval", "eval_iters", "eval_only",
    "log_interval", "always_save_checkpoint", "init_from", "dataset", "out_dir", "device", "dtype", "compile",
    "seed",
))
# fmt: on
_ALSO_CALLED = {theirs: ours for trainer in TRAINERS for theirs, ours in trainer.setting_names.items()}

_ASSIGNED = re.compile(r"""^(?:Overriding:\s*)?["']?(\w+)["']?\s*[:=]\s*([^#(]+?),?\s*(?:#.*)?$""")
_KEYWORD = re.compile(r"\b(\w+)=([^,()]+)")
_FLAG = re.compile(r"--(\w+)=(\S+)")
_TABLE = re.compile(r"^\|\s*([^|]+?)\s*\|\s*([^|]+?)\s*\|$")
_LISTED = re.compile(r"^\s*([A-Z][\w ]+?)\s*=\s*([\d,]+)\s*$")


def _record_setting(name: str, text: str, into: RunBuilder) -> None:
    known = name if name in KNOWN_SETTINGS else _ALSO_CALLED.get(name)
    if known is None:
        return
    value = _parse_value(text.strip())
    if value is not None:
        into.setup.settings[known] = value


def _parse_value(text: str) -> ConfigValue | None:
    """A number, a truth value or a word; never an expression."""
    if text in ("true", "false"):
        return text == "true"
    if "," in text and text.replace(",", "").isdigit():
        return int(text.replace(",", ""))
    try:
        value = ast.literal_eval(text) if len(text) < 200 else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text if re.fullmatch(r"[\w./:-]{1,100}", text) else None
    if isinstance(value, str):
        return sanitize_text(value)  # quoted escapes have just become real ones
    return value if isinstance(value, int | float) and math.isfinite(value) and abs(value) < 1e15 else None


def _record_count(field: str) -> Callable[[re.Match[str], RunBuilder], None]:
    def take(told: re.Match[str], into: RunBuilder) -> None:
        into.setup.values[field] = parse_count(told[1])

    return take


def _take_group(told: re.Match[str], into: RunBuilder) -> None:
    if told[1]:
        into.setup.undecayed_parameters = parse_count(told[2])
    else:
        into.setup.decayed_parameters = parse_count(told[2])


def _record_vocab_size(told: re.Match[str], into: RunBuilder) -> None:
    into.setup.settings["vocab_size"] = parse_count(told[1])


def _record_device(told: re.Match[str], into: RunBuilder) -> None:
    into.setup.values["device_name"] = told[1].strip()


def _record_peak_flops(told: re.Match[str], into: RunBuilder) -> None:
    into.setup.values["peak_flops"] = float(told[1]) * (1e12 if float(told[1]) < 1e6 else 1)


def _record_process_start(told: re.Match[str], into: RunBuilder) -> None:
    into.start_process()


def _command(told: re.Match[str], into: RunBuilder) -> None:
    into.mark_process_start()


def _resume(told: re.Match[str], into: RunBuilder) -> None:
    into.start_process(resumed=True)


def _compiles(told: re.Match[str], into: RunBuilder) -> None:
    into.setup.settings.setdefault("compile", True)


def _take_trainable(told: re.Match[str], into: RunBuilder) -> None:
    """The frozen ones are named apart; together they are the model."""
    if told[1]:
        into.setup.frozen_parameters = parse_count(told[2])
    else:
        into.setup.trainable_parameters = parse_count(told[2])
    known = into.setup.values.get("parameters")
    total = into.setup.trainable_parameters + into.setup.frozen_parameters
    into.setup.values["parameters"] = max(total, known if isinstance(known, int) else 0)


def _record_world_size(told: re.Match[str], into: RunBuilder) -> None:
    into.setup.values["world_size"] = parse_count(told[1])


_N = r"([\d,.]+\s?[kKMBG]?)"
# A shell's prompt, or its `set -x`, and a program that trains.
_PROMPT = r"^(?:[^$#%❯]{0,80}[$#%❯]|\+) (?:[A-Z_]{1,30}=\S{1,80} |(?:nohup|time|sudo) ){0,6}(?:\S{0,80}/)?"
_LAUNCHERS = ("uv", "torchrun", "accelerate", "deepspeed", "srun", "mpirun")
_PROGRAMS = {"python": r"[\d.]{0,4}"} | dict.fromkeys(
    (*_LAUNCHERS, *(trainer.command for trainer in TRAINERS if trainer.command)), ""
)
_RULES: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str], RunBuilder], None]], ...] = (
    # First whose lines these are, then what they say.
    ("tokens per iteration", re.compile(r"tokens per iteration will be"), _record_process_start),
    ("train data", re.compile(r"^\|\s*train data pattern\s*\|"), _record_process_start),
    ("otal", re.compile(r"^\|\s*total batch size\s*\|"), _record_process_start),
    ("number of parameters", re.compile(r"^\W*number of parameters: "), _record_process_start),
    ("Resuming", re.compile(r"Resuming (?:training|optimization) from"), _resume),
    ("Initializing", re.compile(r"Initializing (?:a new model from scratch|from OpenAI GPT-2 weights)"),
     _record_process_start),
    ("Overriding config", re.compile(r"Overriding config with "), _record_process_start),
    ("otal desired", re.compile(r"^total desired batch size:\s*\d"), _record_process_start),
    ("Autodetected", re.compile(r"^Autodetected device type: "), _record_process_start),
    *((name, re.compile(rf"{_PROMPT}{name}{version}\s"), _command) for name, version in _PROGRAMS.items()),
    ("tokens per iteration", re.compile(rf"tokens per iteration will be:\s*{_N}\s*$"),
     _record_count("tokens_per_iteration")),
    ("otal", re.compile(rf"total desired batch size:\s*{_N}"), _record_count("tokens_per_iteration")),
    ("otal", re.compile(rf"Total batch size {_N}"), _record_count("tokens_per_iteration")),
    ("otal", re.compile(rf"^\|\s*total batch size\s*\|\s*{_N}"), _record_count("tokens_per_iteration")),
    ("train_batch_tokens", re.compile(rf"\btrain_batch_tokens:\s*{_N}"), _record_count("tokens_per_iteration")),
    ("otal", re.compile(rf"\band total_batch_size=\s*{_N}"), _record_count("tokens_per_iteration")),
    ("otal", re.compile(rf"^\W*total\s*:\s*{_N}\s*$"), _record_count("parameters")),
    ("otal", re.compile(rf"Total optimization steps = {_N}"), _record_count("planned_iterations")),
    ("accumulation steps", re.compile(rf"gradient accumulation steps:\s*{_N}"),
     lambda told, into: _record_setting("gradient_accumulation_steps", told[1], into)),
    ("grad_accum_steps", re.compile(rf"setting grad_accum_steps={_N}"),
     lambda told, into: _record_setting("gradient_accumulation_steps", told[1], into)),
    ("parameters", re.compile(rf"(?<!able )(?<!\w)[Nn]umber of parameters:?\s*=?\s*{_N}"),
     _record_count("parameters")),
    ("param", re.compile(rf"(?:Total|Model|model)[ _]param(?:eter)?s:?\s*{_N}"), _record_count("parameters")),
    ("total parameters", re.compile(rf"\bsize: {_N} total parameters"), _record_count("parameters")),
    ("parameters", re.compile(rf"num_parameters\s*[:|]\s*{_N}"), _record_count("parameters")),
    ("parameters", re.compile(rf"Number of (non[- ])?trainable parameters\s*[:=]\s*{_N}"), _take_trainable),
    ("parameters", re.compile(rf"num (non-)?decayed parameter tensors: [\d,]+, with {_N} parameters"),
     _take_group),
    ("vocab", re.compile(rf"found vocab_size = {_N}"), _record_vocab_size),
    ("vocab", re.compile(rf"defaulting to vocab_size of GPT-2 to {_N}"), _record_vocab_size),
    ("ocab size", re.compile(rf"Vocab size: {_N}"), _record_vocab_size),
    ("FLOPs per token", re.compile(r"FLOPs per token:\s*([\d.]+e[+-]?\d+)"),
     lambda told, into: into.setup.values.update(flops_per_token=float(told[1]))),
    ("compiling the model", re.compile("compiling the model"), _compiles),
    ("using device", re.compile(r"using device:\s*(\S+)"),
     lambda told, into: _record_setting("device", told[1], into)),
    ("device", re.compile(r"^\|\s*device\s*\|\s*([^|]+?)\s*\|"), _record_device),
    ("GPU", re.compile(r"^\W*GPU:\s*(NVIDIA [\w -]+|AMD [\w -]+)"), _record_device),
    ("eak", re.compile(r"^\|\s*peak TFlops\s*\|\s*([\d.]+)"), _record_peak_flops),
    ("eak", re.compile(r"Peak FLOPS \(BF16\):\s*([\d.]+e[+-]?\d+)"), _record_peak_flops),
    ("num_processes", re.compile(rf"num_processes\s*[|=]\s*{_N}"), _record_world_size),
    ("world_size", re.compile(rf"\bworld_size[:= ]+{_N}"), _record_world_size),
)  # fmt: skip


def read_header(line: str, into: RunBuilder) -> None:
    """Take what the line says about the run as a whole."""
    for needle, pattern, take in _RULES:
        if needle in line and (told := pattern.search(line)):
            try:
                take(told, into)
            except ValueError:
                continue  # "number of parameters: ..." is said, but not how many
    if into.last_iteration is None:  # once it runs, such lines are samples and noise
        _read_settings(line, into)


def _read_settings(line: str, into: RunBuilder) -> None:
    if ("=" not in line and ":" not in line and "|" not in line) or len(line) > 2000:
        return
    if "--" in line and ".py" in line:
        for name, text in _FLAG.findall(line):
            _record_setting(name, text, into)
    elif told := _TABLE.match(line) or _LISTED.match(line) or _ASSIGNED.match(line):
        _record_setting(told[1], told[2], into)
    elif "=" in line:
        for name, text in _KEYWORD.findall(line):
            _record_setting(name, text, into)
