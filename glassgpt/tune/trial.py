"""One trial: its outcome, and the statistics of its updates. No torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Literal

TrialOutcome = Literal["ran", "out of memory", "crashed", "hung", "impossible"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """`update_s`: each update that was timed, in seconds."""

    outcome: TrialOutcome
    update_s: tuple[float, ...] = ()
    micro_steps: int = 0  # that each of them ran; the rest of a long update is extrapolated
    first_s: float = 0.0  # the first update, with building; if compiled, plus the first evaluation batch
    peak_bytes: int | None = None
    wall_s: float = 0.0  # of the whole trial
    why: str = ""  # why it did not run


# --- from marks to updates ---

UpdateMarks = Sequence[float]  # of one update: its start, the start of each micro-batch, its end


def update_seconds(updates: Sequence[UpdateMarks], micro_steps: int) -> list[float]:
    """How long each update takes with `micro_steps` micro-batches, of which it may have done fewer.

    The missing ones are extrapolated from those in the middle: the first micro-batch has no gradients to
    accumulate to, and the last includes the optimizer step. The mean per update keeps delays, as a whole
    update would.
    """
    done = len(updates[0]) - 2
    missing = micro_steps - done
    if missing <= 0:
        return [marks[-1] - marks[0] for marks in updates]
    middle_means = []
    for marks in updates:
        pairs = list(itertools.pairwise(marks[1:-1]))
        middle_means.append(mean(after - before for before, after in (pairs[1:] or pairs)))
    usual = median(middle_means)
    return [marks[-1] - marks[0] + missing * usual for marks in updates]


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


# --- statistics ---

_P10_P90_WIDTH_SIGMAS = 2.56  # of the middle 80 % of a normal distribution, in standard deviations
_MEDIAN_ERROR_FACTOR = 1.25  # the error of a median, in errors of the mean


@dataclass(frozen=True)
class UpdateStats:
    """Time and memory of an update with one setting, over all its trials."""

    update_s: float  # the median
    fast_s: float  # one in ten was faster
    slow_s: float  # one in ten was slower
    error: float  # of the median, as a share of it
    first_s: float
    peak_bytes: int | None


def summarize_updates(trials: Sequence[Trial]) -> UpdateStats | None:
    """None if none ran, or if one failed: a setting that sometimes fails must not be chosen.

    A trial that was cut off by the budget does not count as failed.
    """
    trials = [trial for trial in trials if trial.outcome != "hung"]
    if not trials or any(trial.outcome != "ran" for trial in trials):
        return None
    times = sorted(seconds for trial in trials for seconds in trial.update_s)
    peaks = [trial.peak_bytes for trial in trials if trial.peak_bytes is not None]
    # Each trial counts the same, however many updates it had time for.
    medians = [median(trial.update_s) for trial in trials]
    middle = median(medians)
    # The error: by the spread of the updates, or by how far the trials are apart, since a machine drifts.
    spread = (quantile(times, 0.9) - quantile(times, 0.1)) / _P10_P90_WIDTH_SIGMAS
    within = _MEDIAN_ERROR_FACTOR * spread / math.sqrt(len(times))
    between = (max(medians) - min(medians)) / len(medians)  # about the error of their mean, for a few
    return UpdateStats(
        update_s=middle,
        fast_s=min(middle, quantile(times, 0.1)),
        slow_s=max(middle, quantile(times, 0.9)),
        error=max(within, between) / middle,
        first_s=min(trial.first_s for trial in trials),
        peak_bytes=max(peaks, default=None),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
