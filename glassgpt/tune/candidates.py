"""Which settings are worth a trial, and in which order: what gains most for the time it takes comes first."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Iterator
from dataclasses import replace

from glassgpt.tune.setting import CONFIG_FIELDS
from glassgpt.tune.setting import TUNABLE_DIMENSIONS
from glassgpt.tune.setting import SpeedSettings
from glassgpt.tune.tune_facts import TuneContext

# --- micro-batch ---


def next_larger_size(sizes: Collection[int], size: int) -> int | None:
    """About twice as many of the sizes possible; a power of two if there is one near."""
    return _nearest_size(2 * size, [n for n in sizes if 1.5 * size <= n <= 3 * size]) or min(
        (n for n in sizes if n > size), default=None
    )


def next_smaller_size(sizes: Collection[int], size: int) -> int | None:
    return _nearest_size(size / 2, [n for n in sizes if size / 3 <= n <= size / 1.5]) or max(
        (n for n in sizes if n < size), default=None
    )


def size_between(sizes: Collection[int], low: int, high: int) -> int | None:
    """In the middle of two sizes, if there is any."""
    return _nearest_size(math.sqrt(low * high), [n for n in sizes if low < n < high])


def _nearest_size(wanted: float, sizes: Collection[int]) -> int | None:
    powers = [n for n in sizes if n & (n - 1) == 0]
    return min(powers or sizes, key=lambda n: abs(math.log(n / wanted)), default=None)


# --- threads ---


def thread_counts(usable_cores: float, threads: int) -> list[int]:
    """To try besides the usual number: all cores that may be used, then ever fewer."""
    count = max(1, math.ceil(usable_cores))
    counts = [count]
    while count > 1:
        count = (count + 1) // 2
        counts.append(count)
    return [n for n in counts if n != threads]


# --- the rest ---


def is_tunable(name: str, ground: TuneContext, fixed: Collection[str]) -> bool:
    """Whether it may be changed: there is a choice, and the user has not said anything."""
    there = name == "micro_batch" or name in TUNABLE_DIMENSIONS[ground.device_type]
    return there and not any(word in fixed for word in CONFIG_FIELDS[name])


def alternatives(ground: TuneContext, best: SpeedSettings, name: str) -> Iterator[SpeedSettings]:
    """The other values of one dimension, all else as in `best`."""
    if name == "attention":
        yield from (replace(best, attention=how) for how in _attentions(ground) if how != best.attention)
    elif name == "kernels" and not ground.float8:
        yield replace(best, kernels=not best.kernels)
    elif name == "graph" and _can_record(ground, best):
        yield replace(best, graph=not best.graph)
    elif name == "data_on_card" and (best.data_on_card or _has_room_for_data(ground)):
        yield replace(best, data_on_card=not best.data_on_card)


_MAX_DATA_SHARE = 0.25  # of the card's memory: more is better used otherwise
_MAX_CONTEXT_FOR_MANUAL_ATTENTION = (
    256  # tokens: beyond, the T x T matrix of the plain formula costs too much to try
)


def _has_room_for_data(ground: TuneContext) -> bool:
    return ground.data_bytes < _MAX_DATA_SHARE * ground.free_bytes


def _attentions(ground: TuneContext) -> list[str]:
    formula = ["manual"] if ground.block_size <= _MAX_CONTEXT_FOR_MANUAL_ATTENTION else []
    if ground.device_type != "cuda":
        return ["sdpa", *formula]
    # Fused kernels want half precision, all but one.
    return ["sdpa", "efficient"] if ground.dtype == "float32" else ["cudnn", "flash", "efficient"]


def _can_record(ground: TuneContext, best: SpeedSettings) -> bool:
    impossible = best.compile or ground.dtype == "float16" or (best.checkpointing and ground.dropout)
    return best.graph or not impossible


def cheap_dimensions(ground: TuneContext, fixed: Collection[str]) -> list[str]:
    """Those whose trials take seconds, what promises most first."""
    order = ("graph", "attention", "kernels", "data_on_card")
    return [name for name in order if is_tunable(name, ground, fixed)]


def with_compile(best: SpeedSettings) -> SpeedSettings:
    """The compiler makes kernels of its own, and may compile again, which cannot be recorded."""
    return replace(best, compile=True, kernels=False, graph=False)


def without_speedups(setting: SpeedSettings) -> SpeedSettings:
    """With nothing that may fail: where even the automatic choice crashed."""
    return replace(setting, attention="sdpa", kernels=False, graph=False, compile=False)
