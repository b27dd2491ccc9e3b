"""The result of a search: the setting to choose, a verdict on each, and one sentence that says why."""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt.format import format_bytes, format_duration, format_percent, format_ratio
from glassgpt.tune.results import MIN_WORTHWHILE_GAIN, TrialResults, UpdateStats
from glassgpt.tune.speed_settings import SpeedSettings, describe_dimension


@dataclass(frozen=True, kw_only=True)
class SettingResult:
    """One setting: its statistics where it ran, and the verdict."""

    setting: SpeedSettings
    outcome: str  # as of a trial; "not tried"
    verdict: str
    is_chosen: bool = False
    is_automatic: bool = False
    stats: UpdateStats | None = None
    tokens_per_s: float | None = None
    slow_tokens_per_s: float | None = None  # nine of ten updates were faster
    fast_tokens_per_s: float | None = None
    mfu: float | None = None  # percent
    micro_steps: int = 0  # that an update has
    micro_steps_done: int = 0  # of those, in a timed update
    trials: int = 0


@dataclass(frozen=True)
class TuneResult:
    chosen: SettingResult
    rows: tuple[SettingResult, ...]  # in the order they were tried
    summary: str

    @property
    def automatic_result(self) -> SettingResult | None:
        """The result of the automatic choice, if that one ran."""
        return next((row for row in self.rows if row.is_automatic and row.stats), None)


def summarize_trials(results: TrialResults) -> TuneResult:
    summary = _Summary(results)
    return TuneResult(summary.best, tuple(summary.rows), summary.sentence())


def choose_setting(results: TrialResults) -> SpeedSettings:
    """The fastest; of those that are as fast, the simplest."""
    usable = [setting for setting in results.trials if results.tokens_per_s(setting)]
    fastest = max(usable, key=results.tokens_per_s)
    context = results.context

    def effort(setting: SpeedSettings) -> tuple[bool, bool, int, int]:
        changed = list(setting.differences(context.automatic_setting_at(setting.micro_batch)))
        stats = results.stats(setting)
        memory = (stats.peak_bytes if stats else None) or setting.micro_batch
        return setting.compile, setting != context.automatic_setting, len(changed), memory

    return min((setting for setting in usable if results.is_as_fast(setting, fastest)), key=effort)


class _Summary:
    """A verdict on each setting, and one sentence about the choice."""

    def __init__(self, results: TrialResults) -> None:
        self._results, self._context = results, results.context
        self._chosen = choose_setting(results)
        self._micro_batch = self._chosen.micro_batch
        best_stats = results.stats(self._chosen)
        assert best_stats is not None, "the chosen setting has run"
        self._best_stats = best_stats
        self.rows = [self._result(setting) for setting in (*results.trials, *results.skipped)]
        self.best = next(row for row in self.rows if row.is_chosen)

    # --- verdicts ---

    def _result(self, setting: SpeedSettings) -> SettingResult:
        results, context = self._results, self._context
        trials, stats = results.trials.get(setting, []), results.stats(setting)
        rates: list[float | None] = [None] * 3
        if stats:
            times = (stats.update_s, stats.slow_s, stats.fast_s)
            rates = [context.tokens_per_update / seconds for seconds in times]
        mfu = None
        if rates[0] is not None and context.peak:
            mfu = 100 * rates[0] * context.flops_per_token / context.peak
        return SettingResult(
            setting=setting,
            outcome=trials[-1].outcome if trials else "not tried",
            verdict=self._verdict(setting, stats),
            is_chosen=setting == self._chosen,
            is_automatic=setting == context.automatic_setting,
            stats=stats,
            tokens_per_s=rates[0],
            slow_tokens_per_s=rates[1],
            fast_tokens_per_s=rates[2],
            mfu=mfu,
            micro_steps=context.micro_steps(setting),
            micro_steps_done=trials[-1].micro_steps if trials else 0,
            trials=len(trials),
        )

    def _verdict(self, setting: SpeedSettings, stats: UpdateStats | None) -> str:
        results = self._results
        if setting == self._chosen:
            return "best"
        if setting in results.skipped:
            return f"not tried: {results.skipped[setting]}"
        if stats is None:
            failed = next(trial for trial in results.trials[setting] if trial.outcome != "ran")
            return {
                "out of memory": "out of memory",
                "hung": failed.why,
                "impossible": f"not possible: {failed.why}",
            }.get(failed.outcome, f"crashed: {failed.why}")
        if not results.leaves_headroom(stats):
            return f"no headroom: {format_bytes(self._context.free_bytes)} were free"
        steady_gain = self._best_stats.update_s / stats.update_s - 1
        if results.is_as_fast(setting, self._chosen):
            more = self._extra_memory(stats)
            return f"as fast, takes {more} more" if more else "as fast"
        if steady_gain > MIN_WORTHWHILE_GAIN and setting.compile:
            takes = format_duration(stats.first_s)
            return (
                f"{format_percent(steady_gain)} faster, but {self._context.updates:,} updates "
                f"do not save its {takes} of compiling"
            )
        lag = f"{format_percent(results.slowdown(setting, self._chosen))} slower"
        return f"{lag} over the run, compiling included" if setting.compile else lag

    def _extra_memory(self, stats: UpdateStats) -> str:
        """Peak memory beyond that of the chosen setting, if it is more than 5 %."""
        best_bytes = self._best_stats.peak_bytes
        if stats.peak_bytes is None or best_bytes is None:
            return ""
        more = stats.peak_bytes - best_bytes
        return format_bytes(more) if more > 0.05 * best_bytes else ""

    def sentence(self) -> str:
        text = self._outcome()
        return text[0].upper() + text[1:] + "."

    def _outcome(self) -> str:
        chosen, automatic = self._chosen, self._context.automatic_setting
        ran = sum(row.stats is not None for row in self.rows)
        if self.best.is_automatic and ran == 1:
            return "only the automatic choice ran, so there is nothing to compare it with"
        if self.best.is_automatic:
            return f"the automatic choice is the best of the {ran} that ran"
        base = self._context.automatic_setting_at(self._micro_batch)
        changed = " and ".join(describe_dimension(chosen, name) for name in chosen.differences(base))
        what = f"micro-batch {self._micro_batch}" + (f", {changed}," if changed else "")
        before = self._results.tokens_per_s(automatic)
        if not before:
            return f"{what} is the fastest of the {ran} that ran"
        gain = self._results.tokens_per_s(chosen) / before - 1
        if gain <= MIN_WORTHWHILE_GAIN:
            return f"{what} is as fast as the automatic choice"
        than = "choice" if automatic.micro_batch == self._micro_batch else automatic.micro_batch
        over = " over the run, compiling included" if chosen.compile else ""
        faster = (
            f"{format_percent(gain)} faster than"
            if gain < 2
            else f"{format_ratio(1 + gain)} times as fast as"
        )
        return f"{what} is {faster} the automatic {than}{over}"
