"""What a trial will take, in seconds and in memory, by those before it."""

from __future__ import annotations

from statistics import median

from glassgpt.config import TrainConfig
from glassgpt.estimate import overheads
from glassgpt.tune.results import TrialResults
from glassgpt.tune.setting import SpeedSettings

_DURATION_MARGIN = 1.25  # a trial may take so much longer than those before
_HANG_FACTOR = 6  # times the expected time; then it hangs
_MIN_HANG_LIMIT_S = 20.0

_MIN_TRIAL_UPDATES = 4  # of a trial, warming up included
_FIRST_TRIAL_BUDGET_SHARE = 0.4  # of the budget, that the first trial may take
_MAX_COMPILE_SAVING = 0.5  # of a run's time, by compiling
_COMPILE_CACHE_SAVING = 0.6  # of what compiling takes, that need not be done the second time

NO_TIME = "no time left"
RUN_TOO_SHORT = "the run is too short to save what it takes"


class TrialEstimator:
    def __init__(self, config: TrainConfig, evidence: TrialResults) -> None:
        self._config, self._results, self._context = config, evidence, evidence.context
        self._threads: int | None = None  # of the trial before; others need a new process

    def note_trial(self, setting: SpeedSettings) -> None:
        self._threads = setting.threads

    def reason_to_skip(self, setting: SpeedSettings, left_s: float) -> str:
        """What speaks against trying it now; empty if nothing does."""
        if self.trial_s(setting) > left_s:
            return NO_TIME
        # On a card it may run out, and that is that. A machine without memory drags everything down with it.
        limit = self._context.usable_bytes if self._context.device_type == "cpu" else self._context.free_bytes
        need = self.trial_bytes(setting)
        return f"it would take about {need / 2**30:.1f} GiB" if need > limit else ""

    def trial_s(self, setting: SpeedSettings) -> float:
        """0 for the first of all: nothing is known of it, and it is needed."""
        found, kind = self._results.trials, self._context.device_type
        if setting in found:
            last = found[setting][-1]
            kept_s = (
                _COMPILE_CACHE_SAVING * last.first_s if setting.compile and len(found[setting]) == 1 else 0.0
            )
            return _DURATION_MARGIN * (last.wall_s - kept_s)
        alike, others = self._overheads_s(setting.compile), self._overheads_s(not setting.compile)
        if alike:
            expected = median(alike)
        elif setting.compile and others:
            expected = median(others) + overheads.compile_cost_s(kind, self._context.n_layer)
        else:
            return 0.0
        expected += self._min_updates_s(setting)
        if setting.kernels and not any(one.kernels for one in found):
            expected += overheads.KERNEL_BUILD_S
        if setting.threads != self._threads:
            expected += overheads.STARTUP_S[kind]
        return _DURATION_MARGIN * expected

    def _overheads_s(self, compiled: bool) -> list[float]:
        """What the trials took besides the updates that each needs."""
        found = self._results.trials
        return [
            max(0.0, trial.wall_s - self._min_updates_s(one))
            for one in found
            if one.compile == compiled
            for trial in found[one]
        ]

    def _min_updates_s(self, setting: SpeedSettings) -> float:
        """Of the few updates at least, at the best rate so far: on a slow machine they are most of it."""
        ground = self._context
        tokens = ground.trial_micro_steps(setting) * setting.micro_batch * ground.block_size
        known = (self._results.stats(one) for one in self._results.trials)
        rates = [ground.tokens_per_update / figures.update_s for figures in known if figures is not None]
        return _MIN_TRIAL_UPDATES * tokens / max(rates) if rates else 0.0

    def fits_as_first_trial(self, setting: SpeedSettings, left_s: float) -> bool:
        """Whether it can be the first of all, as far as can be known before: some are needed besides it."""
        micro_s = self._context.estimated_micro_batch_s(setting)
        steps = self._context.trial_micro_steps(setting)
        return micro_s is None or _MIN_TRIAL_UPDATES * steps * micro_s < _FIRST_TRIAL_BUDGET_SHARE * left_s

    def hang_limit_s(self, setting: SpeedSettings, left_s: float) -> float:
        """When it is taken to hang."""
        expected = self.trial_s(setting)
        patience = max(_MIN_HANG_LIMIT_S, _HANG_FACTOR * expected) if expected else left_s
        return min(left_s, patience)

    def can_compiling_pay(self, setting: SpeedSettings) -> bool:
        """Whether it can, if it goes very well: otherwise half a minute is better spent."""
        figures, ground = self._results.stats(setting), self._context
        run_s = ground.updates * figures.update_s if figures else 0.0
        return overheads.compile_cost_s(ground.device_type, ground.n_layer) < _MAX_COMPILE_SAVING * run_s

    def trial_bytes(self, setting: SpeedSettings) -> float:
        """As counted, and corrected by how wrong that was for the nearest one that ran."""
        counted = self._context.estimated_bytes(self._config, setting)
        measured = {
            one: figures.peak_bytes
            for one in self._results.trials
            if (figures := self._results.stats(one)) is not None and figures.peak_bytes is not None
        }
        if not measured:
            return counted
        nearest = min(measured, key=lambda one: abs(one.micro_batch - setting.micro_batch))
        then = self._context.estimated_bytes(self._config, nearest)
        return measured[nearest] + (counted - then) * measured[nearest] / then
