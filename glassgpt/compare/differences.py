"""What is not the same: settings, data, machine, code, versions; and what of it decides loss or speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from glassgpt.runs.run_log import RunLog

DifferenceGroup = Literal["configuration", "data", "machine", "code", "versions"]
GROUPS: tuple[DifferenceGroup, ...] = ("configuration", "data", "machine", "code", "versions")
AffectedMetric = Literal["loss", "speed", "both", "neither"]
SettingValue = str | int | float | bool | None


@dataclass(frozen=True)
class Difference:
    group: DifferenceGroup
    name: str
    values: tuple[SettingValue, ...]  # one per run; None: not said
    affects: AffectedMetric

    @property
    def is_known(self) -> bool:
        """False: some runs do not say, and those that do agree."""
        said = {_normalised(value) for value in self.values if value is not None}
        return len(said) > 1

    @property
    def affects_loss(self) -> bool:
        return self.affects in ("loss", "both")


# What a loss depends on, given the data. Precision and hardware are not in here: they only round it.
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
    "activation_checkpointing", "eval_interval", "eval_iters", "eval_tokens", "checkpoint_interval",
    "always_save_checkpoint", "log_interval", "backend", "probe_seconds",
)  # fmt: skip
_BOOKKEEPING = (
    "out_dir", "data_dir", "console", "sample_tokens", "sample_start", "profile", "track",
    "wandb_log", "wandb_project", "wandb_run_name", "keep_checkpoints", "eval_only", "patience",
    "probe_seconds", "dataset",
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
_VERSIONS = ("python", "torch", "numpy", "glassgpt", "cuda", "driver", "cudnn", "triton", "kernel")
_CODE = ("glassgpt_commit", "commit", "code", "trainer")
_MAX_EXACT_INT = 2**53
_TRANSIENT_MACHINE_KEYS = ("memory.available", "available")  # of the moment, not of the machine


def find_differences(histories: Sequence[RunLog]) -> tuple[Difference, ...]:
    """In the order of GROUPS. What one run says and another does not is among them where it decides the loss
    or is about the hardware."""
    found = [
        *_find_group_differences("configuration", [_configuration(history) for history in histories]),
        *_find_group_differences("data", [_data(history) for history in histories]),
        *_find_group_differences("machine", [_machine(history) for history in histories]),
        *_find_group_differences("code", [_code(history) for history in histories]),
        *_find_group_differences("versions", [_versions(history) for history in histories]),
    ]
    return tuple(one for one in found if one.is_known or _is_missed(one))


def _is_missed(one: Difference) -> bool:
    if one.group == "data":
        return one.name in ("name", "tokenizer")
    return (one.group == "configuration" and one.affects_loss) or one.name in HARDWARE_SETTINGS


def _find_group_differences(
    group: DifferenceGroup, described: Sequence[Mapping[str, SettingValue]]
) -> list[Difference]:
    names = list(dict.fromkeys(name for one in described for name in one))
    found = []
    for name in names:
        values = tuple(one.get(name) for one in described)
        if len({_normalised(value) for value in values}) > 1:
            found.append(Difference(group, name, values, _decides(group, name)))
    return found


def _normalised(value: SettingValue) -> object:
    """1 and 1.0, True and "on", `cuda` and `cuda:0` are one value."""
    if isinstance(value, str):
        text = value.strip().lower()
        words: dict[str, object] = {"on": 1.0, "true": 1.0, "off": 0.0, "false": 0.0, "cuda:0": "cuda"}
        return words.get(text, text)
    if isinstance(value, int) and abs(value) > _MAX_EXACT_INT:  # as a float it would be another, or none
        return value
    return float(value) if isinstance(value, int | float) else value


def _decides(group: DifferenceGroup, name: str) -> AffectedMetric:
    if group == "data":
        return "loss"
    if group != "configuration":
        return "speed" if group == "machine" else "neither"
    if name in _LOSS_AND_SPEED_SETTINGS:
        return "both"
    return "loss" if name in _LOSS_SETTINGS else "speed" if name in _SPEED_SETTINGS else "neither"


def _configuration(history: RunLog) -> dict[str, SettingValue]:
    settings = {name: value for name, value in history.setup.settings.items() if name not in _BOOKKEEPING}
    undecided = {name for name, value in settings.items() if value in (None, "", "auto")}
    world = {"world_size": history.setup.world_size} if history.setup.world_size else {}
    decided = {name: value for name, value in settings.items() if name not in undecided}
    found = _flatten(history.setup.machine).get("device.type")
    return decided | world | ({"device": found} if found and "device" not in decided else {})


def dataset_name(history: RunLog) -> str | None:
    said = history.setup.data.get("name") or history.setup.settings.get("dataset")
    return str(said) if said else None


def _data(history: RunLog) -> dict[str, SettingValue]:
    told = (*history.setup.settings, "epochs")  # elsewhere; epochs follow
    flat = _flatten({name: value for name, value in history.setup.data.items() if name not in told})
    name = dataset_name(history)
    return flat | ({"name": name} if name else {})


def _machine(history: RunLog) -> dict[str, SettingValue]:
    flat = _flatten(history.setup.machine)
    device = history.setup.device_name
    left_out = (*_VERSIONS, *_CODE, *_TRANSIENT_MACHINE_KEYS)
    kept = {name: value for name, value in flat.items() if name.split(".")[-1] not in left_out}
    kept = {
        name: value
        for name, value in kept.items()
        if name not in _TRANSIENT_MACHINE_KEYS and value is not None
    }
    return ({"device_name": device} if device and "device.name" not in kept else {}) | kept


def _code(history: RunLog) -> dict[str, SettingValue]:
    flat = {name: value for name, value in _flatten(history.setup.machine).items() if name in _CODE}
    return {"trainer": history.trainer.name} | flat


def _versions(history: RunLog) -> dict[str, SettingValue]:
    flat = _flatten(history.setup.machine)
    return {
        name: value for name, value in flat.items() if name.split(".")[-1] in _VERSIONS and value is not None
    }


def _flatten(nested: Mapping[str, object], prefix: str = "") -> dict[str, SettingValue]:
    flat: dict[str, SettingValue] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, str | int | float | bool | None):  # a list of reasons is no property
            flat[f"{prefix}{name}"] = value
    return flat
