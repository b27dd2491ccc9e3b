"""One way to run the same training: what `glass tune` may change, since the result does not depend on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glassgpt.config import TrainConfig

# What there is to choose, by type of device, and the setting of a run that says it.
_CUDA_DIMENSIONS = ("attention", "kernels", "graph", "data_on_card", "checkpointing", "compile")
TUNABLE_DIMENSIONS = {
    "cuda": _CUDA_DIMENSIONS,
    "cpu": ("threads", "attention", "checkpointing", "compile"),
    "mps": ("attention", "checkpointing"),
}
CONFIG_FIELDS = {
    "micro_batch": ("batch_size", "gradient_accumulation_steps"),
    "attention": ("attention",),
    "kernels": ("kernels",),
    "graph": ("graph",),
    "checkpointing": ("activation_checkpointing",),
    "compile": ("compile",),
    "data_on_card": ("data_place",),
    "threads": ("threads",),
}


@dataclass(frozen=True, kw_only=True)
class SpeedSettings:
    """What of a run's speed can be chosen."""

    micro_batch: int  # sequences that go through the model at once
    attention: str = "sdpa"
    kernels: bool = False  # our own
    graph: bool = False
    data_on_card: bool = False
    checkpointing: bool = False  # of activations
    compile: bool = False
    threads: int | None = None  # of the CPU; None: as many as PyTorch takes

    def differences(self, other: SpeedSettings) -> Iterator[str]:
        """The names of what is not the same, the micro-batch apart."""
        for field in dataclasses.fields(self):
            if field.name != "micro_batch" and getattr(self, field.name) != getattr(other, field.name):
                yield field.name

    def transfer_changes(self, base: SpeedSettings, to: SpeedSettings) -> SpeedSettings:
        """`to` with everything in which this one differs from `base`."""
        return dataclasses.replace(to, **{name: getattr(self, name) for name in self.differences(base)})


def describe_dimension(setting: SpeedSettings, name: str) -> str:
    """One of its parts: `attention cudnn`, `no graph`, `1 thread`."""
    value = getattr(setting, name)
    if name == "threads":
        return (
            "the usual number of threads" if value is None else f"{value} thread{'' if value == 1 else 's'}"
        )
    if name == "attention":
        return f"attention {value}"
    if name == "kernels":
        return "our kernels" if value else "plain kernels"
    if name == "data_on_card":
        return "data on the card" if value else "data in memory"
    if name == "compile":
        return "compiled" if value else "not compiled"
    noun = {"graph": "graph", "checkpointing": "activation checkpointing"}[name]
    return noun if value else f"no {noun}"


def apply_setting(
    config: TrainConfig, setting: SpeedSettings, sequences: int, automatic_batch: int, device_type: str
) -> TrainConfig:
    """The run's config with everything said that was chosen; what has no meaning there stays open.

    `automatic_batch`: the micro-batch that the config would have led to. nanoGPT's eval_iters counts those:
    it has to be said in tokens, or another micro-batch would evaluate another part of the text.
    """
    changes: dict[str, Any] = {
        "batch_size": setting.micro_batch,
        "gradient_accumulation_steps": None if config.batch_tokens else sequences // setting.micro_batch,
    }
    for name in TUNABLE_DIMENSIONS[device_type]:
        changes[CONFIG_FIELDS[name][0]] = _said(name, getattr(setting, name))
    if config.eval_iters is not None:
        changes["eval_tokens"] = config.eval_iters * automatic_batch * config.block_size
        changes["eval_iters"] = None
    return dataclasses.replace(config, **changes)


def tuned_config_fields(device_type: str) -> list[str]:
    """The settings of a run that are said in the end."""
    names = [CONFIG_FIELDS[name][0] for name in TUNABLE_DIMENSIONS[device_type]]
    return [*CONFIG_FIELDS["micro_batch"], *names]


def _said(name: str, value: Any) -> Any:
    if name in ("compile", "graph"):
        return "on" if value else "off"
    if name == "kernels":
        return "triton" if value else "plain"
    if name == "data_on_card":
        return "card" if value else "memory"
    return value
