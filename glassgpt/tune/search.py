"""The search: from the automatic choice outward, one dimension at a time, until nothing gains or time is up.

    micro-batch up and down  ->  graph, attention, kernels, data  ->  threads  ->  compile, the winners again

It knows neither torch nor the machine: `measure` does a trial, the budget's `clock` tells the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.tune import candidates
from glassgpt.tune.budget import NO_TIME, TOO_SHORT_A_RUN, Foresight
from glassgpt.tune.results import WORTH, Evidence
from glassgpt.tune.setting import Setting
from glassgpt.tune.trial import Trial
from glassgpt.tune.tune_facts import Ground

Measure = Callable[[Setting, float], Trial]  # within so many seconds

_STEEP = 0.03  # a micro-batch that gained so much lets hope for more
_CLOSE = 0.04  # to the best: measured again before it is ruled out
_FINALISTS = 3
_ROUNDS = 6
_COMPILED_ROUNDS = 2


@dataclass(frozen=True)
class Step:
    """For whoever watches: what is being tried, or what came of it."""

    setting: Setting
    trial: Trial | None  # None: it begins
    best: float | None  # tokens/s so far
    left_s: float


@dataclass(frozen=True)
class Budget:
    seconds: float
    began: float  # by the clock
    clock: Callable[[], float] = time.monotonic

    @property
    def spent_s(self) -> float:
        return self.clock() - self.began

    @property
    def left_s(self) -> float:
        return self.began + self.seconds - self.clock()


class Search:
    def __init__(
        self,
        config: TrainConfig,
        ground: Ground,
        measure: Measure,
        budget: Budget,
        fixed: Collection[str] = (),
        told: Callable[[Step], None] = lambda step: None,
    ) -> None:
        """`fixed`: names of the settings that the user has said, which stay as they are."""
        self._config, self._ground, self._measure = config, ground, measure
        self._budget, self._fixed, self._told = budget, fixed, told
        self.evidence = Evidence(ground)
        self._foresight = Foresight(config, self.evidence)

    def run(self) -> Evidence:
        self._begin()
        if self._ground.threads > self._ground.usable_cores:
            self._try_threads()  # they get into each other's way: that comes before everything else
        self._climb()
        self._try_cheap()
        self._try_threads()
        self._try_checkpointing()
        # With our kernels, compiling promises little.
        steps = (self._try_compiled, self._confirm)
        for step in reversed(steps) if self.evidence.best().kernels else steps:
            step()
        self._check_compared()
        return self.evidence

    def _check_compared(self) -> None:
        """The only one that ran is no choice, unless it is what the run would do anyway."""
        (first, *others) = [one for one in self.evidence.found if self.evidence.speed(one)]
        usual = first == self._uncompiled(self._ground.automatic)
        if not others and not usual and NO_TIME in self.evidence.left_out.values():
            raise UserError(too_short(self._budget.seconds))

    # --- trying ---

    def _try(self, setting: Setting) -> None:
        """Measured now, if it was not before, and if there is time and memory for it."""
        if setting in self.evidence.found:
            return
        reason = self._foresight.why_not(setting, self._budget.left_s)
        if reason:
            self.evidence.left_out[setting] = reason
        else:
            self._do(setting)

    def _do(self, setting: Setting) -> None:
        best = max(map(self.evidence.speed, self.evidence.found), default=0.0) or None
        self._told(Step(setting, None, best, self._budget.left_s))
        trial = self._measure(setting, self._foresight.limit_s(setting, self._budget.left_s))
        self.evidence.add(setting, trial)
        self._foresight.done(setting)
        self._told(Step(setting, trial, best, self._budget.left_s))

    def _is_open(self, name: str) -> bool:
        return candidates.is_open(name, self._ground, self._fixed)

    def _sizes(self) -> tuple[int, ...]:
        return self._ground.micro_batches if self._is_open("micro_batch") else (self._ground.automatic_batch,)

    # --- the start ---

    def _begin(self) -> None:
        """The automatic choice, not compiled unless asked; where that fails, whatever runs."""
        at: Setting | None = self._quick_enough(self._uncompiled(self._ground.automatic))
        assert at is not None
        self._try(at)
        if self.evidence.outcome(at) == "crashed":
            at = candidates.plain(at)
            self._try(at)
        while at is not None and self._lacks_memory(at) and self._budget.left_s > 0:
            at = self._smaller(at)
            if at is not None:
                self._do(at)
        if not any(map(self.evidence.speed, self.evidence.found)):
            raise UserError(self._complaint())

    def _quick_enough(self, start: Setting) -> Setting:
        """On a slow machine, the largest micro-batch that leaves time for others."""
        sizes = [size for size in self._sizes() if size < start.micro_batch]
        if self._foresight.is_quick(start, self._budget.left_s) or not sizes:
            return start
        self.evidence.left_out[start] = NO_TIME
        smaller = [self._like(start, size) for size in sizes]
        quick = [one for one in smaller if self._foresight.is_quick(one, self._budget.left_s)]
        return quick[-1] if quick else smaller[0]

    def _uncompiled(self, setting: Setting) -> Setting:
        return setting if "compile" in self._fixed else replace(setting, compile=False)

    def _lacks_memory(self, setting: Setting) -> bool:
        """Whether that is why it cannot be chosen; where it ran, it left no headroom."""
        outcome = self.evidence.outcome(setting)
        return not self.evidence.speed(setting) and outcome in ("not tried", "out of memory", "ran")

    def _smaller(self, setting: Setting) -> Setting | None:
        """The next that may fit: at first as counted, then half; at last one sequence, checkpointed."""
        sizes = [size for size in self._sizes() if size < setting.micro_batch]
        at = {size: self._like(setting, size) for size in sizes}
        room, count = self._ground.room_bytes, self._ground.estimated_bytes
        fitting = [size for size in sizes if count(self._config, at[size]) <= room]
        if setting.micro_batch == self._ground.automatic_batch and fitting:
            return at[fitting[-1]]
        half = candidates.step_down(sizes, setting.micro_batch)
        if half is not None:
            return at[half]
        if setting.checkpointing or not self._is_open("checkpointing"):
            return None
        return replace(setting, checkpointing=True)

    def _complaint(self) -> str:
        """Why there is nothing to choose from."""
        found = self.evidence.found
        last = next(reversed(found.values()))[-1] if found else None
        if self._budget.left_s <= 0 or (last is not None and last.outcome == "hung"):
            return too_short(self._budget.seconds)
        if last is None or last.outcome in ("ran", "out of memory"):
            smallest = min(setting.micro_batch for setting in (*found, *self.evidence.left_out))
            return (
                f"not even a micro-batch of {smallest} fits in memory with room to spare: "
                "a smaller --n_embd, --n_layer or --block_size would"
            )
        return f"no trial succeeded: {last.outcome}: {last.why}"

    # --- micro-batch ---

    def _climb(self) -> None:
        """Larger micro-batches while they gain, then smaller ones; one on each side that does not."""
        for step in (candidates.step_up, candidates.step_down):
            at = self.evidence.best()
            if step is candidates.step_down and self._has_slower_below(at):
                return
            while (size := step(self._sizes(), at.micro_batch)) is not None:
                there = self._try_size(at, size)
                if not self.evidence.gains(there, over=at):
                    if step is candidates.step_up and self._has_no_room(there):
                        self._try_between(at, size)
                    break
                at = there

    def _has_slower_below(self, at: Setting) -> bool:
        """Whether a smaller one not far away has lost already, on the way up."""
        near = [size for size in self._sizes() if at.micro_batch / 3 <= size < at.micro_batch]
        below = [self._like(at, size) for size in near]
        return any(self.evidence.speed(one) and self.evidence.gains(at, over=one) for one in below)

    def _try_size(self, at: Setting, size: int) -> Setting:
        """As a run would have it there; if that gains nothing, exactly as here."""
        there, same = self._like(at, size), replace(at, micro_batch=size)
        self._try(there)
        if there != same and not self.evidence.gains(there, over=at) and not self._has_no_room(there):
            self._try(same)
            return max(there, same, key=self.evidence.speed)
        return there

    def _has_no_room(self, setting: Setting) -> bool:
        return self._lacks_memory(setting) and self.evidence.left_out.get(setting) != NO_TIME

    def _try_between(self, at: Setting, too_large: int) -> None:
        """The next size has no room; where more would gain, one in between may have."""
        lower = candidates.step_down(self._sizes(), at.micro_batch)
        below = self.evidence.speed(self._like(at, lower)) if lower is not None else 0.0
        if below and self.evidence.speed(at) < below * (1 + _STEEP):
            return
        for _ in range(2):
            size = candidates.between(self._sizes(), at.micro_batch, too_large)
            if size is None:
                return
            self._try(self._like(at, size))
            if not self._has_no_room(self._like(at, size)):
                return
            too_large = size

    def _like(self, setting: Setting, size: int) -> Setting:
        """The automatic choice for that micro-batch, with all that was found better than automatic."""
        base, to = (self._uncompiled(self._ground.automatic_at(n)) for n in (setting.micro_batch, size))
        return setting.carried_over(base, to)

    # --- the rest ---

    def _try_cheap(self) -> None:
        before = self.evidence.best()
        for name in candidates.cheap_dimensions(self._ground, self._fixed):
            for setting in candidates.flips(self._ground, self.evidence.best(), name):
                self._try(setting)
        if any(self.evidence.best().differences(before)):  # which may suit another micro-batch
            self._climb()

    def _try_threads(self) -> None:
        """Fewer and fewer, until that loses."""
        if not self._is_open("threads"):
            return
        for count in candidates.thread_counts(self._ground.usable_cores, self._ground.threads):
            best = self.evidence.best()
            if count == best.threads:
                continue
            there = replace(best, threads=count)
            self._try(there)
            fewer = count < (best.threads or self._ground.threads)
            if fewer and not self.evidence.gains(there, over=best):
                break

    def _try_checkpointing(self) -> None:
        """Where memory keeps a larger micro-batch from being tried: it costs time, and saves memory."""
        best = self.evidence.best()
        size = candidates.step_up(self._sizes(), best.micro_batch)
        if best.checkpointing or size is None or not self._is_open("checkpointing"):
            return
        there = self._like(best, size)
        known = there in self.evidence.found or there in self.evidence.left_out
        if known and self._has_no_room(there):
            self._try(replace(there, checkpointing=True))

    def _try_compiled(self) -> None:
        best = self.evidence.best()
        if not self._is_open("compile") or best.compile or self._ground.float8:
            return
        there = candidates.compiled(best)
        if self._foresight.compiling_pays(best):
            self._try(there)
            self._try_kept(there, best)
        else:
            self.evidence.left_out[there] = TOO_SHORT_A_RUN

    def _try_kept(self, compiled: Setting, best: Setting) -> None:
        """What is compiled once is kept, and the run to come starts with it: so it is measured once more,
        in turns with the best, where it may win."""
        for _ in range(_COMPILED_ROUNDS):
            round_s = self._foresight.seconds(best) + self._foresight.seconds(compiled)
            if round_s > self._budget.left_s or not self.evidence.is_quicker_at_work(compiled, best):
                return
            self._do(best)
            self._do(compiled)

    # --- the winners again ---

    def _confirm(self) -> None:
        """Those that are close, in turns: what the machine does meanwhile hits them all."""
        for number in range(_ROUNDS):
            close = self._finalists()
            if len(close) < 2 or sum(map(self._foresight.seconds, close)) > self._budget.left_s:
                return
            # There and back: a card that has just worked hard is slower at first.
            for setting in reversed(close) if number % 2 else close:
                if self._foresight.seconds(setting) > self._budget.left_s:
                    return
                self._do(setting)

    def _finalists(self) -> list[Setting]:
        """The fastest, and whatever may be as fast as far as is known; none once that is settled."""
        evidence, best = self.evidence, self.evidence.best()
        # What compiles takes too long to be done again.
        able = [one for one in evidence.found if evidence.speed(one) and not one.compile]
        order = sorted(able, key=evidence.speed, reverse=True)
        close = [one for one in order if self._may_match(one, best)]
        automatic = [one for one in close[_FINALISTS:] if one == self._ground.automatic]
        close = close[: _FINALISTS - len(automatic)] + automatic
        repeated = all(len(evidence.found[one]) > 1 for one in close)
        in_doubt = any(evidence.noise(one, close[0]) > WORTH for one in close[1:])
        return close if in_doubt or not repeated else []

    def _may_match(self, setting: Setting, best: Setting) -> bool:
        return self.evidence.lag(setting, best) <= max(_CLOSE, 2 * self.evidence.noise(setting, best))


def too_short(budget_s: float) -> str:
    more = max(90, 4 * budget_s)
    return f"--budget={budget_s:g}s is too short to compare anything here: try --budget={more:.0f}s"
