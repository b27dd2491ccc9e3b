"""The search: coordinate ascent from the automatic choice, until nothing gains or the budget is spent.

    micro-batch up and down  ->  graph, attention, kernels, data  ->  threads  ->  compile, the winners again

It imports no torch: `measure` runs a trial, the budget's `clock` tells the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.tune import speed_settings as candidates
from glassgpt.tune.results import (
    MIN_WORTHWHILE_GAIN,
    NO_TIME,
    RUN_TOO_SHORT,
    Trial,
    TrialEstimator,
    TrialResults,
)
from glassgpt.tune.speed_settings import SpeedSettings, TuneContext

Measure = Callable[[SpeedSettings, float], Trial]  # within so many seconds

_MIN_GAIN_TO_TRY_BETWEEN = 0.03  # of a larger micro-batch, to try one between it and the next
_FINALIST_SLOWDOWN = 0.04  # behind the best: measured again before it is ruled out
_FINALISTS = 3
_CONFIRM_ROUNDS = 6
_COMPILED_ROUNDS = 2


@dataclass(frozen=True)
class TrialEvent:
    """A trial begins, or has ended: for the console."""

    setting: SpeedSettings
    trial: Trial | None  # None: it is beginning
    best_tokens_per_s: float | None  # tokens/s so far
    left_s: float


@dataclass(frozen=True)
class Budget:
    seconds: float
    started_at: float  # by the clock
    clock: Callable[[], float] = time.monotonic

    @property
    def spent_s(self) -> float:
        return self.clock() - self.started_at

    @property
    def left_s(self) -> float:
        return self.started_at + self.seconds - self.clock()


class Search:
    def __init__(
        self,
        config: TrainConfig,
        context: TuneContext,
        measure: Measure,
        budget: Budget,
        fixed: Collection[str] = (),
        on_event: Callable[[TrialEvent], None] = lambda event: None,
    ) -> None:
        """`fixed`: names of the settings that the user gave; they are not changed."""
        self._config, self._context, self._measure = config, context, measure
        self._budget, self._fixed, self._on_event = budget, fixed, on_event
        self.results = TrialResults(context)
        self._estimator = TrialEstimator(config, self.results)

    def run(self) -> TrialResults:
        self._try_automatic_first()
        if self._context.threads > self._context.usable_cores:
            self._try_threads()  # oversubscribed cores distort every other trial
        self._search_micro_batch()
        self._try_cheap()
        self._try_threads()
        self._try_checkpointing()
        # Next to our Triton kernels, torch.compile gains little: confirm the finalists first.
        last_steps = (self._try_compiled, self._remeasure_finalists)
        for step in reversed(last_steps) if self.results.best_setting().kernels else last_steps:
            step()
        # A single setting that ran is no choice, unless it is what the run would do anyway.
        first, *others = filter(self.results.tokens_per_s, self.results.trials)
        is_automatic = first == self._uncompiled(self._context.automatic_setting)
        if not others and not is_automatic and NO_TIME in self.results.skipped.values():
            raise UserError(budget_too_short_message(self._budget.seconds))
        return self.results

    # --- trials ---

    def _try_setting(self, setting: SpeedSettings) -> None:
        """Measures it, unless it was measured before or there is no time or memory for it."""
        if setting in self.results.trials:
            return
        reason = self._estimator.reason_to_skip(setting, self._budget.left_s)
        if reason:
            self.results.skipped[setting] = reason
        else:
            self._run_trial(setting)

    def _run_trial(self, setting: SpeedSettings) -> None:
        best = max(map(self.results.tokens_per_s, self.results.trials), default=0.0) or None
        self._on_event(TrialEvent(setting, None, best, self._budget.left_s))
        trial = self._measure(setting, self._estimator.hang_limit_s(setting, self._budget.left_s))
        self.results.add(setting, trial)
        self._estimator.worker_threads = setting.threads
        self._on_event(TrialEvent(setting, trial, best, self._budget.left_s))

    def _is_tunable(self, name: str) -> bool:
        return candidates.is_tunable(name, self._context, self._fixed)

    def _micro_batch_sizes(self) -> tuple[int, ...]:
        return (
            self._context.micro_batches
            if self._is_tunable("micro_batch")
            else (self._context.automatic_batch,)
        )

    # --- the start ---

    def _try_automatic_first(self) -> None:
        """The automatic choice, compiled only on request; if it fails, smaller ones until one runs."""
        setting = self._affordable_start(self._uncompiled(self._context.automatic_setting))
        self._try_setting(setting)
        if self.results.outcome(setting) == "crashed":
            setting = candidates.without_speedups(setting)
            self._try_setting(setting)
        while self._lacks_memory(setting) and self._budget.left_s > 0:
            smaller = self._next_smaller(setting)
            if smaller is None:
                break
            setting = smaller
            self._run_trial(setting)
        if not any(map(self.results.tokens_per_s, self.results.trials)):
            raise UserError(self._failure_message())

    def _affordable_start(self, start: SpeedSettings) -> SpeedSettings:
        """The setting, or on a slow machine the largest micro-batch that leaves time for other trials."""
        sizes = [size for size in self._micro_batch_sizes() if size < start.micro_batch]
        if self._estimator.fits_as_first_trial(start, self._budget.left_s) or not sizes:
            return start
        self.results.skipped[start] = NO_TIME
        smaller = [self._carry_to_size(start, size) for size in sizes]
        fits = self._estimator.fits_as_first_trial
        affordable = [setting for setting in smaller if fits(setting, self._budget.left_s)]
        return affordable[-1] if affordable else smaller[0]

    def _uncompiled(self, setting: SpeedSettings) -> SpeedSettings:
        return setting if "compile" in self._fixed else replace(setting, compile=False)

    def _lacks_memory(self, setting: SpeedSettings) -> bool:
        """Whether memory is why it cannot be chosen: it ran out, or ran without leaving headroom."""
        outcome = self.results.outcome(setting)
        return not self.results.tokens_per_s(setting) and outcome in ("not tried", "out of memory", "ran")

    def _next_smaller(self, setting: SpeedSettings) -> SpeedSettings | None:
        """The next to try when memory is short: what fits by estimate, half, activation checkpointing."""
        sizes = [size for size in self._micro_batch_sizes() if size < setting.micro_batch]
        resized = {size: self._carry_to_size(setting, size) for size in sizes}
        max_bytes, estimate = self._context.automatic_limit, self._context.estimated_bytes
        fitting = [size for size in sizes if estimate(self._config, resized[size]) <= max_bytes]
        if setting.micro_batch == self._context.automatic_batch and fitting:
            return resized[fitting[-1]]
        half = candidates.next_smaller_size(sizes, setting.micro_batch)
        if half is not None:
            return resized[half]
        if setting.checkpointing or not self._is_tunable("checkpointing"):
            return None
        return replace(setting, checkpointing=True)

    def _failure_message(self) -> str:
        """Why no trial gave a usable setting."""
        trials = self.results.trials
        last = next(reversed(trials.values()))[-1] if trials else None
        if self._budget.left_s <= 0 or (last is not None and last.outcome == "hung"):
            return budget_too_short_message(self._budget.seconds)
        if last is None or last.outcome in ("ran", "out of memory"):
            smallest = min(setting.micro_batch for setting in (*trials, *self.results.skipped))
            return (
                f"not even a micro-batch of {smallest} fits in memory with room to spare: "
                "a smaller --n_embd, --n_layer or --block_size would"
            )
        return f"no trial succeeded: {last.outcome}: {last.why}"

    # --- micro-batch ---

    def _search_micro_batch(self) -> None:
        """Larger micro-batches while they gain, then smaller ones."""
        for step in (candidates.next_larger_size, candidates.next_smaller_size):
            at = self.results.best_setting()
            if step is candidates.next_smaller_size and self._has_slower_below(at):
                return
            while (size := step(self._micro_batch_sizes(), at.micro_batch)) is not None:
                candidate = self._try_size(at, size)
                if not self.results.is_faster(candidate, over=at):
                    if step is candidates.next_larger_size and self._has_no_room(candidate):
                        self._try_between(at, size)
                    break
                at = candidate

    def _has_slower_below(self, at: SpeedSettings) -> bool:
        """Whether a slightly smaller micro-batch has already proved slower."""
        near = [size for size in self._micro_batch_sizes() if at.micro_batch / 3 <= size < at.micro_batch]
        smaller = [self._carry_to_size(at, size) for size in near]
        return any(
            self.results.tokens_per_s(setting) and self.results.is_faster(at, over=setting)
            for setting in smaller
        )

    def _try_size(self, at: SpeedSettings, size: int) -> SpeedSettings:
        """Tries a size with a run's own choices for it; if that gains nothing, with the present ones."""
        candidate, same = self._carry_to_size(at, size), replace(at, micro_batch=size)
        self._try_setting(candidate)
        if (
            candidate != same
            and not self.results.is_faster(candidate, over=at)
            and not self._has_no_room(candidate)
        ):
            self._try_setting(same)
            return max(candidate, same, key=self.results.tokens_per_s)
        return candidate

    def _has_no_room(self, setting: SpeedSettings) -> bool:
        return self._lacks_memory(setting) and self.results.skipped.get(setting) != NO_TIME

    def _try_between(self, at: SpeedSettings, too_large: int) -> None:
        """The next size does not fit; if the last step gained, tries sizes in between."""
        lower = candidates.next_smaller_size(self._micro_batch_sizes(), at.micro_batch)
        below = self.results.tokens_per_s(self._carry_to_size(at, lower)) if lower is not None else 0.0
        if below and self.results.tokens_per_s(at) < below * (1 + _MIN_GAIN_TO_TRY_BETWEEN):
            return
        for _ in range(2):
            size = candidates.size_between(self._micro_batch_sizes(), at.micro_batch, too_large)
            if size is None:
                return
            self._try_setting(self._carry_to_size(at, size))
            if not self._has_no_room(self._carry_to_size(at, size)):
                return
            too_large = size

    def _carry_to_size(self, setting: SpeedSettings, size: int) -> SpeedSettings:
        """A run's own choice for that micro-batch, with all changes that proved faster so far."""
        base, to = (
            self._uncompiled(self._context.automatic_setting_at(n)) for n in (setting.micro_batch, size)
        )
        return setting.transfer_changes(base, to)

    # --- the rest ---

    def _try_cheap(self) -> None:
        before = self.results.best_setting()
        for name in filter(self._is_tunable, candidates.CHEAP_DIMENSIONS):
            for setting in candidates.alternatives(self._context, self.results.best_setting(), name):
                self._try_setting(setting)
        if any(self.results.best_setting().differences(before)):  # which may suit another micro-batch
            self._search_micro_batch()

    def _try_threads(self) -> None:
        """Fewer and fewer threads, until that is slower."""
        if not self._is_tunable("threads"):
            return
        for count in candidates.thread_counts(self._context.usable_cores, self._context.threads):
            best = self.results.best_setting()
            if count == best.threads:
                continue
            candidate = replace(best, threads=count)
            self._try_setting(candidate)
            fewer = count < (best.threads or self._context.threads)
            if fewer and not self.results.is_faster(candidate, over=best):
                break

    def _try_checkpointing(self) -> None:
        """If memory rules out the next larger micro-batch, tries it with activation checkpointing."""
        best = self.results.best_setting()
        size = candidates.next_larger_size(self._micro_batch_sizes(), best.micro_batch)
        if best.checkpointing or size is None or not self._is_tunable("checkpointing"):
            return
        candidate = self._carry_to_size(best, size)
        known = candidate in self.results.trials or candidate in self.results.skipped
        if known and self._has_no_room(candidate):
            self._try_setting(replace(candidate, checkpointing=True))

    def _try_compiled(self) -> None:
        best = self.results.best_setting()
        if not self._is_tunable("compile") or best.compile or self._context.float8:
            return
        candidate = candidates.with_compile(best)
        if self._estimator.can_compiling_pay(best):
            self._try_setting(candidate)
            self._remeasure_compiled(candidate, best)
        else:
            self.results.skipped[candidate] = RUN_TOO_SHORT

    def _remeasure_compiled(self, compiled: SpeedSettings, best: SpeedSettings) -> None:
        """Compiled code is cached, and the run will start from the cache. So measure it again, in alternation
        with the best, if it may win."""
        for _ in range(_COMPILED_ROUNDS):
            round_s = self._estimator.trial_s(best) + self._estimator.trial_s(compiled)
            if round_s > self._budget.left_s or not self.results.has_faster_updates(compiled, best):
                return
            self._run_trial(best)
            self._run_trial(compiled)

    # --- the winners again ---

    def _remeasure_finalists(self) -> None:
        """Measures the closest again in alternation, so that drift of the machine hits all of them."""
        for number in range(_CONFIRM_ROUNDS):
            finalists = self._finalists()
            if len(finalists) < 2 or sum(map(self._estimator.trial_s, finalists)) > self._budget.left_s:
                return
            # Alternate the direction: a GPU that has just worked hard is slower at first.
            for setting in reversed(finalists) if number % 2 else finalists:
                if self._estimator.trial_s(setting) > self._budget.left_s:
                    return
                self._run_trial(setting)

    def _finalists(self) -> list[SpeedSettings]:
        """The fastest, and what may be as fast within the error; none once the order is settled."""
        results, best = self.results, self.results.best_setting()

        def may_be_as_fast(setting: SpeedSettings) -> bool:
            error = results.comparison_error(setting, best)
            return results.slowdown(setting, best) <= max(_FINALIST_SLOWDOWN, 2 * error)

        # Compiled settings take too long to repeat.
        repeatable = (
            setting for setting in results.trials if results.tokens_per_s(setting) and not setting.compile
        )
        fastest_first = sorted(filter(may_be_as_fast, repeatable), key=results.tokens_per_s, reverse=True)
        finalists = fastest_first[:_FINALISTS]
        if self._context.automatic_setting in fastest_first[_FINALISTS:]:
            finalists[-1] = self._context.automatic_setting
        are_repeated = all(len(results.trials[setting]) > 1 for setting in finalists)
        is_in_doubt = any(
            results.comparison_error(setting, finalists[0]) > MIN_WORTHWHILE_GAIN for setting in finalists[1:]
        )
        return finalists if is_in_doubt or not are_repeated else []


def budget_too_short_message(budget_s: float) -> str:
    more = max(90, 4 * budget_s)
    return f"--budget={budget_s:g}s is too short to compare anything here: try --budget={more:.0f}s"
