"""What `glass tune` may change without changing results, on which machine, and what is worth a trial.

SpeedSettings   one way to run the same training: micro-batch, attention, kernels, CUDA graph, threads, ...
TuneContext     the machine and the model, and what a run would choose by itself
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.estimate import memory, overheads
from glassgpt.estimate.memory_limits import automatic_limit_of_free
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.format import pluralize

# Dimensions by device type, and the config fields that set each.
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
    """Settings that change the speed of a run, and not its result."""

    micro_batch: int  # sequences that go through the model at once
    attention: str = "sdpa"
    kernels: bool = False  # our Triton kernels
    graph: bool = False  # CUDA graph of an update
    data_on_card: bool = False
    checkpointing: bool = False  # of activations
    compile: bool = False
    threads: int | None = None  # of the CPU; None: as many as PyTorch takes

    def differences(self, other: SpeedSettings) -> Iterator[str]:
        """Names of the dimensions that differ, except the micro-batch."""
        for field in dataclasses.fields(self):
            if field.name != "micro_batch" and getattr(self, field.name) != getattr(other, field.name):
                yield field.name

    def transfer_changes(self, base: SpeedSettings, to: SpeedSettings) -> SpeedSettings:
        """`to`, with every dimension in which this one differs from `base`."""
        return dataclasses.replace(to, **{name: getattr(self, name) for name in self.differences(base)})


def describe_dimension(setting: SpeedSettings, name: str) -> str:
    """One dimension in words: `attention cudnn`, `no graph`, `1 thread`."""
    value = getattr(setting, name)
    off_and_on = {
        "kernels": ("PyTorch's kernels", "Triton kernels"),
        "graph": ("no graph", "graph"),
        "data_on_card": ("data in main memory", "data on the card"),
        "checkpointing": ("no activation checkpointing", "activation checkpointing"),
        "compile": ("not compiled", "compiled"),
    }
    if name in off_and_on:
        return off_and_on[name][value]
    if name == "attention":
        return f"attention {value}"
    return "PyTorch's number of threads" if value is None else pluralize(value, "thread")


def apply_setting(
    config: TrainConfig, setting: SpeedSettings, sequences: int, automatic_batch: int, device_type: str
) -> TrainConfig:
    """The run's config with these settings; dimensions that the device does not have stay unset.

    `automatic_batch`: the micro-batch that the config leads to by itself. nanoGPT's eval_iters counts in
    those, so it is converted to tokens: another micro-batch would evaluate another part of the split.
    """
    changes: dict[str, Any] = {
        "batch_size": setting.micro_batch,
        "gradient_accumulation_steps": None if config.batch_tokens else sequences // setting.micro_batch,
    }
    for name in TUNABLE_DIMENSIONS[device_type]:
        value = getattr(setting, name)
        spelled = {"compile": ("off", "on"), "graph": ("off", "on"), "kernels": ("plain", "triton")}
        spelled["data_on_card"] = ("memory", "card")
        changes[CONFIG_FIELDS[name][0]] = spelled[name][value] if name in spelled else value
    if config.eval_iters is not None:
        changes["eval_tokens"] = config.eval_iters * automatic_batch * config.block_size
        changes["eval_iters"] = None
    return dataclasses.replace(config, **changes)


def tuned_config_fields(device_type: str) -> list[str]:
    """The config fields that tuned.toml sets."""
    names = [CONFIG_FIELDS[name][0] for name in TUNABLE_DIMENSIONS[device_type]]
    return [*CONFIG_FIELDS["micro_batch"], *names]


# --- the machine and the model ---


@dataclass(frozen=True, kw_only=True)
class TuneContext:
    """The machine and the model, as the worker process measured them. No torch."""

    device_type: str
    device: str
    device_name: str
    torch: str  # its version
    dtype: str
    vocab_size: int
    parameters: int
    n_layer: int
    block_size: int
    sequences: int  # per update
    updates: int  # of the run
    flops_per_token: int
    peak: float | None  # FLOP/s, 100 % of MFU
    peak_source: str
    free_bytes: int  # available to a run before it starts
    data: str  # description of the tokens that are used
    data_bytes: int
    usable_cores: float
    threads: int  # PyTorch's default
    busy_cores: float  # load average of the last minute
    automatic_batch: int
    automatic_settings: tuple[SpeedSettings, ...]  # a run's own choice for each possible micro-batch
    dropout: bool
    float8: bool

    @property
    def tokens_per_update(self) -> int:
        return self.sequences * self.block_size

    @property
    def automatic_limit(self) -> int:
        """Bytes that a setting may take; on a GPU without the CUDA context."""
        return automatic_limit_of_free(self.device_type, self.free_bytes)

    @property
    def automatic_setting(self) -> SpeedSettings:
        return self.automatic_setting_at(self.automatic_batch)

    @property
    def micro_batches(self) -> tuple[int, ...]:
        return tuple(setting.micro_batch for setting in self.automatic_settings)

    def automatic_setting_at(self, micro_batch: int) -> SpeedSettings:
        return next(setting for setting in self.automatic_settings if setting.micro_batch == micro_batch)

    def micro_steps(self, setting: SpeedSettings) -> int:
        return self.sequences // setting.micro_batch

    def estimated_micro_batch_s(self, setting: SpeedSettings) -> float | None:
        """Expected seconds of one micro-batch, before anything was measured."""
        if self.peak is None:
            return None
        tokens = setting.micro_batch * self.block_size
        return overheads.arithmetic_s(self.device_type, tokens, self.flops_per_token, self.peak)

    def trial_micro_steps(self, setting: SpeedSettings) -> int:
        """How many of an update's micro-batches a trial runs."""
        return trial_micro_steps(self.micro_steps(setting), self.estimated_micro_batch_s(setting))

    def config_with(self, config: TrainConfig, setting: SpeedSettings) -> TrainConfig:
        return apply_setting(config, setting, self.sequences, self.automatic_batch, self.device_type)

    def estimated_bytes(self, config: TrainConfig, setting: SpeedSettings) -> int:
        """Peak memory, counted from its tensors; on a GPU without the CUDA context."""
        need = memory.estimate_memory(
            TrainingWorkload(
                config=self.config_with(config, setting),
                vocab_size=self.vocab_size,
                batch_size=setting.micro_batch,
                micro_steps=self.micro_steps(setting),
                device_type=self.device_type,
                dtype=self.dtype,
                kernels=setting.kernels,
                compiled=setting.compile,
                attention=setting.attention,
                graph=setting.graph,
                data_bytes=self.data_bytes if setting.data_on_card else 0,
            )
        )
        return need.total_bytes if self.device_type == "cpu" else need.allocated_bytes


REDUCED_MICRO_STEPS = 4
# An update is run whole if it has at most so many micro-batches and takes at most so long.
_MAX_WHOLE_MICRO_STEPS = 8
_MAX_WHOLE_UPDATE_S = 0.5
_LONG_MICRO_BATCH_S = 1.0  # a micro-batch that takes longer is run as few times as possible


def trial_micro_steps(micro_steps: int, micro_s: float | None) -> int:
    """How many of an update's micro-batches a trial runs. `micro_s`: expected seconds of one, if known.

    At least two if there are two: only then do gradients accumulate, and take their memory.
    """
    if micro_steps <= 2:
        return micro_steps
    if micro_s is not None and micro_s > _LONG_MICRO_BATCH_S:
        return 2
    whole = micro_steps <= _MAX_WHOLE_MICRO_STEPS and (
        micro_s is None or micro_s * micro_steps <= _MAX_WHOLE_UPDATE_S
    )
    return micro_steps if whole else min(micro_steps, REDUCED_MICRO_STEPS)


def context_from_document(document: dict[str, Any]) -> TuneContext:
    """The inverse of dataclasses.asdict."""
    settings = tuple(SpeedSettings(**fields) for fields in document["automatic_settings"])
    return TuneContext(**document | {"automatic_settings": settings})


# --- which settings are worth a trial: the largest expected gain for its time comes first ---


def next_larger_size(sizes: Collection[int], size: int) -> int | None:
    """The possible size nearest to twice as many; a power of two if one is near."""
    return _nearest_size(2 * size, [n for n in sizes if 1.5 * size <= n <= 3 * size]) or min(
        (n for n in sizes if n > size), default=None
    )


def next_smaller_size(sizes: Collection[int], size: int) -> int | None:
    return _nearest_size(size / 2, [n for n in sizes if size / 3 <= n <= size / 1.5]) or max(
        (n for n in sizes if n < size), default=None
    )


def size_between(sizes: Collection[int], low: int, high: int) -> int | None:
    """A size in the (geometric) middle of two, if there is one."""
    return _nearest_size(math.sqrt(low * high), [n for n in sizes if low < n < high])


def _nearest_size(wanted: float, sizes: Collection[int]) -> int | None:
    powers = [n for n in sizes if n & (n - 1) == 0]
    return min(powers or sizes, key=lambda n: abs(math.log(n / wanted)), default=None)


def thread_counts(usable_cores: float, threads: int) -> list[int]:
    """Thread counts to try besides PyTorch's default: all usable cores, then halves."""
    count = max(1, math.ceil(usable_cores))
    counts = [count]
    while count > 1:
        count = (count + 1) // 2
        counts.append(count)
    return [n for n in counts if n != threads]


_MAX_DATA_SHARE = 0.25  # of the card's memory, for the training split
_MAX_CONTEXT_FOR_MANUAL_ATTENTION = 256  # tokens: beyond, the T x T matrix costs too much to try


# Dimensions whose trials take seconds, the most promising first.
CHEAP_DIMENSIONS = ("graph", "attention", "kernels", "data_on_card")


def is_tunable(name: str, context: TuneContext, fixed: Collection[str]) -> bool:
    """Whether this dimension may change: the device has it, and the user has not set it."""
    exists = name == "micro_batch" or name in TUNABLE_DIMENSIONS[context.device_type]
    return exists and not any(field in fixed for field in CONFIG_FIELDS[name])


def alternatives(context: TuneContext, best: SpeedSettings, name: str) -> Iterator[SpeedSettings]:
    """The other values of one dimension, all else as in `best`."""
    if name == "attention":
        formula = ["manual"] if context.block_size <= _MAX_CONTEXT_FOR_MANUAL_ATTENTION else []
        kernels = ["sdpa", *formula]
        if context.device_type == "cuda":  # in float32 only one of the fused kernels exists
            kernels = ["sdpa", "efficient"] if context.dtype == "float32" else ["cudnn", "flash", "efficient"]
        yield from (replace(best, attention=kernel) for kernel in kernels if kernel != best.attention)
    elif name == "kernels" and not context.float8:
        yield replace(best, kernels=not best.kernels)
    elif name == "graph":
        cannot_capture = (
            best.compile or context.dtype == "float16" or (best.checkpointing and context.dropout)
        )
        if best.graph or not cannot_capture:
            yield replace(best, graph=not best.graph)
    elif name == "data_on_card":
        fits = context.data_bytes < _MAX_DATA_SHARE * context.free_bytes
        if best.data_on_card or fits:
            yield replace(best, data_on_card=not best.data_on_card)


def with_compile(best: SpeedSettings) -> SpeedSettings:
    """torch.compile generates its own kernels, and may recompile, which a CUDA graph cannot capture."""
    return replace(best, compile=True, kernels=False, graph=False)


def without_speedups(setting: SpeedSettings) -> SpeedSettings:
    """Without anything that can fail, for when even the automatic choice crashed."""
    return replace(setting, attention="sdpa", kernels=False, graph=False, compile=False)
