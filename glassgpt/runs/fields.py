"""Takes a line of any training loop apart: its numbers, and what the words around each say that it is.

    line = read_line("Epoch 3/10 | val loss: 2.31 | lr 3e-4 | 250ms/step")
    [(one.name, one.role, one.text, one.total, one.unit) for one in line.fields]
    # ("Epoch", "epoch", "3", "10", ""), ("val loss", "val_loss", "2.31", "", ""),
    # ("lr", "lr", "3e-4", "", ""), ("", None, "250", "", "ms/step")

The words between the numbers are a line's template. A log has few of them, so each is understood once,
whatever separates names and numbers: blanks, colons, brackets, bars or the quotation marks of JSON.
metric_columns.role_of says what a name means, as it does for the columns of tables. A word like `val` in a
part of its own, as in `[val] step 9: loss 2.3` or `train: loss 2.1 | val: loss 2.3`, is the split of what
follows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from glassgpt.runs.log_numbers import parse_norm, parse_number
from glassgpt.runs.metric_columns import (
    LABELS,
    OTHER_TIMES,
    PART_RANK,
    VAL_WORDS,
    Role,
    metric_of,
    ranked_role,
)
from glassgpt.runs.step_clock import parse_clock

_MAX_NUMBERS, _MAX_NAME_WORDS, _MAX_LEADING_WORDS = 200, 6, 12
_CLOCK = r"\d{1,4}:\d{2}(?::\d{2})?(?:\.\d{1,9})?(?![\d:])"
_DECIMAL = r"(?:\d{1,3}(?:,\d{3}){1,5}(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)"
# A number may follow the word that it counts at once: step12.
_NUMBER = re.compile(
    r"((?:(?<![\w.@])(?<![a-z]-)|(?<=\bstep)|(?<=\bepoch)|(?<=\biter)|(?<=\bep)|(?<=\bbatch))"
    rf"(?:{_CLOCK}|[-+]?(?:{_DECIMAL}|nan\b|inf(?:inity)?\b)))",
    re.IGNORECASE | re.ASCII,
)
_TIME_UNIT = r"ms|secs?|seconds?|s|mins?|minutes?|m|hours?|h"
_STEP = r"it|iter|iteration|step|batche?|update"
_UNIT = re.compile(
    rf"[\"']?(?:(\s?%)|([kmb]?)\s?((?:tok(?:en)?|sample|seq)s?/(?:gpu/)?s(?:ec(?:ond)?)?)(?!\s?[:=/])"
    rf"|([kmb])(?![\w/])|\s?((?:ms|s|sec)(?:/| per )(?:{_STEP})|(?:{_STEP})s?/s(?:ec(?:ond)?)?"
    rf"|(?:s|sec|seconds) elapsed|{_TIME_UNIT})(?![\w/=]))",
    re.IGNORECASE,
)
_COUNTED = re.compile(
    r"\s?(epochs|steps|iterations|iters|updates|mini-?batches|batches|轮|步|epoch|step|iteration|update|batch)"
    r"(?![\w/=])(\s{0,4}$)?",
    re.IGNORECASE,
)
_PARTS = re.compile(r"[|,;()\[\]{}<>\t\n]|(?<=[a-z])\.\s|\s[-=*]{1,5}\s|[–—·•→►│┃]|[:=]")
_OPENING = " \t:=([{<\"'`~$#*≈@-"  # between a name and its number
_BAR = re.compile(r"(?<=%\|)[#\d ]{1,300}(?=\|)")
_LIST = re.compile(r"[-+]?\d{1,15}(?:\.\d{1,20})?(?:,\s?[-+]?\d{1,15}(?:\.\d{1,20})?){1,99}(?=\])", re.ASCII)
_ASIDE = re.compile(r"\(([^()]{1,30})\)[\s:=]*$")
_WRAPPER = re.compile(r"\b(?:tensor|array|np\.\w{1,10})\(\s*$")
_FILLERS = {
    "is", "was", "now", "at", "after", "in", "on", "for", "of", "the", "value", "so", "far", "until", "no",
    "num", "number", "and", "a", "during", "by",
}  # fmt: skip
SPLITS = dict.fromkeys(VAL_WORDS, "val") | {
    "test": "test", "testing": "test", "train": "train", "training": "train", "tr": "train", "trn": "train",
    "validating": "val", "evaluating": "val", "evals": "val", "训练": "train", "验证": "val", "测试": "test",
    "vl": "val",
}  # fmt: skip
_UNIT_ROLES: dict[str, Role] = {"轮": "epoch", "步": "iteration"}
_LEADING = {
    "complete", "completed", "finished", "done", "result", "results", "summary", "new", "current", "the",
}  # fmt: skip
_BOTH = re.compile(r"\btrain(?:ing)?\s?/\s?(?:val|valid|test|dev)", re.IGNORECASE)
_LOSSES = (["loss"], ["losses"])
_COUNTS = ("epoch", "iteration", "batch")
_UNITLESS = {*_COUNTS, "loss", "val_loss", "lr", "grad_norm"}
_OTHER_CLOCKS = {*VAL_WORDS, "epoch", "data", "load", "wall", "total", "remaining", "eta", "save", "compile"}
_VAL_SET = re.compile(r"\b(?:val|valid|validation|eval|evaluation|dev)\b", re.IGNORECASE)
_DATA_TIMES = {"data_time", "data"}
_SECONDS = {"ms": "ms", "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s"}
_MAX_UNIT_ERROR = 5.0  # a time and a bar's rate differ by less; the units by 1000
_SCALES = {"k": 1e3, "m": 1e6, "b": 1e9}


class Field(NamedTuple):
    name: str  # as printed
    role: Role | None
    rank: int  # of its name among those of the role: the lowest is the best
    split: str  # "train", "val", "test", or "" where the line does not say it
    unit: str
    is_metric: bool
    at: int  # among the numbers of the line
    total_at: int | None = None
    text: str = ""  # the number
    span: tuple[int, int] = (0, 0)
    total: str = ""  # of `3/10`
    total_span: tuple[int, int] = (0, 0)

    @property
    def value(self) -> float:
        if ":" in self.text:
            return math.nan  # a clock
        value = parse_norm(self.text) if self.role == "grad_norm" else parse_number(self.text)
        return value * _SCALES.get(self.unit, 1.0)

    @property
    def is_count(self) -> bool:
        text = self.text.replace(",", "")
        return text.isdecimal() and len(text) <= 15 and not self.unit

    @property
    def number(self) -> int:
        return int(self.text.replace(",", ""))

    @property
    def planned(self) -> int | None:
        """The total, if it is a count, too."""
        text = self.total.replace(",", "")
        return int(text) if text.isdecimal() and len(text) <= 15 else None

    @property
    def is_decimal(self) -> bool:
        return not self.text.isdecimal() and ":" not in self.text


class Line(NamedTuple):
    text: str
    fields: tuple[Field, ...]
    words: tuple[str, ...]  # all, in lower case

    def of(self, *roles: Role) -> Field | None:
        """The field with the best name of these roles."""
        found = [one for one in self.fields if one.role in roles]
        return min(found, key=lambda one: one.rank) if found else None

    def count_of(self, role: Role) -> Field | None:
        """The same, of whole numbers: `Epoch: [1/100][1900/2976]  Batch 0.512 (0.498)`."""
        found = [one for one in self.fields if one.role == role and (one.is_count or one.unit in _SCALES)]
        return min(found, key=lambda one: one.rank) if found else self.of(role)

    @property
    def metrics(self) -> dict[str, float]:
        """Accuracies, rewards, perplexities, … by their names; in the part of a validation with its name."""
        values: dict[str, float] = {}
        val_loss = next((one for one in self.fields if one.role == "val_loss"), None)
        labels = [one for one in self.fields if one.is_count and LABELS.fullmatch(one.name)]
        label = f"{labels[0].name} {labels[0].text} " if labels else ""
        for one in self.fields:
            metric = metric_of(one.name) if one.is_metric else None
            if metric is None:
                continue
            is_of_val = val_loss is not None and label + one.name in values and one.span > val_loss.span
            name = one.name
            if not metric.is_eval and (one.split == "val" or is_of_val):
                sets = _VAL_SET.findall(self.text[: one.span[0]])
                name = f"dev {name}" if sets and sets[-1].lower() == "dev" else f"val {name}"
            name = label + name
            value = one.value
            if self.text[one.span[0] - 1 : one.span[0]] == "[" and (
                listed := _LIST.match(self.text, one.span[0])
            ):
                numbers = [float(number) for number in listed[0].split(",")]  # rewards=[1.0, 0.0]
                value = sum(numbers) / len(numbers)
            values.setdefault(name, value / 100 if one.unit == "%" else value)
        return values


def read_line(text: str) -> Line:
    if "%|" in text:  # the bar itself may be drawn with digits
        text = _BAR.sub(lambda match: " " * len(match[0]), text)
    parts = _NUMBER.split(text, _MAX_NUMBERS)
    slots, words = _template(tuple(parts[::2]))
    starts, at = [], 0
    for index, part in enumerate(parts):
        if index % 2:
            starts.append(at)
        at += len(part)
    fields = []
    for slot in slots:
        spans = [
            (0, 0) if at is None else (starts[at], starts[at] + len(parts[2 * at + 1])) for at in slot[6:8]
        ]
        numbers = [text[begin:end] for begin, end in spans]
        field = Field(*slot[:8], numbers[0], spans[0], numbers[1], spans[1])
        if ":" in field.text or ":" in field.total:  # a clock is no number
            field = field._replace(role=None, is_metric=False, unit="")
        fields.append(field)
    return Line(text, tuple(fields), words)


def words_of(text: str) -> list[str]:
    """Its words without punctuation around them."""
    stripped = (word.strip("\"'*#~!?.&^$+-_`") for word in text.split())
    return [word for word in stripped if any(map(str.isalpha, word))]


@lru_cache(maxsize=1024)
def _template(texts: tuple[str, ...]) -> tuple[tuple[Field, ...], tuple[str, ...]]:
    """`texts`: before, between and after the numbers of a line."""
    slots: list[Field] = []
    split, pending, skipped, all_words, has_loss = "", list[str](), 0, list[str](), False
    for index, text in enumerate(texts):
        before, skipped = text[skipped:], 0
        aside = _ASIDE.search(before)  # loss (val): 2.1, time (ms): 250
        named = before if aside is None else before[: aside.start()]
        parts = [words_of(part) for part in _PARTS.split(_WRAPPER.sub("", named).rstrip(_OPENING))]
        if aside is not None and aside[1].strip().lower() in SPLITS and parts[-1]:
            parts[-1].insert(0, aside[1].strip())
        all_words += [word.lower() for part in parts for word in part]
        if index == len(texts) - 1 or (not slots and len(all_words) > _MAX_LEADING_WORDS):
            break  # the end, or prose
        skipped, unit, counted = _read_unit(texts[index + 1], parts[-1])
        if "/" in unit and index + 2 < len(texts) and _is_name(texts[index + 1], unit, parts[-1]):
            skipped, unit = 0, ""
        unit = unit or (aside[1] if aside is not None and aside[1] in _SECONDS else "")
        last = slots[-1] if slots else None
        if last and last.at == index - 1 and before.strip() == "/" and _BOTH.search(last.name):
            slots[-1] = last._replace(role="loss", rank=0, split="train")  # train/val loss 2.1/2.2
            slots.append(slots[-1]._replace(at=index, role="val_loss", split="val"))
            continue
        if last and last.at == index - 1 and before.strip() in ("/", "of", "out of"):
            slots[-1] = last = last._replace(total_at=index, unit=last.unit or unit)
            if counted is not None and last.role is None:
                slots[-1] = last._replace(name=counted[0], role=counted[1], rank=counted[2])
            continue
        is_share = last and last.at == index - 1 and last.unit == "%" and last.name.lower() in SPLITS
        if last and is_share and not before.strip(" :=)]"):  # Val~20% 1.95, val (20%): 1.95
            slots[-1] = last._replace(at=index, unit=unit)
            continue
        if last and last.total_at == index - 1 and before.strip() == "=":
            slots[-1] = last._replace(at=index, total_at=None, unit=unit)  # 3185/10042=0.3172
            continue
        is_after = last and last.at == index - 1 and len(parts) > 1 and parts[0]
        if last and is_after and not (last.name or last.role) and last.total_at is None:
            name, role, rank, _ = _resolve(parts[0])  # 60.0% bf16 MFU | 11.875 loss,
            if role is not None:
                slots[-1] = last._replace(name=name, role=role, rank=rank)
                parts[0] = []
        if not parts[-1] and len(parts) > 1 and before.rstrip().endswith("|"):
            parts.pop()  # a table's: | loss | 2.1 |
        for part in parts[:-1]:
            split = _split_of(part, split)
        if len(parts[-1]) == 1 and parts[-1][0].lower() in SPLITS:  # loss (train) 2.1, loss: val 2.2
            has_loss = has_loss or (len(parts) > 1 and [word.lower() for word in parts[-2][-1:]] in _LOSSES)
            parts[-1] = [*parts[-1], "loss"] if has_loss else parts[-1]
        elif parts[-1]:
            has_loss = False
        name, role, rank, rest = _resolve(parts[-1])
        if not parts[-1] and pending and len(parts) == 1:
            name, role, rank, rest = _resolve(pending)
        pending = []
        if counted is not None and role not in _COUNTS:
            pending, (name, role, rank), rest = parts[-1], counted, parts[-1]
        elif role in _COUNTS:
            pending, role = rest, None if name.lower() == "epochs" else role  # a setting
        if role in _COUNTS:
            split = _split_of(rest, split)
        own = next((SPLITS[word] for word in re.split(r"[\s_/.]+", name.lower()) if word in SPLITS), "")
        if role == "loss" and not own and split in ("val", "test"):
            role = "val_loss"
        is_metric = metric_of(name) is not None and not OTHER_TIMES.intersection(map(str.lower, rest))
        if not slots and is_metric and own in ("val", "test") and " " in name:
            split = own  # eval acc 0.5 loss 2.1
        slots.append(Field(name, role, rank, own or split, unit.lower(), is_metric, index))
    return tuple(_with_bare_counts(slots, texts)), tuple(all_words)


def _with_bare_counts(slots: Sequence[Field], texts: Sequence[str]) -> list[Field]:
    """Counts that have no name: `epoch 3 5/40`, a progress bar's, `[3, 2000] loss`, `300 | train loss`."""
    made = list(slots)
    if made and texts[1].startswith(("]", ":")) and made[0].name.lower() in VAL_WORDS:  # eval 20: train 1.05
        made = [
            one._replace(role="val_loss", split="val") if (one.role, one.split) == ("loss", "") else one
            for one in made
        ]
        made[0] = made[0]._replace(role="iteration", rank=950, split="val")
    for at, slot in enumerate(made):
        has_epoch = any(one.role == "epoch" for one in made[:at])
        is_bar = slot.at > 0 and "%|" in texts[slot.at]
        if slot.name or slot.role or slot.total_at is None or not (has_epoch or is_bar or not at):
            continue
        made[at] = slot._replace(role="batch" if has_epoch else "iteration", rank=900)
    if len(made) > 2 and texts[0].strip() == "[" and texts[1].strip() == "," and texts[2].startswith("]"):
        made[:2] = made[0]._replace(role="epoch", rank=900), made[1]._replace(role="batch", rank=900)
    elif made and not any(one.role in _COUNTS for one in made):
        first, after = made[0], texts[made[0].at + 1]
        if not (texts[0].strip("[(# ") or first.unit) and after[:1] in (" ", "|", ":", ",", "\t", "]", ")"):
            made[0] = first._replace(role="iteration", rank=950)
    return made


def _split_of(words: Sequence[str], default: str) -> str:
    ends = (words[0].lower(), words[-1].lower()) if words else ()
    return next((SPLITS[word] for word in ends if word in SPLITS), default)


def _read_unit(after: str, name_words: Sequence[str]) -> tuple[int, str, tuple[str, Role, int] | None]:
    """How long it is; the unit; and what is counted, of `after 3 epochs`."""
    if match := _UNIT.match(after):
        return match.end(), "".join(part.strip() for part in match.groups() if part), None
    match = _COUNTED.match(after)
    is_after = bool(name_words) and name_words[-1].lower() in _FILLERS
    if match is None or not (match[1].lower().endswith("s") or match[1] in _UNIT_ROLES or is_after):
        return 0, "", None
    role = _UNIT_ROLES.get(match[1]) or (ranked_role(match[1].lower()) or ("batch", 0))[0]
    return match.end(1), "", (match[1], role, 500)


def _resolve(words: Sequence[str]) -> tuple[str, Role | None, int, list[str]]:
    """The name that the last of these words are, its role and place, and the words before it."""
    words = list(words)
    while words and words[-1].lower() in _FILLERS:
        words.pop()
    while words and words[0].lower() in _LEADING:
        words.pop(0)
    is_loss = words[-1:] != [] and words[-1].lower() == "loss"
    for begin in range(max(0, len(words) - _MAX_NAME_WORDS), len(words)):
        ranked = ranked_role(" ".join(words[begin:]))
        before = [word.lower() for word in words[max(0, begin - 3) : begin]]
        if OTHER_TIMES.intersection(before) or (is_loss and not SPLITS.keys() >= set(before)):
            break  # the best loss, an auxiliary loss
        if ranked is not None and not (ranked[0] == "time" and before and before[-1] in _OTHER_CLOCKS):
            return " ".join(words[begin:]), *ranked, words[:begin]
    return " ".join(words[-3:]), None, PART_RANK, words[:-3]


def _is_name(after: str, unit: str, name_words: Sequence[str]) -> bool:
    """Whether what looks like the unit of a number names the next one: `loss 4.97 tok/s 99750 it/s 4`. A
    loss has no such unit."""
    if after.lower().strip() != unit.lower() or not after[:1].isspace():
        return False
    _, role, _, _ = _resolve(name_words)
    return role in _UNITLESS or (role == "tokens_per_s" and not unit.startswith("tok"))


class Found(NamedTuple):
    """A value of a step's line."""

    value: float
    span: tuple[int, int]  # of its number in the line
    is_number: bool = True  # the value is that number, not one calculated from it


def step_values(line: Line, is_batch: bool = False) -> dict[str, Found]:
    """By the names of `StepForm`; `elapsed_s` is the time since the start. `is_batch`: the line counts within
    an epoch, and a mere time may be that of the epoch so far."""
    values: dict[str, Found] = {}
    for role in ("lr", "grad_norm"):
        if field := line.of(role):
            values[role] = Found(field.value, field.span)
    if (mfu := line.of("mfu")) and (mfu.unit == "%" or mfu.value > 1):  # else 0.4 is 40%, or a slow 0.4%
        values["mfu"] = Found(mfu.value, mfu.span, mfu.unit == "%")
    speeds = [one for one in line.fields if one.unit.lstrip("kmb").startswith("tok")]
    if speed := line.of("tokens_per_s") or (speeds[0] if speeds else None):
        text, span = (speed.total, speed.total_span) if speed.total else (speed.text, speed.span)
        scale = _SCALES.get(speed.unit[:1], 1.0)
        values["tokens_per_s"] = Found(parse_number(text) * scale, span, scale == 1)
    return values | _find_time(line, is_batch)


def _find_time(line: Line, is_batch: bool) -> dict[str, Found]:
    """A time counts only with its unit, or where a bar's rate on the same line shows which unit it is."""
    timed = [one for one in line.fields if ":" not in one.text]
    rates = [
        one for one in timed if one.role == "it_per_s" or one.unit.endswith(("it/s", "iter/s", "step/s"))
    ]
    rates += [one for one in timed if re.match(rf"(?:{_STEP})s?/s", one.unit)]
    per_second = rates[0].value if rates else 0.0
    names: tuple[Role, ...] = ("step_time",) if is_batch else ("step_time", "time", "step_s")
    for one in timed:
        unit = _SECONDS.get(one.unit.partition("/")[0] if one.unit.partition("/")[2] else one.unit)
        if unit and (one.role in names or "/" in one.unit):
            return {unit: Found(one.value, one.span)}
    for one in timed:
        if one.role == "step_ms" or (
            one.unit == "ms" and (not one.name or one.role in ("elapsed_s", "elapsed_ms"))
        ):
            return {"ms": Found(one.value, one.span)}
    names_of_all = {one.name.lower() for one in line.fields}
    for one in timed:
        # Beside the time of loading data, as mmengine and MetricLogger print it, a time is of an iteration.
        is_of_step = one.role == "time" and not one.unit and not names_of_all.isdisjoint(_DATA_TIMES)
        if one.role == "step_s" or is_of_step:
            return {"s": Found(one.value, one.span)}
    for one in line.fields:
        name = {"dt": "s", "elapsed": "elapsed_s"}.get(one.name.lower(), "")  # llama.cpp's dt=00:04:59
        if name and one.text.count(":") == 2 and (seconds := parse_clock(one.text)) is not None:
            return {name: Found(seconds, one.span, is_number=False)}
    for one in timed:
        if one.role == "step_time" and per_second > 0 and not one.unit:
            for ms in (one.value, one.value * 1000):
                if 1 / _MAX_UNIT_ERROR < ms * per_second / 1000 < _MAX_UNIT_ERROR:
                    return {"ms": Found(ms, one.span, is_number=False)}
            return {}
    for before, one in zip((None, *timed), timed, strict=False):
        is_opennmts = not one.name and before is not None and before.unit == "tok/s"
        if one.unit.endswith("elapsed") or (
            _SECONDS.get(one.unit) == "s" and (one.role == "elapsed_s" or is_opennmts)
        ):
            return {"elapsed_s": Found(one.value, one.span)}
    if rates:
        return {"it_per_s": Found(per_second, rates[0].span)}
    last = timed[-1] if timed else None
    is_at_end = last and not last.name and line.text[: last.span[0]].rstrip()[-1:] in ("|", ",", ";", "(")
    if last and is_at_end and _SECONDS.get(last.unit) == "s" and len(line.text) - last.span[1] < 8:
        return {"s": Found(last.value, last.span)}
    return {}


def read_metric_values(text: str) -> dict[str, float]:
    """Of a step's line, by their names: `step 30 loss 0.0031 acc=0.92 kl 0.01`."""
    return read_line(text).metrics


def read_counted_metrics(text: str, is_begun: bool = True) -> dict[str, float]:
    """Of a line with an epoch or a step and no loss: `Epoch: 43,Valid ACC: 0.453,Valid Bleu 0.482`. Before
    the first step (not `is_begun`), only of a line that begins with the first epoch."""
    line = read_line(text)
    count = line.of("epoch", "iteration")
    if count is None or not count.is_count or line.of("loss", "val_loss") is not None:
        return {}
    is_first = count.role == "epoch" and count.number <= 1 and line.fields[0] == count
    return line.metrics if is_begun or is_first else {}
