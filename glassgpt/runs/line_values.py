"""What a step line of any trainer says: which values, where in the line each is, and in which unit.

    find_values("step 7 loss: 2.31 lr 3e-4 dt: 250ms")["lr"]     # FoundValue(3e-4, (20, 24))
    find_step("step 7 loss: 2.31")       # FoundStep(iteration=(5, 6), loss=(13, 17))
    record_values('{"train/loss": 2.31, "trainer/global_step": 7}')["loss"]

Lines are in lower case. A time counts only with its unit, or where the rate of a progress bar on the same
line shows which unit it is. The fields of a record (a dict or an object of JSON) are known by their names, as
the columns of a table are: metric_columns.py has the names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from glassgpt.runs.log_numbers import MAX_COUNT, NUMBER, parse_norm, parse_number
from glassgpt.runs.metric_columns import Role, ranked_role

BETWEEN = r"[\"']?\s{0,4}[:=]?\s{0,8}[\"']?"  # a name and its number
# Also as it is misspelt: iteratation.
AT = r"\b(?:(?:iter|itera\w{3,8}|step|global_step|num_updates|update)s?(?:\b|(?=\d))|(?:it|itr)(?=\s?[:=]))"
COUNTED = re.compile(
    rf"{AT}[\s:=#\"']{{0,12}}(\d{{1,3}}(?:,\d{{3}}){{1,4}}|\d{{1,15}})\b"
    r"(?:\s*/\s*(\d{1,3}(?:,\d{3}){1,4}|\d{1,15}))?(?=[\s,:;|\])%(\"'-]|$)"
)
LOSS_NAME = (
    r"(?<![\w/.])(?<!val )(?<!valid )(?<!validation )(?<!eval )(?<!test )(?<!dev )(?<!aux )"
    r"(?:(?:(?:train(?:ing)?|avg|mean|lm|ce|total|batch)[ _/.]?)?loss(?:[_/](?:train|step|avg))?"
    r"|xent|训练损失)(?![\w/])"
)
LOSS = re.compile(rf"{LOSS_NAME}{BETWEEN}{NUMBER}")
_BAR = re.compile(
    rf"%\|[^|]{{0,300}}\|\s*(\d{{1,15}})/(\d{{1,15}}) \[[\d:]{{1,12}}<[^\]]{{0,200}}?{LOSS_NAME}=\s*{NUMBER}"
)
# The count between the name and the number: `Loss at step 12: 6.15`, `loss after 12 updates: 6.15`.
_LOSS_AT = re.compile(
    rf"{LOSS_NAME} (?:at|after|in|on|for|of)(?: (?:the )?(?:iter|iteration|step|update|batch))?"
    r" ?#?(\d{1,15})"
    rf"(?: (?:iter|iteration|step|update|batche?)s?)?\b\s{{0,4}}[:=]?(?: is| was)?\s{{0,4}}{NUMBER}"
)
MAX_CHARS_BETWEEN = 400  # the iteration and the loss
_RECORD_COLUMNS: dict[str, str] = {
    "lr": "lr", "grad_norm": "grad_norm", "tokens_per_s": "tokens_per_s", "step_ms": "ms", "step_s": "s",
    "elapsed_s": "elapsed_s",
}  # fmt: skip

_SECONDS = r"(ms|s|secs?|seconds?)\b"
_STEP_TIME_NAME = r"(?:step|iter|iteration|batch)[ _]?(?:time|dt)"
_STEP_TIME, _TIME = (
    re.compile(rf"\b(?:{name})\b\W{{0,4}}{NUMBER}\s*{_SECONDS}(?!/)")
    # Beside the batch of an epoch, a mere "time" may be that of the epoch so far.
    for name in (_STEP_TIME_NAME, rf"{_STEP_TIME_NAME}|time|dt|iter_dt|took")
)
_TIME_PER_STEP = re.compile(rf"(?<![\w.]){NUMBER}\s?(ms|s|sec)/(?:it|iter|step|batch)\b")
_STEPS_PER_S = re.compile(rf"(?<![\w.]){NUMBER}\s?(?:it|iter|step|batche?)s?/s(?:ec)?\b")
# Names that say their unit.
_TIME_IN_MS = re.compile(
    rf"\b(?:(?:time|dt|(?:step|iter|iteration|batch)_(?:time|dt))_ms|ms(?:_per_|/)(?:step|it|iter|batch)"
    rf"|elapsed_time_per_iteration_ms){BETWEEN}{NUMBER}"
)
_TIME_IN_S = re.compile(
    rf"\b(?:(?:step|iter|iteration|batch)_(?:time|dt)_s(?:ec)?|(?:s|sec|seconds)_per_(?:step|iter)|seconds)"
    rf"{BETWEEN}{NUMBER}"
)
_BARE_TIME = re.compile(rf"(?<![\w.]){NUMBER}\s*ms\b(?!/)")
_LAST_TIME = re.compile(rf"[|,;(]\s{{0,8}}{NUMBER}\s?(s|sec)\)?$")
_TIME_WITHOUT_UNIT = re.compile(rf"\b(?:dt|step_time|iter_time)=\s?{NUMBER}(?![\w.])")
_ELAPSED = re.compile(
    rf"\b(?:elapsed|total[_ ]time)\b\W{{0,4}}{NUMBER}\s*{_SECONDS}|(?<![\w.]){NUMBER}\s?{_SECONDS} elapsed"
)
# Seconds since the start, after tokens per second at the end of the line.
_OPENNMT_WALL = re.compile(rf"\btok/s; {{1,8}}{NUMBER} sec;?$")
_MAX_UNIT_ERROR = 5.0  # a time and a bar's rate differ by less; the units by 1000

_LR = re.compile(rf"\b(?:lr|learning[ _]rate){BETWEEN}{NUMBER}")
_NORM = re.compile(rf"\b(?:grad(?:ient)?[ _/]?norm|gnorm|norm){BETWEEN}{NUMBER}")
_MFU = re.compile(rf"\bmfu{BETWEEN}{NUMBER}\s?(%)?")
_SPEED_NAME = r"(?:tok(?:en)?s?(?:/(?:gpu/|device/)?|-|_per_)s(?:ec(?:ond)?)?|tps)"
_SPEED = re.compile(rf"\b{_SPEED_NAME}\b(?:/device)?{BETWEEN}{NUMBER}([km]?)\b")
_SPEED_BEFORE = re.compile(rf"(?<![\w.=:]){NUMBER}([km]?)\s?tok(?:en)?s?/s(?:ec)?\b(?!\s?[:=])")
_SCALES = {"k": 1e3, "m": 1e6}

_PAIR = re.compile(rf"[\"']([\w/.() -]{{1,80}})[\"']\s?:\s?(?:tensor\()?[\"']?{NUMBER}(?=[\"'\s,)}}]|$)")


class FoundValue(NamedTuple):
    value: float
    span: tuple[int, int]  # of its number in the line
    is_number: bool = True  # the value is that number, not one calculated from it


class FoundStep(NamedTuple):
    """A line with an iteration and a loss: where they are."""

    iteration: tuple[int, int]
    loss: tuple[int, int]
    total: str | None = None
    values: Mapping[str, FoundValue] = {}  # of a record


def find_values(line: str, is_batch: bool = False) -> dict[str, FoundValue]:
    """By the names of `StepForm`; `elapsed_s` is the time since the start. `is_batch`: the line counts
    within an epoch."""
    values: dict[str, FoundValue] = {}
    # Words before patterns: a million lines shall take seconds.
    if ("lr" in line or "learning" in line) and (match := _LR.search(line)):
        values["lr"] = FoundValue(parse_number(match[1]), match.span(1))
    if "norm" in line and (match := _NORM.search(line)):
        values["grad_norm"] = FoundValue(parse_norm(match[1]), match.span(1))
    if "mfu" in line and (match := _MFU.search(line)):
        mfu = parse_number(match[1])
        if match[2] or mfu > 1:  # else 0.4 is 40%, or a slow 0.4%
            values["mfu"] = FoundValue(mfu, match.span(1), bool(match[2]))
    if ("tok" in line or "tps" in line) and (match := _SPEED.search(line) or _SPEED_BEFORE.search(line)):
        scale = _SCALES.get(match[2], 1.0)
        values["tokens_per_s"] = FoundValue(parse_number(match[1]) * scale, match.span(1), scale == 1)
    return values | _find_time(line, _STEP_TIME if is_batch else _TIME)


def _find_time(line: str, named: re.Pattern[str]) -> dict[str, FoundValue]:
    has_name = "time" in line or "dt" in line or "took" in line
    if match := (named.search(line) if has_name else None) or (
        _TIME_PER_STEP.search(line) if "/" in line else None
    ):
        return {_unit(match): FoundValue(parse_number(match[1]), match.span(1))}
    if "ms" in line and (match := _TIME_IN_MS.search(line) or _BARE_TIME.search(line)):
        return {"ms": FoundValue(parse_number(match[1]), match.span(1))}
    if ("_" in line or "seconds" in line) and (match := _TIME_IN_S.search(line)):
        return {"s": FoundValue(parse_number(match[1]), match.span(1))}
    rate = _STEPS_PER_S.search(line) if "/s" in line else None
    if has_name and (match := _TIME_WITHOUT_UNIT.search(line)):
        per_second, value = parse_number(rate[1]) if rate else 0.0, parse_number(match[1])
        rate_ms = 1000 / per_second if per_second > 0 else math.nan
        for ms in (value, value * 1000):
            if rate_ms / _MAX_UNIT_ERROR < ms < rate_ms * _MAX_UNIT_ERROR:
                return {"ms": FoundValue(ms, match.span(1), is_number=False)}
        return {}
    if ("elapsed" in line or "total" in line) and (match := _ELAPSED.search(line)):
        group = 1 if match[1] else 3
        scale = 1000 if match[group + 1] == "ms" else 1
        return {"elapsed_s": FoundValue(parse_number(match[group]) / scale, match.span(group), scale == 1)}
    if match := _OPENNMT_WALL.search(line):
        return {"elapsed_s": FoundValue(parse_number(match[1]), match.span(1))}
    if rate:
        return {"it_per_s": FoundValue(parse_number(rate[1]), rate.span(1))}
    last = _LAST_TIME.search(line) if line.endswith(("s", "s)", "sec", "sec)")) else None
    return {"s": FoundValue(parse_number(last[1]), last.span(1))} if last else {}


def _unit(match: re.Match[str]) -> str:
    return "ms" if match[2] == "ms" else "s"


def record_values(line: str) -> Mapping[Role, FoundValue]:
    """The fields of a record, by what they are. Of two with one role, the one whose name comes first in the
    list of names."""
    values: dict[Role, tuple[int, FoundValue]] = {}
    for match in _PAIR.finditer(line):
        ranked = ranked_role(match[1])
        if ranked is not None and (ranked[0] not in values or ranked[1] < values[ranked[0]][0]):
            number = parse_norm(match[2]) if ranked[0] == "grad_norm" else parse_number(match[2])
            values[ranked[0]] = ranked[1], FoundValue(number, match.span(2))
    return {role: value for role, (_, value) in values.items()}


def find_step(line: str) -> FoundStep | None:
    """The iteration and the loss after it."""
    record = record_values(line) if "{" in line else {}
    if "loss" in record and "iteration" in record and _is_count(line[slice(*record["iteration"].span)]):
        planned = record.get("planned_iterations")
        total = line[slice(*planned.span)] if planned else ""
        return FoundStep(
            record["iteration"].span,
            record["loss"].span,
            total if _is_count(total) else None,
            {_RECORD_COLUMNS[role]: found for role, found in record.items() if role in _RECORD_COLUMNS},
        )
    may_count = any(
        name in line for name in ("it", "step", "update", "batch")
    )  # most patterns need not be tried
    count = COUNTED.search(line) if may_count else None
    loss = LOSS.search(line, count.end()) if count else None
    if count and loss and loss.start() - count.end() <= MAX_CHARS_BETWEEN:
        return FoundStep(count.span(1), loss.span(1), count[2])
    if may_count and "loss " in line and (match := _LOSS_AT.search(line)):
        return FoundStep(match.span(1), match.span(2))
    if "%|" in line and (bar := _BAR.search(line)):
        return FoundStep(bar.span(1), bar.span(3), bar[2])
    return None


def parse_step_count(text: str) -> int:
    """Of 10000, or of 10,000."""
    return int(text.replace(",", ""))


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(MAX_COUNT))
