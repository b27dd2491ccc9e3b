"""What differs between runs: settings, data, machine, code, versions; and whether losses are comparable.

    find_differences([log_a, log_b])       # each with what it affects: loss, speed, both or neither
    check_comparability(run_a, run_b)      # same data, tokens and metric?

Losses per token of different tokenizers are not comparable. Bits per byte are, where the logs say how many
bytes a token has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from glassgpt.compare.compared_run import ComparedRun
from glassgpt.estimate import loss_law
from glassgpt.i18n import Message, say
from glassgpt.runs.log_numbers import MAX_COUNT
from glassgpt.runs.run_log import RunLog

DifferenceGroup = Literal["configuration", "data", "machine", "code", "versions"]
GROUPS: tuple[DifferenceGroup, ...] = ("configuration", "data", "machine", "code", "versions")
AffectedMetric = Literal["loss", "speed", "both", "neither"]
SettingValue = str | int | float | bool | None


@dataclass(frozen=True)
class Difference:
    group: DifferenceGroup
    name: str
    values: tuple[SettingValue, ...]  # one per run; None: not in its log
    affects: AffectedMetric

    @property
    def is_known(self) -> bool:
        """False: the logs that have a value agree, and others have none."""
        return len({_normalised(value) for value in self.values if value is not None}) > 1

    @property
    def affects_loss(self) -> bool:
        return self.affects in ("loss", "both")


# What the loss depends on, given the data. Precision and hardware are left out: they only round it.
_LOSS_AND_SPEED_SETTINGS = (
    "n_layer", "n_embd", "block_size", "arch", "vocab_size", "batch_tokens", "tokens_per_iteration",
    "activation", "optimizer",
)  # fmt: skip
_LOSS_SETTINGS = (
    "n_head", "dropout", "bias", "learning_rate", "min_lr", "warmup_iters", "lr_decay_iters", "decay_lr",
    "schedule", "wsd_decay_fraction", "max_iters", "weight_decay", "beta1", "beta2", "grad_clip", "init_from",
    "init_state", "seed",
)  # fmt: skip
_SPEED_SETTINGS = (
    "batch_size", "gradient_accumulation_steps", "device", "dtype", "compile", "attention", "world_size",
    "activation_checkpointing", "kernels", "graph", "fp8", "threads", "data_place", "shard",
    "eval_interval", "eval_iters", "eval_tokens", "checkpoint_interval",
    "always_save_checkpoint", "log_interval", "backend", "probe_seconds",
)  # fmt: skip
_BOOKKEEPING_SETTINGS = (
    "out_dir", "data_dir", "console", "sample_tokens", "sample_start", "profile", "track",
    "wandb_log", "wandb_project", "wandb_run_name", "keep_checkpoints", "eval_only", "patience",
    "probe_seconds", "history", "dataset",
)  # fmt: skip
_CHOSEN_SETTINGS = (
    "device", "dtype", "compile", "attention", "kernels", "graph", "activation", "batch_tokens", "threads",
)  # fmt: skip
HARDWARE_SETTINGS = (
    "device",
    "device_name",
    "device.name",
    "device.type",
    "dtype",
    "world_size",
    "cpu.model",
)
_VERSION_KEYS = ("python", "torch", "numpy", "glassgpt", "cuda", "driver", "cudnn", "triton", "kernel")
_CODE_KEYS = ("glassgpt_commit", "commit", "code", "trainer")
_MAX_EXACT_INT = 2**53  # a larger int changes when it becomes a float
_TRANSIENT_MACHINE_KEYS = ("available", "busy_cores")  # free memory and load at that moment
_SAME_INITIAL_LOSS_GAP = 0.5  # nats; initialisations of one vocabulary differ by less
_MAX_INITIAL_LOSS_GAP = 1.0  # nats; the loss of an untrained model is ln V, so V differs by a factor of 2.7

ComparabilityLevel = Literal["same", "assumed", "bytes", "refused"]


@dataclass(frozen=True)
class Comparability:
    """Whether two losses are comparable. `bytes`: only as bits per byte. `assumed`: as far as the logs say.
    `refused`: no."""

    level: ComparabilityLevel  # as in the JSON
    reasons: tuple[Message, ...]


# --- differences ---


def find_differences(logs: Sequence[RunLog]) -> tuple[Difference, ...]:
    """In the order of GROUPS. A value that only some logs have is a difference if it affects the loss or is
    about the hardware."""
    described = [_describe(run_log) for run_log in logs]
    differences = []
    for group in GROUPS:
        names = dict.fromkeys(name for description in described for name in description[group])
        for name in names:
            values = tuple(description[group].get(name) for description in described)
            if len({_normalised(value) for value in values}) == 1:
                continue
            difference = Difference(group, name, values, _affected_metric(group, name))
            if group == "data":
                is_important = name in ("name", "tokenizer")
            else:
                affects_loss = group == "configuration" and difference.affects_loss
                is_important = affects_loss or name in HARDWARE_SETTINGS
            if difference.is_known or is_important:
                differences.append(difference)
    return tuple(differences)


def _describe(run_log: RunLog) -> dict[DifferenceGroup, dict[str, SettingValue]]:
    """All that the log says about the run, by group."""
    setup = run_log.setup
    machine = _flatten(setup.machine)
    configuration: dict[str, SettingValue] = {
        name: value
        for name, value in setup.settings.items()
        if name not in _BOOKKEEPING_SETTINGS and value not in (None, "", "auto")
    }
    # What the trainer chose where the setting was "auto".
    chosen = setup.machine.get("choices")
    for choice in chosen if isinstance(chosen, list) else []:
        name, value = (choice.get("name"), choice.get("value")) if isinstance(choice, dict) else (None, None)
        if name in _CHOSEN_SETTINGS and isinstance(value, str | int | float):
            configuration.setdefault(str(name), value)
    if setup.world_size:
        configuration["world_size"] = setup.world_size
    if machine.get("device.type"):
        configuration.setdefault("device", machine["device.type"])

    elsewhere = (*setup.settings, "epochs")  # shown as settings; epochs follow from them
    data = _flatten({name: value for name, value in setup.data.items() if name not in elsewhere})
    if dataset := dataset_name(run_log):
        data["name"] = dataset

    stated: dict[str, SettingValue] = {name: value for name, value in machine.items() if value is not None}
    other_groups = (*_VERSION_KEYS, *_CODE_KEYS, *_TRANSIENT_MACHINE_KEYS)
    hardware = {name: value for name, value in stated.items() if name.split(".")[-1] not in other_groups}
    if setup.device_name and "device.name" not in hardware:
        hardware = {"device_name": setup.device_name, **hardware}
    code = {name: value for name, value in machine.items() if name in _CODE_KEYS}
    return {
        "configuration": configuration,
        "data": data,
        "machine": hardware,
        "code": {"trainer": run_log.trainer.name, **code},
        "versions": {name: value for name, value in stated.items() if name.split(".")[-1] in _VERSION_KEYS},
    }


def _flatten(nested: Mapping[str, object], prefix: str = "") -> dict[str, SettingValue]:
    """{"cpu": {"model": "x"}} becomes {"cpu.model": "x"}; lists are left out."""
    flat: dict[str, SettingValue] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, str | int | float | bool | None):
            flat[f"{prefix}{name}"] = value
    return flat


def _affected_metric(group: DifferenceGroup, name: str) -> AffectedMetric:
    if group == "data":
        return "loss"
    if group != "configuration":
        return "speed" if group == "machine" else "neither"
    if name in _LOSS_AND_SPEED_SETTINGS:
        return "both"
    return "loss" if name in _LOSS_SETTINGS else "speed" if name in _SPEED_SETTINGS else "neither"


def _normalised(value: SettingValue) -> object:
    """1 and 1.0, True and "on", `cuda` and `cuda:0` are one value."""
    if isinstance(value, str):
        text = value.strip().lower()
        words: dict[str, object] = {"on": 1.0, "true": 1.0, "off": 0.0, "false": 0.0, "cuda:0": "cuda"}
        return words.get(text, text)
    if isinstance(value, int) and abs(value) > _MAX_EXACT_INT:
        return value
    return float(value) if isinstance(value, int | float) else value


def dataset_name(run_log: RunLog) -> str | None:
    name = run_log.setup.data.get("name") or run_log.setup.settings.get("dataset")
    return str(name) if name else None


def format_setting(value: object) -> str:
    """A setting's value; unknown is a question mark."""
    if value is None:
        return "?"
    return f"{value:g}" if isinstance(value, float) else str(value)


def list_settings(differences: Sequence[Difference]) -> str:
    """`n_layer (6 / 12), dtype (float32 / bfloat16)`."""
    return ", ".join(
        f"{difference.name} ({' / '.join(format_setting(value) for value in difference.values)})"
        for difference in differences
    )


# --- are the losses comparable? ---


def check_comparability(first: ComparedRun, other: ComparedRun) -> Comparability:
    dataset_reason = _dataset_difference(first, other)
    if dataset_reason:
        return Comparability("refused", (dataset_reason,))
    reasons = []
    if first.log.val_metric != other.log.val_metric:
        reasons.append(say("compare.comparable.loss_units"))
    if tokenizer_reason := _tokenizer_difference(first, other):
        reasons.append(tokenizer_reason)
    if reasons and all(bits_per_byte(run, 1.0) is not None for run in (first, other)):
        return Comparability("bytes", tuple(reasons))
    if reasons:
        reasons.append(say("compare.comparable.bytes_unknown"))
        return Comparability("refused", tuple(reasons))
    if initial_loss_reason := _initial_loss_difference(first, other):
        return Comparability("refused", (initial_loss_reason,))

    logs = (first.log, other.log)
    if all(run_log.setup.data.get("hash") for run_log in logs):
        return Comparability("same", ())
    datasets = {dataset_name(run_log) for run_log in logs}
    if None in datasets and _may_be_other_data(first, other):
        unknown = say("compare.comparable.data_unknown", a=first.label.lower(), b=other.label.lower())
        return Comparability("refused", (unknown,))
    if None in datasets:
        reasons.append(say("compare.comparable.dataset_assumed"))
    vocabularies = [stated_vocab_size(run_log) or run_log.setup.data.get("tokenizer") for run_log in logs]
    if not all(vocabularies) and (len(datasets) > 1 or None in datasets):
        reasons.append(say("compare.comparable.vocabulary_assumed"))
    return Comparability("assumed", tuple(reasons)) if reasons else Comparability("same", ())


def _dataset_difference(first: ComparedRun, other: ComparedRun) -> Message | None:
    pair = {"a": first.label, "b": other.label}
    logs = (first.log, other.log)
    stages = [run_log.stage for run_log in logs]
    if all(stages) and stages[0] != stages[1]:
        return say("compare.comparable.stages", **pair, a_stage=stages[0], b_stage=stages[1])
    hashes = [run_log.setup.data.get("hash") for run_log in logs]
    names = [dataset_name(run_log) for run_log in logs]
    if all(hashes) and hashes[0] == hashes[1]:
        return None
    if all(names) and names[0] != names[1]:
        return say("compare.comparable.data_names", **pair, a_data=names[0], b_data=names[1])
    if all(hashes) and not _tokenizer_difference(first, other):
        return say("compare.comparable.data_contents", **pair)
    return None


def _tokenizer_difference(first: ComparedRun, other: ComparedRun) -> Message | None:
    pair = {"a": first.label, "b": other.label}
    sizes = [stated_vocab_size(run.log) for run in (first, other)]
    # GPT-2's 50257 ids are often padded to 50304: the same tokens.
    unpadded = {min(size, 50_257) if size and 50_257 <= size <= 50_432 else size for size in sizes}
    if all(sizes) and len(unpadded) > 1:
        return say("compare.comparable.vocabulary_sizes", **pair, a_size=sizes[0] or 0, b_size=sizes[1] or 0)
    names = [run.log.setup.data.get("tokenizer") for run in (first, other)]
    if all(names) and names[0] != names[1]:
        return say("compare.comparable.tokenizers", **pair, a_name=names[0], b_name=names[1])
    return None


def _initial_loss_difference(first: ComparedRun, other: ComparedRun) -> Message | None:
    """An untrained model's loss is about ln V: initial losses far apart come from different vocabularies."""
    if all(stated_vocab_size(run.log) for run in (first, other)):
        return None
    losses = [_untrained_loss(run) for run in (first, other)]
    if losses[0] is None or losses[1] is None or abs(losses[0] - losses[1]) < _MAX_INITIAL_LOSS_GAP:
        return None
    return say(
        "compare.comparable.initial_losses",
        a=first.label.lower(),
        b=other.label.lower(),
        a_loss=losses[0],
        b_loss=losses[1],
    )


def _may_be_other_data(first: ComparedRun, other: ComparedRun) -> bool:
    """Logs of two trainers that do not name their data: only equal losses before training say that the
    vocabulary is the same."""
    if len({run.log.trainer.name for run in (first, other)}) == 1:
        return False
    losses = [_untrained_loss(run) for run in (first, other)]
    return losses[0] is None or losses[1] is None or abs(losses[0] - losses[1]) > _SAME_INITIAL_LOSS_GAP


def _untrained_loss(run: ComparedRun) -> float | None:
    """The loss at the first iteration; None where the run was initialised from other weights."""
    if run.log.val_metric != "loss" or run.log.setup.settings.get("init_from", "scratch") != "scratch":
        return None
    if len(run.curve) and run.curve.iterations[0] == 0:
        return float(run.curve.losses[0])
    loss = run.analysis.facts.loss_first
    has_first_step = run.analysis.facts.first_iteration in (0, 1)
    return loss if has_first_step and loss is not None and math.isfinite(loss) else None


def stated_vocab_size(run_log: RunLog) -> int | None:
    size = run_log.setup.settings.get("vocab_size") or run_log.setup.data.get("vocab_size")
    return size if isinstance(size, int) and 1 < size < MAX_COUNT else None


def bits_per_byte(run: ComparedRun, val_loss: float) -> float | None:
    """A validation loss of this run in bits per byte of text; None where the log does not say enough."""
    if run.log.val_metric == "bits_per_byte":
        return val_loss
    bytes_per_token, nats = run.log.setup.bytes_per_token, _in_nats(run, val_loss)
    if nats is None or not bytes_per_token or not bytes_per_token > 0:
        return None
    return loss_law.bits_per_byte(nats, bytes_per_token)


def run_perplexity(run: ComparedRun, val_loss: float) -> float | None:
    nats = _in_nats(run, val_loss) if run.log.val_metric == "loss" else None
    value = math.inf if nats is None else loss_law.perplexity(nats)
    return value if math.isfinite(value) else None


def _in_nats(run: ComparedRun, val_loss: float) -> float | None:
    """None where the loss is not the cross-entropy of a token."""
    base = run.log.trainer.loss_base
    return None if base is None else val_loss * math.log(base)
