"""Trials: outcome, statistics, error; and from these the time and memory of the next one. No torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Literal

import numpy as np

from glassgpt.config import TrainConfig
from glassgpt.estimate import overheads
from glassgpt.tune.speed_settings import SpeedSettings, TuneContext

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
    times = [seconds for trial in trials for seconds in trial.update_s]
    peaks = [trial.peak_bytes for trial in trials if trial.peak_bytes is not None]
    # Each trial counts the same, however many updates it had time for.
    medians = [median(trial.update_s) for trial in trials]
    middle = median(medians)
    # The error: by the spread of the updates, or by how far the trials are apart, since a machine drifts.
    fast, slow = map(float, np.quantile(times, (0.1, 0.9)))
    spread = (slow - fast) / _P10_P90_WIDTH_SIGMAS
    within = _MEDIAN_ERROR_FACTOR * spread / math.sqrt(len(times))
    between = (max(medians) - min(medians)) / len(medians)  # about the error of their mean, for a few
    return UpdateStats(
        update_s=middle,
        fast_s=min(middle, fast),
        slow_s=max(middle, slow),
        error=max(within, between) / middle,
        first_s=min(trial.first_s for trial in trials),
        peak_bytes=max(peaks, default=None),
    )


MIN_WORTHWHILE_GAIN = 0.01  # a gain of less is not worth a change, nor more memory
_MAX_NOISE = 0.1
_MIN_PAIRED_ROUNDS = 2


class TrialResults:
    """`trials`: all of each setting. `skipped`: settings worth a trial that got none, with the reason."""

    def __init__(self, context: TuneContext) -> None:
        self.context = context
        self.trials: dict[SpeedSettings, list[Trial]] = {}
        self.skipped: dict[SpeedSettings, str] = {}
        self._stats: dict[SpeedSettings, UpdateStats | None] = {}

    def add(self, setting: SpeedSettings, trial: Trial) -> None:
        self.skipped.pop(setting, None)
        self._stats.pop(setting, None)
        self.trials.setdefault(setting, []).append(trial)

    def outcome(self, setting: SpeedSettings) -> str:
        return self.trials[setting][-1].outcome if setting in self.trials else "not tried"

    def stats(self, setting: SpeedSettings) -> UpdateStats | None:
        if setting not in self._stats:
            self._stats[setting] = summarize_updates(self.trials.get(setting, ()))
        return self._stats[setting]

    def leaves_headroom(self, stats: UpdateStats) -> bool:
        return stats.peak_bytes is None or stats.peak_bytes <= self.context.automatic_limit

    def tokens_per_s(self, setting: SpeedSettings) -> float:
        """Tokens/s over the whole run, compile time included; 0 for settings that cannot be chosen."""
        stats = self.stats(setting)
        if stats is None or not self.leaves_headroom(stats):
            return 0.0
        return run_tokens_per_s(self.context, setting, stats)

    def best_setting(self) -> SpeedSettings:
        """The first that is at most 1 % slower than the fastest: simple settings are tried first."""
        top = max(map(self.tokens_per_s, self.trials))
        return next(
            setting
            for setting in self.trials
            if self.tokens_per_s(setting) * (1 + MIN_WORTHWHILE_GAIN) >= top
        )

    def is_faster(self, setting: SpeedSettings, over: SpeedSettings) -> bool:
        return self.tokens_per_s(setting) > self.tokens_per_s(over) * (1 + MIN_WORTHWHILE_GAIN)

    def has_faster_updates(self, setting: SpeedSettings, than: SpeedSettings) -> bool:
        """Compares the updates alone, without compile time."""
        stats, others = self.stats(setting), self.stats(than)
        if stats is None or others is None:
            return False
        return stats.update_s * (1 + MIN_WORTHWHILE_GAIN) < others.update_s

    def slowdown(self, setting: SpeedSettings, behind: SpeedSettings) -> float:
        """How much slower, as a fraction."""
        return 1 - self.tokens_per_s(setting) / self.tokens_per_s(behind)

    def comparison_error(self, one: SpeedSettings, other: SpeedSettings) -> float:
        """The error of the ratio of the two, as a fraction.

        Where both were measured several times in alternation, a machine that drifts slows both down: then the
        error is how much the ratio of neighbouring trials varies."""
        if one == other:
            return 0.0
        errors = [stats.error for setting in (one, other) if (stats := self.stats(setting)) is not None]
        paired_error = math.inf
        trials = [[trial for trial in self.trials.get(it, ()) if trial.update_s] for it in (one, other)]
        rounds = min(map(len, trials)) - 1  # the first trial of each was not yet in alternation
        if rounds >= _MIN_PAIRED_ROUNDS:
            pairs = zip(trials[0][-rounds:], trials[1][-rounds:], strict=True)
            ratios = [median(a.update_s) / median(b.update_s) for a, b in pairs]
            paired_error = (max(ratios) - min(ratios)) / rounds
        return min(math.hypot(*errors), paired_error)

    def is_as_fast(self, setting: SpeedSettings, other: SpeedSettings) -> bool:
        """Slower by no more than the noise (at most 10 %), or by less than is worth a change."""
        return self.slowdown(setting, other) <= max(
            MIN_WORTHWHILE_GAIN, min(_MAX_NOISE, self.comparison_error(setting, other))
        )


def run_tokens_per_s(context: TuneContext, setting: SpeedSettings, stats: UpdateStats) -> float:
    """Tokens/s from the first update to the last. Compile time counts, since every start pays some of it;
    Triton kernels are cached on disk once they are built."""
    seconds = context.updates * stats.update_s
    if setting.compile:
        seconds += max(0.0, stats.first_s - stats.update_s)
    return context.updates * context.tokens_per_update / seconds


_DURATION_MARGIN = 1.25  # times the expected time, that a trial may take
_HANG_FACTOR = 6  # times the expected time, after which a trial counts as hung
_MIN_HANG_LIMIT_S = 20.0

_MIN_TRIAL_UPDATES = 4  # of a trial, warming up included
_FIRST_TRIAL_BUDGET_SHARE = 0.4  # of the budget, that the first trial may take
_MAX_COMPILE_SAVING = 0.5  # of a run's time, by compiling
_COMPILE_CACHE_SAVING = 0.6  # of what compiling takes, that need not be done the second time

NO_TIME = "no time left"
RUN_TOO_SHORT = "the run is too short for compiling to pay off"


class TrialEstimator:
    """Expected seconds and memory of a trial, from those before it."""

    def __init__(self, config: TrainConfig, results: TrialResults) -> None:
        self._config, self._results, self._context = config, results, results.context
        self.worker_threads: int | None = None  # of the previous trial; another count needs a new process

    def reason_to_skip(self, setting: SpeedSettings, left_s: float) -> str:
        """Why not to try it now; empty: try it."""
        if self.trial_s(setting) > left_s:
            return NO_TIME
        # On a GPU an out-of-memory error ends the trial only. A machine that swaps slows everything.
        limit = (
            self._context.automatic_limit if self._context.device_type == "cpu" else self._context.free_bytes
        )
        need = self.trial_bytes(setting)
        return f"it would take about {need / 2**30:.1f} GiB" if need > limit else ""

    def trial_s(self, setting: SpeedSettings) -> float:
        """Expected seconds of a trial; 0 for the very first, of which nothing is known."""
        trials, kind = self._results.trials, self._context.device_type
        if setting in trials:
            last = trials[setting][-1]
            cached_s = (
                _COMPILE_CACHE_SAVING * last.first_s if setting.compile and len(trials[setting]) == 1 else 0.0
            )
            return _DURATION_MARGIN * (last.wall_s - cached_s)
        if overheads_s := self._overheads_s(setting.compile):
            expected = median(overheads_s)
        elif setting.compile and (eager_s := self._overheads_s(compiled=False)):
            expected = median(eager_s) + overheads.compile_cost_s(kind, self._context.n_layer)
        else:
            return 0.0
        expected += self._min_updates_s(setting)
        if setting.kernels and not any(tried.kernels for tried in trials):
            expected += overheads.KERNEL_BUILD_S
        if setting.threads != self.worker_threads:
            expected += overheads.STARTUP_S[kind]
        return _DURATION_MARGIN * expected

    def _overheads_s(self, compiled: bool) -> list[float]:
        """Seconds that past trials took besides the updates that each needs."""
        return [
            max(0.0, trial.wall_s - self._min_updates_s(setting))
            for setting, trials in self._results.trials.items()
            if setting.compile == compiled
            for trial in trials
        ]

    def _min_updates_s(self, setting: SpeedSettings) -> float:
        """Seconds of the fewest updates of a trial, at the best rate so far."""
        context = self._context
        tokens = context.trial_micro_steps(setting) * setting.micro_batch * context.block_size
        known = map(self._results.stats, self._results.trials)
        rates = [context.tokens_per_update / stats.update_s for stats in known if stats is not None]
        return _MIN_TRIAL_UPDATES * tokens / max(rates) if rates else 0.0

    def fits_as_first_trial(self, setting: SpeedSettings, left_s: float) -> bool:
        """Whether the very first trial leaves enough of the budget for others."""
        micro_s = self._context.estimated_micro_batch_s(setting)
        steps = self._context.trial_micro_steps(setting)
        return micro_s is None or _MIN_TRIAL_UPDATES * steps * micro_s < _FIRST_TRIAL_BUDGET_SHARE * left_s

    def hang_limit_s(self, setting: SpeedSettings, left_s: float) -> float:
        """Seconds after which a trial counts as hung."""
        expected = self.trial_s(setting)
        patience = max(_MIN_HANG_LIMIT_S, _HANG_FACTOR * expected) if expected else left_s
        return min(left_s, patience)

    def can_compiling_pay(self, setting: SpeedSettings) -> bool:
        """Whether compiling could pay at all, if it went very well."""
        stats, context = self._results.stats(setting), self._context
        run_s = context.updates * stats.update_s if stats else 0.0
        return overheads.compile_cost_s(context.device_type, context.n_layer) < _MAX_COMPILE_SAVING * run_s

    def trial_bytes(self, setting: SpeedSettings) -> float:
        """The estimate, corrected by its error for the nearest micro-batch that was measured."""
        counted = self._context.estimated_bytes(self._config, setting)
        measured = {
            tried: stats.peak_bytes
            for tried in self._results.trials
            if (stats := self._results.stats(tried)) is not None and stats.peak_bytes is not None
        }
        if not measured:
            return counted
        nearest = min(measured, key=lambda tried: abs(tried.micro_batch - setting.micro_batch))
        then = self._context.estimated_bytes(self._config, nearest)
        return measured[nearest] + (counted - then) * measured[nearest] / then
