"""What the trials have shown so far: which setting is how fast, and how sure that is."""

from __future__ import annotations

import math
from statistics import median

from glassgpt.tune.setting import SpeedSettings
from glassgpt.tune.trial import Trial
from glassgpt.tune.trial import UpdateStats
from glassgpt.tune.trial import summarize_updates
from glassgpt.tune.tune_facts import TuneContext

MIN_WORTHWHILE_GAIN = 0.01  # a gain of less is not worth a change, nor more memory
_MAX_NOISE = 0.1
_MIN_PAIRED_ROUNDS = 2


class TrialResults:
    """`found` has every trial, `left_out` what was worth one and had none, with the reason."""

    def __init__(self, ground: TuneContext) -> None:
        self.context = ground
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
        """Tokens/s over the whole run, what compiling takes included; 0 where it cannot be chosen."""
        figures = self.stats(setting)
        if figures is None or not self.leaves_headroom(figures):
            return 0.0
        return run_tokens_per_s(self.context, setting, figures)

    def best_setting(self) -> SpeedSettings:
        """The fastest that can be chosen; of those that are hardly slower, the first: it is simpler."""
        top = max(map(self.tokens_per_s, self.trials))
        return next(
            setting
            for setting in self.trials
            if self.tokens_per_s(setting) * (1 + MIN_WORTHWHILE_GAIN) >= top
        )

    def is_faster(self, setting: SpeedSettings, over: SpeedSettings) -> bool:
        return self.tokens_per_s(setting) > self.tokens_per_s(over) * (1 + MIN_WORTHWHILE_GAIN)

    def has_faster_updates(self, setting: SpeedSettings, than: SpeedSettings) -> bool:
        """By its updates alone, whatever comes before them."""
        figures, others = self.stats(setting), self.stats(than)
        if figures is None or others is None:
            return False
        return figures.update_s * (1 + MIN_WORTHWHILE_GAIN) < others.update_s

    def slowdown(self, setting: SpeedSettings, behind: SpeedSettings) -> float:
        """By what share it is slower."""
        return 1 - self.tokens_per_s(setting) / self.tokens_per_s(behind)

    def comparison_error(self, one: SpeedSettings, other: SpeedSettings) -> float:
        """The error of comparing the two, as a share."""
        if one == other:
            return 0.0
        errors = [figures.error for setting in (one, other) if (figures := self.stats(setting)) is not None]
        return min(math.hypot(*errors), self._noise_in_turns(one, other))

    def _noise_in_turns(self, one: SpeedSettings, other: SpeedSettings) -> float:
        """Where both were measured several times in turns: a machine that drifts slows both down, and what
        remains is how much the ratio of neighbours varies."""
        trials = [[trial for trial in self.trials.get(it, ()) if trial.update_s] for it in (one, other)]
        rounds = min(map(len, trials)) - 1  # the first time was not yet in turns
        if rounds < _MIN_PAIRED_ROUNDS:
            return math.inf
        pairs = zip(trials[0][-rounds:], trials[1][-rounds:], strict=True)
        ratios = [median(a.update_s) / median(b.update_s) for a, b in pairs]
        return (max(ratios) - min(ratios)) / rounds

    def is_as_fast(self, setting: SpeedSettings, other: SpeedSettings) -> bool:
        """Within the noise, or what is not worth a change. Where all is noise, the median still decides."""
        return self.slowdown(setting, other) <= max(
            MIN_WORTHWHILE_GAIN, min(_MAX_NOISE, self.comparison_error(setting, other))
        )


def run_tokens_per_s(ground: TuneContext, setting: SpeedSettings, figures: UpdateStats) -> float:
    """Tokens/s from the first update to the last. Only compiling takes long enough at every start to count,
    even where what was compiled is kept; our kernels stay on the disk once they are built."""
    seconds = ground.updates * figures.update_s
    if setting.compile:
        seconds += max(0.0, figures.first_s - figures.update_s)
    return ground.updates * ground.tokens_per_update / seconds
