"""`--key=value` as people write it, and each value as the type of its dataclass field.

    parse_flags(["--max_iters=1e4"], TrainConfig)           # [], {"max_iters": "1e4"}, []
    check_settings({"max_iters": "1e4"}, TrainConfig)       # {"max_iters": 10000}, []

Works for any options dataclass. Problems are collected, so that all of them are reported at once.
"""

from __future__ import annotations

import difflib
import functools
import re
import types
import typing
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from glassgpt.config import ConfigValue, TrainConfig
from glassgpt.errors import UserError

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*")

_TRUE, _FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


# --- synonyms ---

# A second name that is accepted for a setting, on the command line, in files and from Python.
SYNONYMS = {
    "documents": "document_masking",
    "matrix_lr": "muon_lr",
    "closing_eval": "final_eval",
    "graph": "cuda_graph",
    "data_place": "data_device",
    "shard": "fsdp",
    "start": "prompt",
}
_SETTING_BY_SYNONYM = {synonym: setting for setting, synonym in SYNONYMS.items()}

# Values that are accepted under a name, and the values of the setting that they stand for.
_VALUE_SYNONYMS = {
    "document_masking": dict.fromkeys(_TRUE, "apart") | dict.fromkeys(_FALSE, "joined"),
    "data_device": {"gpu": "card", "cuda": "card", "cpu": "memory"},
    "kernels": {"pytorch": "plain"},
}


def setting_name(name: str, known: Container[str]) -> str:
    """The setting that `name` is a synonym of, if it is among the known ones; else `name`."""
    setting = _SETTING_BY_SYNONYM.get(name, name)
    return setting if setting in known and name not in known else name


def setting_value(name: str, value: Any) -> Any:
    """The value of the setting; `name`: as it was given."""
    values = _VALUE_SYNONYMS.get(name)
    return values.get(str(value).lower(), value) if values else value


def both_names_problem(setting: str, where: str = "") -> str:
    return f"--{setting} and --{SYNONYMS[setting]}{where} are the same setting: give one of them"


# --- names of other trainers ---

# Names that other trainers use, and names that a reader may expect. An unknown flag with one of these names
# is refused, and the message names the flag of `glass train`.
_ALIASES_BY_SETTING = {
    "n_layer": ("num_layers", "n_layers", "layers", "depth"),
    "n_head": ("num_heads", "n_heads", "heads"),
    "n_embd": ("d_model", "hidden_size", "hidden_dim", "embed_dim", "embd", "width"),
    "block_size": ("context_length", "context", "seq_len", "seq_length", "max_seq_len", "sequence_length"),
    "arch": ("architecture", "model_type"),
    "batch_size": ("micro_batch_size", "device_batch_size", "bs"),
    "batch_tokens": ("total_batch_size", "global_batch_size"),
    "gradient_accumulation_steps": ("accumulate", "grad_accum", "grad_accumulation_steps"),
    "documents=apart": ("document_mask", "mask_documents"),
    "learning_rate": ("lr", "max_lr"),
    "matrix_lr": ("muon_learning_rate",),
    "embedding_lr": ("embedding_learning_rate", "embed_lr"),
    "max_iters": ("steps", "num_steps", "max_steps", "train_steps", "num_iters", "num_iterations", "iters"),
    "weight_decay": ("wd",),
    "beta1": ("adam_beta1",),
    "beta2": ("adam_beta2",),
    "muon_steps": ("ns_steps", "ns_iters", "newton_schulz_steps", "newton_schulz_iters"),
    "grad_clip": ("clip", "max_grad_norm", "clip_grad_norm"),
    "schedule": ("lr_schedule", "lr_scheduler", "scheduler"),
    "warmup_iters": ("warmup", "warmup_steps"),
    "lr_decay_iters": ("lr_decay_steps",),
    "min_lr": ("final_lr",),
    "eval_interval": ("eval_every", "eval_steps", "val_every"),
    "patience": ("early_stopping", "early_stopping_patience"),
    "checkpoint_interval": ("save_interval", "save_every", "save_steps"),
    "keep_checkpoints": ("save_total_limit",),
    "log_interval": ("log_every", "log_steps", "logging_steps"),
    "out_dir": ("output_dir", "outdir", "run_dir"),
    "dataset": ("data",),
    "init_from": ("init", "pretrained"),
    "activation_checkpointing": ("gradient_checkpointing", "grad_checkpointing"),
    "graph": ("cuda_graphs",),
    "rank_timeout": ("ddp_timeout", "nccl_timeout"),
    "track": ("report_to", "trackers"),
    "dtype": ("amp", "precision", "mixed_precision"),
    "dtype=float16": ("fp16", "half"),
    "dtype=bfloat16": ("bf16",),
    "device=cuda": ("gpu", "cuda"),
    "device=cpu": ("cpu", "no_cuda"),
}

RESUME_HINT = (
    "--init_from=resume --out_dir=RUN resumes a run; "
    "--init_from=RUN@2000 starts a new one from its checkpoint at update 2000"
)
EPOCHS_HINT = "--max_iters counts updates: epochs x tokens in the training split / tokens per update"
_SAMPLING_HINT = "it belongs to `glass sample`"

_RESUME_ALIASES = (
    "resume", "resume_from", "resume_from_checkpoint", "ckpt", "checkpoint", "load", "load_from",
    "load_checkpoint", "continue", "restore",
)  # fmt: skip

TRAIN_HINTS = (
    {alias: f"did you mean --{name}?" for name, aliases in _ALIASES_BY_SETTING.items() for alias in aliases}
    | dict.fromkeys(_RESUME_ALIASES, RESUME_HINT)
    | dict.fromkeys(("epochs", "num_epochs", "max_epochs", "num_train_epochs"), EPOCHS_HINT)
    | dict.fromkeys(("start", "num_samples", "max_new_tokens", "temperature", "top_k"), _SAMPLING_HINT)
)


# --- the command line ---


def parse_flags(arguments: Sequence[str], options: type) -> tuple[list[str], dict[str, str], list[str]]:
    """Positional words, `--key=value` settings still as text, and syntax problems.

    `--key value` works too, and a bare `--key` means True for a setting that takes True or on. Synonyms are
    replaced by the names and values of their settings.
    """
    known = field_types(options)
    words: list[str] = []
    settings: dict[str, str] = {}
    given_names: set[str] = set()
    problems = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            words.append(argument)
            continue
        name, equals, value = argument[2:].partition("=")
        name = name.replace("-", "_")
        setting = setting_name(name, known)
        if not equals:
            field_type = known.get(setting)
            literals = typing.get_args(field_type) if typing.get_origin(field_type) is Literal else ()
            is_switch = field_type is bool or "on" in literals or "true" in _VALUE_SYNONYMS.get(name, {})
            next_word = rest[0] if rest and not rest[0].startswith("--") else None
            if is_switch and (next_word is None or next_word.lower() not in (*_TRUE, *_FALSE, *literals)):
                value = "True"
            elif next_word is not None:
                value = rest.pop(0)
            elif setting in known:
                problems.append(f"--{name} needs a value: --{name}=...")
                continue
            # An unknown name keeps the empty value: check_settings says which name is meant.
        if name in given_names:
            problems.append(f"--{name} is given twice")
        elif setting in settings:
            problems.append(both_names_problem(setting))
        given_names.add(name)
        settings[setting] = setting_value(name, value)
    return words, settings, problems


# --- settings by name ---

_HINTS_BY_OPTIONS: Mapping[type, Mapping[str, str]] = {TrainConfig: TRAIN_HINTS}


def check_settings(
    settings: Mapping[str, Any], options: type, where: str = ""
) -> tuple[dict[str, ConfigValue], list[str]]:
    """The settings with the types of `options`, and all problems. Synonyms are replaced."""
    known, hints = field_types(options), _HINTS_BY_OPTIONS.get(options, {})
    checked: dict[str, ConfigValue] = {}
    problems = []
    for name, value in settings.items():
        setting = setting_name(name, known)
        if setting not in known:
            hint = f"; {hints[name]}" if name in hints else did_you_mean(name, known)
            problems.append(f"unknown setting --{name}{where}{hint}")
            continue
        if setting != name and setting in settings:
            problems.append(both_names_problem(setting, where))
            continue
        try:
            checked[setting] = coerce_value(f"--{name}", setting_value(name, value), known[setting])
        except UserError as error:
            problems += [problem + where for problem in error.problems]
    return checked, problems


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?` for a name close to a known one, else a hint where the names are listed."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean --{close[0]}?" if close else "; --help lists them all"


# --- one value ---


@functools.cache
def field_types(options: type) -> Mapping[str, Any]:
    return typing.get_type_hints(options)


def known_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those that TrainConfig has. Another version or trainer may have written others."""
    return {name: value for name, value in settings.items() if name in field_types(TrainConfig)}


def coerce_value(name: str, value: Any, field_type: Any) -> ConfigValue:
    """`value`, from a file or as text from the command line, as the type of the field."""
    if typing.get_origin(field_type) is Literal:
        text, allowed = str(value).lower(), typing.get_args(field_type)
        if "on" in allowed and text in (*_TRUE, *_FALSE):
            text = "on" if text in _TRUE else "off"
        if text not in allowed:
            raise UserError(f"{name}={value} is not one of {', '.join(allowed)}")
        return text
    if isinstance(field_type, types.UnionType):
        if value is None or str(value).lower() in ("none", ""):
            return None
        (inner_type,) = (kind for kind in typing.get_args(field_type) if kind is not type(None))
        return coerce_value(name, value, inner_type)
    if field_type is bool:
        if str(value).lower() not in (*_TRUE, *_FALSE):
            raise UserError(f"{name}={value} is neither True nor False")
        return str(value).lower() in _TRUE
    if field_type is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and len(value) < 50 and _WHOLE_NUMBER.fullmatch(value):
            return int(value)
        number = _coerce_float(name, value)  # 1e4 is a whole number too
        if number != int(number):
            raise UserError(f"{name}={value} is not a whole number")
        return int(number)
    if field_type is float:
        return _coerce_float(name, value)
    if not isinstance(value, str | Path):
        raise UserError(f"{name} is text, not {value!r}")
    return str(value)


def _coerce_float(name: str, value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        try:
            text = str(value)
        except ValueError:  # an integer of thousands of digits
            text = "that"
        short = text if len(text) < 50 else text[:47] + "..."
        raise UserError(f"{name}={short} is not a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise UserError(f"{name}={value} is not a finite number")
    return number


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h)?")
_SECONDS = {None: 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
_MAX_DURATION_S = 24 * 3600


def parse_duration(text: str) -> float | None:
    """Seconds of 90s, 2m, 1.5h or 90; None for anything else."""
    match = _DURATION.fullmatch(text.strip().lower())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    return seconds if 0 < seconds <= _MAX_DURATION_S else None
