"""The trials so far: speeds, their errors, and from these the time and memory of the next trial."""

from __future__ import annotations

import math
from statistics import median

from glassgpt.config import TrainConfig
from glassgpt.estimate import overheads
from glassgpt.tune.speed_settings import SpeedSettings, TuneContext
from glassgpt.tune.trial import Trial, UpdateStats, summarize_updates

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

    def leaves_headroom(self, figures: UpdateStats) -> bool:
        return figures.peak_bytes is None or figures.peak_bytes <= self.context.usable_bytes

    def tokens_per_s(self, setting: SpeedSettings) -> float:
        """Tokens/s over the whole run, compile time included; 0 for settings that cannot be chosen."""
        figures = self.stats(setting)
        if figures is None or not self.leaves_headroom(figures):
            return 0.0
        return run_tokens_per_s(self.context, setting, figures)

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
        figures, others = self.stats(setting), self.stats(than)
        if figures is None or others is None:
            return False
        return figures.update_s * (1 + MIN_WORTHWHILE_GAIN) < others.update_s

    def slowdown(self, setting: SpeedSettings, behind: SpeedSettings) -> float:
        """How much slower, as a fraction."""
        return 1 - self.tokens_per_s(setting) / self.tokens_per_s(behind)

    def comparison_error(self, one: SpeedSettings, other: SpeedSettings) -> float:
        """The error of the ratio of the two, as a fraction.

        Where both were measured several times in alternation, a machine that drifts slows both down: then the
        error is how much the ratio of neighbouring trials varies."""
        if one == other:
            return 0.0
        errors = [figures.error for setting in (one, other) if (figures := self.stats(setting)) is not None]
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


def run_tokens_per_s(context: TuneContext, setting: SpeedSettings, figures: UpdateStats) -> float:
    """Tokens/s from the first update to the last. Compile time counts, since every start pays some of it;
    Triton kernels are cached on disk once they are built."""
    seconds = context.updates * figures.update_s
    if setting.compile:
        seconds += max(0.0, figures.first_s - figures.update_s)
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
        limit = self._context.usable_bytes if self._context.device_type == "cpu" else self._context.free_bytes
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
        rates = [context.tokens_per_update / figures.update_s for figures in known if figures is not None]
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
        figures, context = self._results.stats(setting), self._context
        run_s = context.updates * figures.update_s if figures else 0.0
        return overheads.compile_cost_s(context.device_type, context.n_layer) < _MAX_COMPILE_SAVING * run_s

    def trial_bytes(self, setting: SpeedSettings) -> float:
        """The estimate, corrected by its error for the nearest micro-batch that was measured."""
        counted = self._context.estimated_bytes(self._config, setting)
        measured = {
            tried: figures.peak_bytes
            for tried in self._results.trials
            if (figures := self._results.stats(tried)) is not None and figures.peak_bytes is not None
        }
        if not measured:
            return counted
        nearest = min(measured, key=lambda tried: abs(tried.micro_batch - setting.micro_batch))
        then = self._context.estimated_bytes(self._config, nearest)
        return measured[nearest] + (counted - then) * measured[nearest] / then
