"""Step lines that are names and values, declared instead of programmed.

    _STEP = StepLine(r"^Iter (\\d{1,15}): Train loss ", {"Train loss": "loss", "It/sec": "it_per_s"})
    _STEP.read("Iter 10: Train loss 4.441, It/sec 3.158", builder)   # add_step(10, 4.441, ms=316.7)

A trainer's file says where the iteration is, and which of its names is which column. Names may come in any
order, and any may be missing except the loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import NUMBER, parse_norm, parse_number

_COLUMNS = frozenset(("loss", "ms", "mfu", "lr", "grad_norm", "tokens_per_s"))  # of `add_step`


class ParsedStep(NamedTuple):
    iteration: int
    planned: int | None  # the last iteration, where the line says it
    values: dict[str, float]


class StepLine:
    def __init__(
        self, begin: str, columns: Mapping[str, str], flags: int = 0, before_number: str = ""
    ) -> None:
        """`begin` finds the iteration (group 1) and perhaps the planned number of them (group 2). `columns`:
        its names, as regular expressions without groups, and what each is: a column of `add_step`, a value
        in another unit (see `add_values`), or anything else, which is left to the trainer's reader.
        `before_number`: what may be printed around it."""
        self._begin = re.compile(begin, flags)
        self._kinds = list(columns.values())
        self._prints_time = not {"ms", "s", "it_per_s"}.isdisjoint(self._kinds)
        names = "|".join(f"({name})" for name in columns)
        self._pair = re.compile(
            rf"(?<![\w/])(?:{names})[\"']?\s{{0,4}}[:=]?\s{{0,12}}[\"']?{before_number}{NUMBER}", flags
        )

    def values(self, text: str) -> dict[str, float]:
        """By what they are, as `columns` says; of two of the same kind, the first."""
        values: dict[str, float] = {}
        number_group = len(self._kinds) + 1
        for match in self._pair.finditer(text):
            kind = next(kind for group, kind in enumerate(self._kinds, 1) if match[group] is not None)
            parse = parse_norm if kind == "grad_norm" else parse_number
            values.setdefault(kind, parse(match[number_group]))
        return values

    def parse(self, line: str, builder: RunBuilder) -> ParsedStep | None:
        """None where the line is not a step, or is cut off."""
        match = self._begin.search(line)
        if match is None:
            return None
        values = self.values(line)
        has_time = not values.keys().isdisjoint(("ms", "s", "it_per_s"))
        is_cut = self._prints_time and not has_time and "ms" in builder.last_step_columns
        if "loss" not in values or is_cut:
            builder.partial_iteration = int(match[1])
            return None
        planned = match[2] if self._begin.groups > 1 else None
        return ParsedStep(int(match[1]), int(planned) if planned else None, values)

    def read(self, line: str, builder: RunBuilder) -> bool:
        """Whether the line is a step: then it is added."""
        step = self.parse(line, builder)
        if step is None:
            return False
        if step.planned is not None:
            builder.setup.values["planned_iterations"] = step.planned
        add_values(builder, step.iteration, step.values)
        return True


def add_values(
    builder: RunBuilder, iteration: int, values: Mapping[str, float], line: int | None = None
) -> None:
    """`add_step`, with values in its own units or in others. `line`: as there."""
    step = {name: value for name, value in values.items() if name in _COLUMNS}
    if "s" in values:
        step["ms"] = values["s"] * 1000
    elif "it_per_s" in values:
        step["ms"] = 1000 / values["it_per_s"] if values["it_per_s"] > 0 else math.nan
    if "device_tokens_per_s" in values:
        devices = builder.setup.values.get("world_size")
        step["tokens_per_s"] = values["device_tokens_per_s"] * (devices if isinstance(devices, int) else 1)
    builder.add_step(iteration, **step, line=line)
