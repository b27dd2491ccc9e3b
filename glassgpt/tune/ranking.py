"""What the search found: the setting to choose, a verdict on each, and in one sentence why."""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt.format import duration, percent, size, times
from glassgpt.tune.budget import NO_TIME
from glassgpt.tune.results import WORTH, Evidence
from glassgpt.tune.setting import Setting, in_words
from glassgpt.tune.trial import Figures


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting: its figures where it ran, and the verdict."""

    setting: Setting
    outcome: str  # as of a trial; "not tried"
    verdict: str
    is_chosen: bool = False
    is_automatic: bool = False
    figures: Figures | None = None
    tokens_per_s: float | None = None
    slow_tokens_per_s: float | None = None  # nine of ten updates were faster
    fast_tokens_per_s: float | None = None
    mfu: float | None = None  # percent
    micro_steps: int = 0  # that an update has
    micro_steps_done: int = 0  # of those, in a timed update
    trials: int = 0


@dataclass(frozen=True)
class Outcome:
    chosen: Row
    rows: tuple[Row, ...]  # in the order they were tried
    sentence: str

    @property
    def automatic(self) -> Row | None:
        """Of the automatic choice, if that one ran."""
        return next((row for row in self.rows if row.is_automatic and row.figures), None)


def outcome_of(evidence: Evidence) -> Outcome:
    judge = _Judge(evidence, choose(evidence))
    rows = [judge.row(setting) for setting in (*evidence.found, *evidence.left_out)]
    best = next(row for row in rows if row.is_chosen)
    return Outcome(best, tuple(rows), _Reason(judge, rows, best).sentence())


def choose(evidence: Evidence) -> Setting:
    """The fastest; of those that are as fast, the simplest."""
    able = [setting for setting in evidence.found if evidence.speed(setting)]
    fastest = max(able, key=evidence.speed)
    ground = evidence.ground

    def effort(setting: Setting) -> tuple[bool, bool, int, int]:
        changed = list(setting.differences(ground.automatic_at(setting.micro_batch)))
        figures = evidence.figures(setting)
        memory = (figures.peak_bytes if figures else None) or setting.micro_batch
        return setting.compile, setting != ground.automatic, len(changed), memory

    return min((one for one in able if evidence.is_as_fast(one, fastest)), key=effort)


# --- verdicts ---


class _Judge:
    def __init__(self, evidence: Evidence, chosen: Setting) -> None:
        self.evidence, self.ground, self.chosen = evidence, evidence.ground, chosen
        best = evidence.figures(chosen)
        assert best is not None, "what is chosen has run"
        self.best = best

    def row(self, setting: Setting) -> Row:
        evidence, ground = self.evidence, self.ground
        trials, figures = evidence.found.get(setting, []), evidence.figures(setting)
        rates = [ground.tokens / seconds for seconds in _times(figures)] if figures else [None] * 3
        mfu = None
        if rates[0] is not None and ground.peak:
            mfu = 100 * rates[0] * ground.flops_per_token / ground.peak
        return Row(
            setting=setting,
            outcome=trials[-1].outcome if trials else "not tried",
            verdict=self._verdict(setting, figures),
            is_chosen=setting == self.chosen,
            is_automatic=setting == ground.automatic,
            figures=figures,
            tokens_per_s=rates[0],
            slow_tokens_per_s=rates[1],
            fast_tokens_per_s=rates[2],
            mfu=mfu,
            micro_steps=ground.micro_steps(setting),
            micro_steps_done=trials[-1].micro_steps if trials else 0,
            trials=len(trials),
        )

    def _verdict(self, setting: Setting, figures: Figures | None) -> str:
        if setting == self.chosen:
            return "best"
        if setting in self.evidence.left_out:
            return f"not tried: {self.evidence.left_out[setting]}"
        if figures is None:
            failed = next(one for one in self.evidence.found[setting] if one.outcome != "ran")
            return {
                "out of memory": "out of memory",
                "hung": failed.why,
                "impossible": f"not possible: {failed.why}",
            }.get(failed.outcome, f"crashed: {failed.why}")
        if not self.evidence.keeps_headroom(figures):
            return f"no headroom: {size(self.ground.free_bytes)} were free"
        return self._compared(setting, figures)

    def _compared(self, setting: Setting, figures: Figures) -> str:
        steady_gain = self.best.update_s / figures.update_s - 1
        if self.evidence.is_as_fast(setting, self.chosen):
            more = _more_memory(figures, self.best)
            return f"as fast, takes {more} more" if more else "as fast"
        if steady_gain > WORTH and setting.compile:
            takes = duration(figures.first_s)
            return (
                f"{percent(steady_gain)} faster, but {self.ground.updates:,} updates "
                f"do not save its {takes} of compiling"
            )
        lag = f"{percent(self.evidence.lag(setting, self.chosen))} slower"
        return f"{lag} over the run, compiling included" if setting.compile else lag


def _times(figures: Figures) -> tuple[float, float, float]:
    return figures.update_s, figures.slow_s, figures.fast_s


def _more_memory(figures: Figures, than: Figures) -> str:
    """In words, where it is worth mentioning."""
    if figures.peak_bytes is None or than.peak_bytes is None:
        return ""
    more = figures.peak_bytes - than.peak_bytes
    return size(more) if more > 0.05 * than.peak_bytes else ""


# --- why ---


class _Reason:
    """One sentence: the micro-batch against its neighbours, and what else made a difference."""

    def __init__(self, judge: _Judge, rows: list[Row], best: Row) -> None:
        self._judge, self._rows, self._best = judge, rows, best
        self._evidence, self._ground = judge.evidence, judge.ground
        self._number = best.setting.micro_batch

    def sentence(self) -> str:
        parts = [part for part in (*self._neighbours(), *self._others()) if part]
        text = f"{self._head()}: {', '.join(parts)}" if parts else self._head()
        return text[0].upper() + text[1:] + "."

    def _head(self) -> str:
        chosen, automatic = self._best.setting, self._ground.automatic
        ran = sum(row.figures is not None for row in self._rows)
        if self._best.is_automatic and ran == 1:
            return "only the automatic choice ran, so there is nothing to compare it with"
        if self._best.is_automatic:
            return f"the automatic choice is the best of the {ran} that ran"
        base = self._ground.automatic_at(self._number)
        changed = " and ".join(in_words(chosen, name) for name in chosen.differences(base))
        what = f"micro-batch {self._number}" + (f", {changed}," if changed else "")
        before = self._evidence.speed(automatic)
        if not before:
            return f"{what} is the fastest of the {ran} that ran"
        gain = self._evidence.speed(chosen) / before - 1
        if gain <= WORTH:
            return f"{what} is as fast as the automatic choice"
        than = "choice" if automatic.micro_batch == self._number else automatic.micro_batch
        over = " over the run, compiling included" if chosen.compile else ""
        faster = f"{percent(gain)} faster than" if gain < 2 else f"{times(1 + gain)} times as fast as"
        return f"{what} is {faster} the automatic {than}{over}"

    # --- neighbours ---

    def _neighbours(self) -> tuple[str, str]:
        """The next smaller and larger micro-batch, the same but for what a run would change with it."""
        chosen, base = self._best.setting, self._ground.automatic_at(self._number)
        alike = {}
        for row in self._rows:
            there = self._ground.automatic_at(row.setting.micro_batch)
            is_said = row.is_automatic and row.figures is not None  # in the head
            if not is_said and row.setting != chosen and row.setting == chosen.carried_over(base, there):
                alike[row.setting.micro_batch] = row
        below = max((number for number in alike if number < self._number), default=None)
        above = min((number for number in alike if number > self._number), default=None)
        lower = "" if below is None else self._against(alike[below])
        if above is not None:
            return lower, self._against(alike[above])
        whole = self._number == self._ground.sequences and lower
        return lower, f"and {self._number} is the whole update" if whole else ""

    def _against(self, row: Row) -> str:
        number = row.setting.micro_batch
        if row.outcome == "not tried":
            return "" if NO_TIME in row.verdict else f"{number} would not fit"
        if row.figures is None:
            return f"{number} does not fit" if row.outcome == "out of memory" else ""
        if not self._evidence.speed(row.setting):
            return f"{number} leaves no headroom"
        if not self._evidence.is_as_fast(row.setting, self._best.setting):
            return f"{number} loses {percent(self._evidence.lag(row.setting, self._best.setting))}"
        more = _more_memory(row.figures, self._judge.best)
        return f"{number} gains nothing" + (f" and takes {more} more" if more else "")

    # --- the rest ---

    def _others(self) -> list[str]:
        """What the setting would lose without each of its changes; if it has none, its largest merit."""
        chosen = self._best.setting
        changes = set(chosen.differences(self._ground.automatic_at(self._number)))
        lost = {}
        for row in self._rows:
            names = list(row.setting.differences(chosen))
            alike = row.setting.micro_batch == self._number and len(names) == 1 and not row.is_automatic
            # What compiling loses is a matter of the run's length, which its verdict explains.
            if not alike or not self._evidence.speed(row.setting) or row.setting.compile:
                continue
            if not self._evidence.is_as_fast(row.setting, chosen) and (not changes or names[0] in changes):
                lost[in_words(row.setting, names[0])] = self._evidence.lag(row.setting, chosen)
        words = sorted(lost, key=lambda what: lost[what], reverse=True)
        return [f"{what} is {percent(lost[what])} slower" for what in words[: len(changes) or 1]]
