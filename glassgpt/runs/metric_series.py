"""Metrics besides the loss: accuracies, rewards, KL, preference margins, word error rates, perplexities.

    recorder = MetricRecorder()
    recorder.add({"acc": 0.92, "lr": 1e-5}, iteration=30, line=2548)   # True: one of them is a metric
    courses(recorder.series(), first_line=1, last_line=9000)           # from where to where each went

`metric_columns.metric_of` decides by its name whether a value is a metric. A builder records those of the
whole file; a run has those of its lines.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassgpt.runs.curve_statistics import detrended_std, is_noise
from glassgpt.runs.metric_columns import Metric, metric_of, normalise

MAX_SHOWN = 3  # metrics of a run
_MAX_SERIES, _MAX_VALUES = 24, 100_000
_MIN_SMOOTHED = 30  # values; of fewer, each is compared by itself
_MAX_EVAL_NOISE_SHARE = 0.1  # noise of one evaluation over the range of all
_TREND_BLOCKS = 60  # means of values: those of a choice between 0 and 1 have no median
_ENDS_SHARE = 10  # a tenth of the values at each end
# A difference of two values that is told: so many standard errors of it, and this share of them.
_CLEAR_ERRORS, _MIN_CHANGE_SHARE = 3.0, 0.01
_MAX_ABS = 1e15
_UNKNOWN = -1  # iteration
# Of losses that are sums over tokens, as perplexities show: evaluations, their highest mean loss over the
# lowest, the error of the number of tokens as a share of it, and that number. 1.44 would be of bits to nats.
_MIN_SUMS, _MIN_SUM_RANGE, _MAX_SUM_ERROR, _MIN_SUMMED_TOKENS = 3, 1.05, 0.01, 2.0
_MAX_MEAN_LOSS = math.log(1_000_000)  # of a guess among the tokens of the largest vocabulary

# A line of nothing but a metric: `HellaSwag accuracy: 3185/10042=0.3172`, `eval done, eval_acc: 0.686`.
_WORDS = (
    r"accuracy|acc|perplexity|ppl|wer|cer|bleu|f1|auc|auroc|exact[ _]match|correct[ _]rate"
    r"|reward(?:[ _]score)?|mrr|p@1|pass@1|core metric"
)
_NUMBER = r"([-+]?\d{1,15}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?)"
_PARTS = r"\d{1,12}\s*/\s*\d{1,12}"
_LINE = re.compile(
    rf"^(?:[^:=,]{{0,80}}(?:, | \| ))?([^:=,|\d][^:=,|]{{0,60}}?)?\b((?:\w{{1,30}}_)?(?:{_WORDS}))"
    rf"(?: ?\([\w -]{{1,20}}\))?(?:\s*[:=]\s*|\s{{1,4}}(?=\d*\.\d))"
    rf"(?:{_PARTS}\s*=\s*)?{_NUMBER}\s*(%)?(?:\s*\({_PARTS}\))?\W*$",
    re.IGNORECASE,
)
# One of several: `Epoch 2 - Validation BLEU: BLEU-1 71.65, BLEU-2 65.76`.
_SIDES = r"val|valid|validation|eval|test|dev"
_TITLE = re.compile(rf"^(?:[^:=,|]{{0,60}}(?: - | \| ))?({_SIDES})\b[\w ]{{0,30}}: ", re.IGNORECASE)
_TITLED = re.compile(rf"([A-Za-z][\w@-]{{0,30}})[ :=]{{1,3}}{_NUMBER}(?:, |$)")
_ANY_WORD = re.compile(_WORDS, re.IGNORECASE)
# A part of each of these words: most lines have none, and such a search takes a tenth of the time.
_STEMS = (
    "acc", "perplexity", "ppl", "wer", "cer", "bleu", "f1", "match", "correct", "reward", "mrr", "p@1",
    "pass@1", "core", "margin", "kl", "auc", "auroc",
)  # fmt: skip


@dataclass(frozen=True)
class MetricSeries:
    name: str  # as printed
    metric: Metric
    iteration: NDArray[np.int64]  # -1: not known
    line: NDArray[np.int64]
    value: NDArray[np.float64]


@dataclass(frozen=True)
class MetricCourse:
    """A metric from the start to the end of a run. Means of `mean_of` values, if that is above 1."""

    name: str
    kind: str
    values: int
    mean_of: int
    first: float
    last: float
    highest: float
    highest_iteration: int | None
    lowest: float
    lowest_iteration: int | None
    higher_is_better: bool | None
    mean: float  # of all values
    stderr: float  # of a mean of `mean_of` values; 0: not known
    is_noise: bool  # the values differ by chance alone, as far as they show
    is_eval: bool  # of held-out data
    last_alike: int  # so many values at the end are one and the same number

    @property
    def best(self) -> float:
        return self.lowest if self.higher_is_better is False else self.highest

    @property
    def best_iteration(self) -> int | None:
        return self.lowest_iteration if self.higher_is_better is False else self.highest_iteration

    @property
    def got_worse(self) -> bool:
        """From its start to its end, by more than noise."""
        loss = (self.first - self.last) * (-1 if self.higher_is_better is False else 1)
        least = max(self.noise, _MIN_CHANGE_SHARE * abs(self.first))
        return self.higher_is_better is not None and not self.is_noise and loss > least

    @property
    def noise(self) -> float:
        """The difference of two of its values that may be chance."""
        return _CLEAR_ERRORS * math.sqrt(2) * self.stderr


class MetricRecorder:
    def __init__(self) -> None:
        self._columns: dict[str, tuple[Metric, array[int], array[int], array[float]]] = {}
        self._strides: dict[str, tuple[int, int]] = {}  # every so many is kept; how many came since

    def add(self, values: Mapping[str, float], iteration: int | None, line: int) -> bool:
        """Whether any of these is a metric."""
        has_metric = False
        for name, value in values.items():
            metric = metric_of(name)
            if metric is None or not abs(value) < _MAX_ABS:
                continue
            has_metric = True
            if name not in self._columns:
                if len(self._columns) >= _MAX_SERIES:
                    continue
                self._columns[name] = metric, array("q"), array("q"), array("d")
                self._strides[name] = 1, 0
            _, iterations, lines, series = self._columns[name]
            stride, passed = self._strides[name]
            if passed + 1 >= stride:
                iterations.append(_UNKNOWN if iteration is None or iteration > _MAX_ABS else iteration)
                lines.append(line)
                series.append(value)
                passed = -1
                if len(series) >= _MAX_VALUES:
                    stride *= 2
                    for column in (iterations, lines, series):
                        del column[::2]
            self._strides[name] = stride, passed + 1
        return has_metric

    def series(self, numbers: Mapping[int, int] | None = None) -> tuple[MetricSeries, ...]:
        """`numbers`: of a trainer whose lines are counted, count -> iteration; empty: not known."""
        made = []
        for name, (metric, iterations, lines, values) in self._columns.items():
            at = np.array(iterations, dtype=np.int64)
            if numbers is not None:
                at = np.array([numbers.get(count, _UNKNOWN) for count in iterations], dtype=np.int64)
            made.append(
                MetricSeries(name, metric, at, np.array(lines, dtype=np.int64), np.array(values, dtype=float))
            )
        return tuple(made)


def read_metric_line(text: str) -> dict[str, float]:
    """Of a line that is no step: the metric that it is about, if it is about nothing else."""
    if len(text) > 200 or not may_have_metric(text) or not _ANY_WORD.search(text):
        return {}
    if (title := _TITLE.match(text)) and not _TITLED.sub("", text[title.end() :]):
        pairs = _TITLED.findall(text, title.end())
        return {f"{title[1]} {name}": float(number) for name, number in pairs}
    if not (match := _LINE.match(text)):
        return {}
    name = re.sub(r"^\W+", "", f"{match[1] or ''}{match[2]}")
    value = float(match[3])
    return {name: value / 100 if match[4] else value}


def may_have_metric(text: str) -> bool:
    """Whether a line may be one of a metric, or have one; or some line of a block."""
    lower = text.lower()
    return any(stem in lower for stem in _STEMS)


def of_lines(series: Sequence[MetricSeries], first_line: int, last_line: int) -> list[MetricSeries]:
    """Their parts in these lines; 0: all lines."""
    if not first_line:
        return list(series)
    parts = []
    for one in series:
        rows = (one.line >= first_line) & (one.line <= last_line)
        if rows.any():
            parts.append(
                MetricSeries(one.name, one.metric, one.iteration[rows], one.line[rows], one.value[rows])
            )
    return parts


def without_other_models(
    series: Sequence[MetricSeries], first_step: tuple[int, int], last_step_line: int
) -> list[MetricSeries]:
    """Without values of models that other runs of the file made: those before the first step (its line and
    iteration) that say a later iteration, and of several after the last step all but the first."""
    parts = []
    for one in series:
        is_earlier = (one.line < first_step[0]) & (one.iteration >= first_step[1])
        rows = ~is_earlier & ((one.line <= last_step_line) | (np.cumsum(one.line > last_step_line) == 1))
        if rows.any():
            parts.append(
                MetricSeries(one.name, one.metric, one.iteration[rows], one.line[rows], one.value[rows])
            )
    return parts


def courses(series: Sequence[MetricSeries]) -> list[MetricCourse]:
    """At most three, the most telling first: one of each kind, and of accuracies one of each split."""
    chosen: dict[tuple[str, bool], MetricSeries] = {}
    for one in sorted(series, key=lambda one: (one.metric.rank, -len(one.value))):
        chosen.setdefault((one.metric.kind, one.metric.is_eval), one)
    return [_course(one) for one in list(chosen.values())[:MAX_SHOWN]]


def course_of(series: Sequence[MetricSeries], kind: str) -> MetricCourse | None:
    """Of the first of this kind."""
    ranked = sorted((one for one in series if one.metric.kind == kind), key=lambda one: one.metric.rank)
    return _course(ranked[0]) if ranked else None


def _course(series: MetricSeries) -> MetricCourse:
    values, iteration = series.value, series.iteration
    noise = detrended_std(values) or 0.0
    # An evaluation is of many examples already, if not of enough where its values scatter.
    is_noisy = len(values) >= _MIN_SMOOTHED and (
        not series.metric.is_eval or noise > _MAX_EVAL_NOISE_SHARE * float(np.ptp(values))
    )
    mean_of = len(values) // _ENDS_SHARE if is_noisy else 1
    means = np.convolve(values, np.full(mean_of, 1 / mean_of), mode="valid") if mean_of > 1 else values
    middle = mean_of // 2

    def at(row: int) -> int | None:
        number = int(iteration[row + middle])
        return None if number == _UNKNOWN else number

    highest, lowest = int(means.argmax()), int(means.argmin())
    blocks = [float(np.mean(one)) for one in np.array_split(values, min(_TREND_BLOCKS, len(values)))]
    return MetricCourse(
        name=series.name,
        kind=series.metric.kind,
        values=len(values),
        mean_of=mean_of,
        first=float(means[0]),
        last=float(means[-1]),
        highest=float(means[highest]),
        highest_iteration=at(highest),
        lowest=float(means[lowest]),
        lowest_iteration=at(lowest),
        higher_is_better=series.metric.higher_is_better,
        mean=float(np.mean(values)),
        stderr=noise / math.sqrt(mean_of),
        is_noise=is_noise(np.array(blocks)),
        is_eval=series.metric.is_eval,
        last_alike=int(np.argmin(np.append(values[::-1] == values[-1], False))),
    )


def repeats_loss(series: MetricSeries, iteration: NDArray[np.int64], loss: NDArray[np.float64]) -> bool:
    """Whether a perplexity is nothing but the exponential of these losses."""
    if series.metric.kind != "perplexity" or not len(loss) or not (series.value > 0).all():
        return False
    rows = np.clip(np.searchsorted(iteration, series.iteration), 0, len(loss) - 1)
    same = np.abs(np.log(series.value) - loss[rows]) < 0.02
    return bool(same.mean() > 0.8) and not math.isnan(float(loss[rows].sum()))


def tokens_of_sums(
    series: MetricSeries, iteration: NDArray[np.int64], loss: NDArray[np.float64]
) -> float | None:
    """Over how many tokens these losses are sums, as the perplexities of the same evaluations show: the ratio
    of both is always the same. Of few, none can be a mean, and each perplexity is one of text. None: no sums.
    """
    if series.metric.kind != "perplexity" or not (series.value > 1).all():
        return None
    _, first, second = np.intersect1d(series.iteration, iteration, return_indices=True)
    means, losses = np.log(series.value[first]), loss[second]
    if not len(means) or not np.isfinite(means).all():
        return None
    is_clear = len(means) >= _MIN_SUMS and means.max() >= _MIN_SUM_RANGE * means.min()
    if not is_clear and (losses.min() <= _MAX_MEAN_LOSS or means.max() >= _MAX_MEAN_LOSS):
        return None
    tokens = losses / means
    middle = float(np.median(tokens))
    is_same = np.abs(tokens - middle) <= _MAX_SUM_ERROR * middle
    return middle if middle >= _MIN_SUMMED_TOKENS and bool(is_same.all()) else None


def is_preference(series: Sequence[MetricSeries]) -> bool:
    """Of chosen and rejected answers (DPO): its loss is a cross-entropy, and measures learning."""
    return any(one.metric.kind == "margin" or "preference" in normalise(one.name) for one in series)
