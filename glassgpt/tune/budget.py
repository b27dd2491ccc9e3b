"""What a trial will take, in seconds and in memory, by those before it."""

from __future__ import annotations

from statistics import median

from glassgpt.config import TrainConfig
from glassgpt.estimate import overheads
from glassgpt.tune.results import Evidence
from glassgpt.tune.setting import Setting

_MARGIN = 1.25  # a trial may take so much longer than those before
_PATIENCE = 6  # times the expected time; then it hangs
_LEAST_PATIENCE_S = 20.0

_FEWEST_UPDATES = 4  # of a trial, warming up included
_FIRST_SHARE = 0.4  # of the budget, that the first trial may take
_MOST_SAVED = 0.5  # of a run's time, by compiling
_KEPT_SHARE = 0.6  # of what compiling takes, that need not be done the second time

NO_TIME = "no time left"
TOO_SHORT_A_RUN = "the run is too short to save what it takes"


class Foresight:
    def __init__(self, config: TrainConfig, evidence: Evidence) -> None:
        self._config, self._evidence, self._ground = config, evidence, evidence.ground
        self._threads: int | None = None  # of the trial before; others need a new process

    def done(self, setting: Setting) -> None:
        self._threads = setting.threads

    def why_not(self, setting: Setting, left_s: float) -> str:
        """What speaks against trying it now; empty if nothing does."""
        if self.seconds(setting) > left_s:
            return NO_TIME
        # On a card it may run out, and that is that. A machine without memory drags everything down with it.
        limit = self._ground.room_bytes if self._ground.device_type == "cpu" else self._ground.free_bytes
        need = self.bytes(setting)
        return f"it would take about {need / 2**30:.1f} GiB" if need > limit else ""

    def seconds(self, setting: Setting) -> float:
        """0 for the first of all: nothing is known of it, and it is needed."""
        found, kind = self._evidence.found, self._ground.device_type
        if setting in found:
            last = found[setting][-1]
            kept_s = _KEPT_SHARE * last.first_s if setting.compile and len(found[setting]) == 1 else 0.0
            return _MARGIN * (last.wall_s - kept_s)
        alike, others = self._starts(setting.compile), self._starts(not setting.compile)
        if alike:
            expected = median(alike)
        elif setting.compile and others:
            expected = median(others) + overheads.compile_cost_s(kind, self._ground.n_layer)
        else:
            return 0.0
        expected += self._updates_s(setting)
        if setting.kernels and not any(one.kernels for one in found):
            expected += overheads.BUILDING_S
        if setting.threads != self._threads:
            expected += overheads.STARTUP_S[kind]
        return _MARGIN * expected

    def _starts(self, compiled: bool) -> list[float]:
        """What the trials took besides the updates that each needs."""
        found = self._evidence.found
        return [
            max(0.0, trial.wall_s - self._updates_s(one))
            for one in found
            if one.compile == compiled
            for trial in found[one]
        ]

    def _updates_s(self, setting: Setting) -> float:
        """Of the few updates at least, at the best rate so far: on a slow machine they are most of it."""
        ground = self._ground
        tokens = ground.micro_steps_to_do(setting) * setting.micro_batch * ground.block_size
        known = (self._evidence.figures(one) for one in self._evidence.found)
        rates = [ground.tokens / figures.update_s for figures in known if figures is not None]
        return _FEWEST_UPDATES * tokens / max(rates) if rates else 0.0

    def is_quick(self, setting: Setting, left_s: float) -> bool:
        """Whether it can be the first of all, as far as can be known before: some are needed besides it."""
        micro_s = self._ground.micro_s(setting)
        steps = self._ground.micro_steps_to_do(setting)
        return micro_s is None or _FEWEST_UPDATES * steps * micro_s < _FIRST_SHARE * left_s

    def limit_s(self, setting: Setting, left_s: float) -> float:
        """When it is taken to hang."""
        expected = self.seconds(setting)
        patience = max(_LEAST_PATIENCE_S, _PATIENCE * expected) if expected else left_s
        return min(left_s, patience)

    def compiling_pays(self, setting: Setting) -> bool:
        """Whether it can, if it goes very well: otherwise half a minute is better spent."""
        figures, ground = self._evidence.figures(setting), self._ground
        run_s = ground.updates * figures.update_s if figures else 0.0
        return overheads.compile_cost_s(ground.device_type, ground.n_layer) < _MOST_SAVED * run_s

    def bytes(self, setting: Setting) -> float:
        """As counted, and corrected by how wrong that was for the nearest one that ran."""
        counted = self._ground.estimated_bytes(self._config, setting)
        measured = {
            one: figures.peak_bytes
            for one in self._evidence.found
            if (figures := self._evidence.figures(one)) is not None and figures.peak_bytes is not None
        }
        if not measured:
            return counted
        nearest = min(measured, key=lambda one: abs(one.micro_batch - setting.micro_batch))
        then = self._ground.estimated_bytes(self._config, nearest)
        return measured[nearest] + (counted - then) * measured[nearest] / then
