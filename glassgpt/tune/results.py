"""What the trials have shown so far: which setting is how fast, and how sure that is."""

from __future__ import annotations

import math
from statistics import median

from glassgpt.tune.setting import Setting
from glassgpt.tune.trial import Figures, Trial, figures_of
from glassgpt.tune.tune_facts import Ground

WORTH = 0.01  # a gain of less is not worth a change, nor more memory
_MOST_NOISE = 0.1
_ROUNDS_TO_PAIR = 2


class Evidence:
    """`found` has every trial, `left_out` what was worth one and had none, with the reason."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.found: dict[Setting, list[Trial]] = {}
        self.left_out: dict[Setting, str] = {}
        self._figures: dict[Setting, Figures | None] = {}

    def add(self, setting: Setting, trial: Trial) -> None:
        self.left_out.pop(setting, None)
        self._figures.pop(setting, None)
        self.found.setdefault(setting, []).append(trial)

    def outcome(self, setting: Setting) -> str:
        return self.found[setting][-1].outcome if setting in self.found else "not tried"

    def figures(self, setting: Setting) -> Figures | None:
        if setting not in self._figures:
            self._figures[setting] = figures_of(self.found.get(setting, ()))
        return self._figures[setting]

    def keeps_headroom(self, figures: Figures) -> bool:
        return figures.peak_bytes is None or figures.peak_bytes <= self.ground.room_bytes

    def speed(self, setting: Setting) -> float:
        """Tokens/s over the whole run, what compiling takes included; 0 where it cannot be chosen."""
        figures = self.figures(setting)
        if figures is None or not self.keeps_headroom(figures):
            return 0.0
        return run_speed(self.ground, setting, figures)

    def best(self) -> Setting:
        """The fastest that can be chosen; of those that are hardly slower, the first: it is simpler."""
        top = max(map(self.speed, self.found))
        return next(setting for setting in self.found if self.speed(setting) * (1 + WORTH) >= top)

    def gains(self, setting: Setting, over: Setting) -> bool:
        return self.speed(setting) > self.speed(over) * (1 + WORTH)

    def is_quicker_at_work(self, setting: Setting, than: Setting) -> bool:
        """By its updates alone, whatever comes before them."""
        figures, others = self.figures(setting), self.figures(than)
        if figures is None or others is None:
            return False
        return figures.update_s * (1 + WORTH) < others.update_s

    def lag(self, setting: Setting, behind: Setting) -> float:
        """By what share it is slower."""
        return 1 - self.speed(setting) / self.speed(behind)

    def noise(self, one: Setting, other: Setting) -> float:
        """The error of comparing the two, as a share."""
        if one == other:
            return 0.0
        errors = [figures.error for setting in (one, other) if (figures := self.figures(setting)) is not None]
        return min(math.hypot(*errors), self._noise_in_turns(one, other))

    def _noise_in_turns(self, one: Setting, other: Setting) -> float:
        """Where both were measured several times in turns: a machine that drifts slows both down, and what
        remains is how much the ratio of neighbours varies."""
        trials = [[trial for trial in self.found.get(it, ()) if trial.update_s] for it in (one, other)]
        rounds = min(map(len, trials)) - 1  # the first time was not yet in turns
        if rounds < _ROUNDS_TO_PAIR:
            return math.inf
        pairs = zip(trials[0][-rounds:], trials[1][-rounds:], strict=True)
        ratios = [median(a.update_s) / median(b.update_s) for a, b in pairs]
        return (max(ratios) - min(ratios)) / rounds

    def is_as_fast(self, setting: Setting, other: Setting) -> bool:
        """Within the noise, or what is not worth a change. Where all is noise, the median still decides."""
        return self.lag(setting, other) <= max(WORTH, min(_MOST_NOISE, self.noise(setting, other)))


def run_speed(ground: Ground, setting: Setting, figures: Figures) -> float:
    """Tokens/s from the first update to the last. Only compiling takes long enough at every start to count,
    even where what was compiled is kept; our kernels stay on the disk once they are built."""
    seconds = ground.updates * figures.update_s
    if setting.compile:
        seconds += max(0.0, figures.first_s - figures.update_s)
    return ground.updates * ground.tokens / seconds
