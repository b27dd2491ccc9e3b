"""What evaluations and checkpoints cost a run: the spikes in its times, explained and priced."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Case, Finding
from glassgpt.format import duration, milliseconds, percent, times
from glassgpt.i18n import say
from glassgpt.runs.curve import error_of_median
from glassgpt.runs.run_log import Bools, History
from glassgpt.runs.trajectory import planned_end, whole_setting

ADVICE_FROM = 0.05  # of the run
LEDGER_FROM = 0.15  # of a run by GlassGPT, whose evaluation is part of its promise
FEWEST_BATCHES = 20  # per evaluation, to advise
WORTH_ADVISING = 0.001  # of the run: what is shown as more than 0.0%
SPIKE_FROM = 1.5  # times a steady iteration; less than that nobody sees

Place = tuple[int, int]  # segment, iteration


@dataclass(frozen=True)
class EvalCost:
    places: tuple[Place, ...]  # of all evaluations, those without a line of their own too
    saves: int
    spike_ms: float  # the usual time of an iteration that evaluates
    steady_ms: float
    eval_ms: float  # of one evaluation, with its save where that cannot be told apart
    save_ms: float | None  # of one save, where it can be told apart
    run_ms: float
    is_excerpt: bool  # it does not show how much training there is to each evaluation
    excess_ms: float = 0.0  # of `eval_ms` over what first iterations took at all, which save nothing yet

    @property
    def total_ms(self) -> float:
        return len(self.places) * self.eval_ms + self.saves * (self.save_ms or 0) - self.excess_ms

    def saved_by_interval(self, interval: int) -> float:
        """The share of the run that evaluating only at multiples of `interval` saves."""
        at = [iteration for _, iteration in self.places]
        return share_not_kept(at, interval) * self.total_ms / self.run_ms

    def saved_by_batches(self) -> float:
        """The share of the run that a quarter of the batches per evaluation saves."""
        return 0.75 * len(self.places) * self.eval_ms / self.run_ms


def share_not_kept(at: list[int], interval: int) -> float:
    """Of these evaluations, those that are not at multiples of `interval`. The last one is made anyway."""
    last, each = max(at), set(at)
    kept = sum(iteration % interval == 0 or iteration == last for iteration in each)
    return 1 - kept / len(each)


def eval_spikes(case: Case) -> Finding | None:
    if case.history.ledger is not None:
        return _from_ledger(case)
    if not case.history.trainer.step_time_includes_eval:
        return _told_by_the_log(case)
    cost = _eval_cost(case)
    if cost is None or cost.spike_ms < SPIKE_FROM * cost.steady_ms:
        return None
    share = cost.total_ms / cost.run_ms
    return Finding(
        "eval-spikes",
        "advice" if share >= ADVICE_FROM and not cost.is_excerpt else "info",
        say(
            "Iterations that evaluate take {ratio} times as long as others",
            ratio=times(cost.spike_ms / cost.steady_ms),
        ),
        _evidence(cost, share),
        _explanation(case.history, cost),
        _advice(case, cost),
    )


def _eval_cost(case: Case) -> EvalCost | None:
    history, facts = case.history, case.facts
    steady, overhead, total_s = facts.steady_ms, facts.eval_overhead_ms, facts.estimated_total_s
    if (
        not history.trainer.step_time_includes_eval
        or not steady
        or overhead is None
        or not total_s
        or overhead <= 0
    ):
        return None
    places = {(done.segment, done.iteration) for done in history.evals if done.iteration is not None}
    if not places:
        return None
    if history.trainer.evaluates_before_first_step:
        places |= set(_places(history, history.first_of_process()))
    logged = set(_places(history, history.first_of_process() | history.holds_eval()))
    saved = places & {(done.segment, done.iteration) for done in history.saves if done.iteration is not None}
    eval_ms, save_ms = _told_apart(history, saved, overhead, steady)
    # The estimate counts an iteration without a line as steady; one that evaluated was not.
    hidden_ms = len(places - logged) * overhead
    run_ms = 1000 * total_s + hidden_ms
    if not math.isfinite(run_ms + overhead):
        return None
    return EvalCost(
        places=tuple(sorted(places)),
        saves=len(saved),
        spike_ms=overhead + steady,
        steady_ms=steady,
        eval_ms=eval_ms,
        save_ms=save_ms,
        run_ms=run_ms,
        is_excerpt=len(places) < 2 or eval_interval(case) is None,
        excess_ms=_excess_ms(history, steady + eval_ms),
    )


def _excess_ms(history: History, spike_ms: float) -> float:
    ms = history.steps.ms[history.first_of_process() & history.holds_eval()]
    over = spike_ms - ms[np.isfinite(ms)]
    return float(np.sum(over[over > 0]))


def _places(history: History, rows: Bools) -> list[Place]:
    steps = history.steps
    return list(zip(steps.segment[rows].tolist(), steps.iteration[rows].tolist(), strict=True))


def _told_apart(
    history: History, saved: set[Place], overhead: float, steady: float
) -> tuple[float, float | None]:
    """The cost of an evaluation and of a save. Where only some saved, the difference is the save's,
    provided that it stands out from their scatter."""
    spikes: Bools = history.holds_eval() & ~history.first_of_process() & np.isfinite(history.steps.ms)
    with_save = np.array([place in saved for place in _places(history, spikes)], dtype=bool)
    times_ms = history.steps.ms[spikes]
    saving, only = times_ms[with_save], times_ms[~with_save]
    if len(saving) < 2 or len(only) < 2:
        return overhead, None
    with np.errstate(over="ignore", invalid="ignore"):  # times of 1e308 have been seen
        difference = float(np.median(saving) - np.median(only))
        error = math.hypot(error_of_median(saving), error_of_median(only))
    if not math.isfinite(difference) or difference <= max(3 * error, 0.02 * overhead):
        return overhead, None
    return float(np.median(only)) - steady, difference


def _evidence(cost: EvalCost, share: float) -> str:
    said = [
        say(
            "An iteration that evaluates takes {spike}, a steady one {steady}.",
            spike=milliseconds(cost.spike_ms),
            steady=milliseconds(cost.steady_ms),
        )
    ]
    if not cost.is_excerpt:
        said.append(
            say(
                "{count} evaluations cost {time} of {run}: {share} of the run.",
                count=f"{len(cost.places):,}",
                time=duration(cost.total_ms / 1000),
                run=duration(cost.run_ms / 1000),
                share=percent(share),
            )
        )
    if cost.save_ms is not None:
        said.append(
            say(
                "An evaluation takes about {eval}, a checkpoint {save} more ({count} were saved).",
                eval=milliseconds(cost.eval_ms),
                save=milliseconds(cost.save_ms),
                count=f"{cost.saves:,}",
            )
        )
    return " ".join(said)


def _explanation(history: History, cost: EvalCost) -> str:
    title = history.trainer.name
    if history.trainer.eval_time_cause:
        cause = history.trainer.eval_time_cause()
    elif not cost.saves:
        cause = say(
            "{trainer} evaluates with its clock running, so these times hold the evaluation.", trainer=title
        )
    else:
        cause = say(
            "{trainer} evaluates and saves with its clock running, so these times hold the evaluation and "
            "the checkpoint.",
            trainer=title,
        )
    return f"{cause} " + say("The updates themselves are as fast as in the other iterations.")


def _advice(case: Case, cost: EvalCost) -> str:
    rarer = case.history.trainer.rarer_eval_advice
    if rarer:
        interval = eval_interval(case)
        if not interval:
            return ""
        wider = 4 * interval
        return rarer(interval, wider, percent(_saved_in_the_long_run(cost, interval, wider)))
    said = [_interval_advice(case, cost), _batches_advice(case, cost)]
    return " ".join(sentence for sentence in said if sentence)


def _saved_in_the_long_run(cost: EvalCost, interval: int, wider: int) -> float:
    """So much of every `interval` iterations is evaluation, and so much less of it there would be."""
    often = cost.eval_ms / (interval * cost.steady_ms + cost.eval_ms)
    return (1 - interval / wider) * often


def _interval_advice(case: Case, cost: EvalCost) -> str:
    interval = eval_interval(case)
    wider = _wider(case, interval) if interval else None
    if not interval:
        return "" if case.history.quoted else say("A doubled eval_interval halves what evaluations cost.")
    if not wider:
        return ""
    values = {"old": str(interval), "new": str(wider)}
    # A log too short to show it, or one that begins on the way, says nothing about where evaluations lie.
    if cost.is_excerpt or not _from_the_start(case) or wider > (case.facts.last_iteration or 0):
        saving = _saved_in_the_long_run(cost, interval, wider)
        return say(
            "Raise eval_interval: {old} -> {new} saves {share} of a run longer than this log.",
            share=percent(saving),
            **values,
        )
    saving = cost.saved_by_interval(wider)
    if saving < WORTH_ADVISING:
        return ""
    return say(
        "Raise eval_interval: {old} -> {new} saves {share} of the run.", share=percent(saving), **values
    )


def _from_the_start(case: Case) -> bool:
    return bool(case.history.segments) and case.history.segments[0].starts


def _batches_advice(case: Case, cost: EvalCost) -> str:
    batches = whole_setting(case.history, "eval_iters")
    if cost.is_excerpt:
        saving = say(
            "A quarter of eval_iters makes each evaluation up to {time} shorter.",
            time=milliseconds(0.75 * cost.eval_ms),
        )
        return f"{saving} {_noise_warning()}"
    is_mixed = cost.saves > 0 and cost.save_ms is None  # then part of the cost may be the checkpoints'
    interval = eval_interval(case)
    share = percent(
        cost.saved_by_batches()
        if _from_the_start(case) or not interval
        else _saved_in_the_long_run(cost, interval, 4 * interval)
    )
    if batches is None:
        if is_mixed:
            saving = say(
                "A quarter of eval_iters saves up to {share} (less what the saving takes).", share=share
            )
        else:
            saving = say("A quarter of eval_iters saves {share}.", share=share)
        return f"{saving} {_noise_warning()}"
    if batches < 4 * FEWEST_BATCHES:
        return ""
    values = {"old": str(batches), "new": str(batches // 4), "share": share}
    if is_mixed:
        saving = say(
            "Lower eval_iters: {old} -> {new} saves up to {share} (less what the saving takes).", **values
        )
    else:
        saving = say("Lower eval_iters: {old} -> {new} saves {share}.", **values)
    return f"{saving} {_noise_warning()}"


def _noise_warning() -> str:
    return say("A quarter of the batches makes the losses it reports twice as noisy.")


def eval_interval(case: Case) -> int | None:
    """As set, else the usual distance of two evaluations."""
    told = whole_setting(case.history, "eval_interval")
    if told:
        return told
    evaluated = list(case.facts.eval_steps or [])
    if case.history.trainer.evaluates_before_first_step:
        evaluated += case.history.steps.iteration[case.history.first_of_process()].tolist()
    at = np.unique(np.array(evaluated, dtype=np.int64))
    distances = np.diff(at)
    if not len(distances) or (len(distances) == 1 and not _is_without_gap(case, int(at[0]), int(at[1]))):
        return None
    return int(np.median(distances))


def _is_without_gap(case: Case, start: int, end: int) -> bool:
    """Whether the log has most lines between two evaluations; else there may have been others."""
    at, every = case.history.steps.iteration, case.facts.log_interval or 1
    return 2 * int(np.count_nonzero((at > start) & (at <= end))) * every >= end - start


def _wider(case: Case, interval: int) -> int | None:
    """Four times the interval, or twice; a run whose length is known keeps an evaluation on its way."""
    ends = planned_end(case.history)
    if ends is None:
        return 4 * interval
    return next((factor * interval for factor in (4, 2) if factor * interval <= ends), None)


def _told_by_the_log(case: Case) -> Finding | None:
    """A trainer that stops its clock while it evaluates, and says what that took."""
    took = [done.ms for done in case.history.evals if done.ms is not None and math.isfinite(done.ms)]
    eval_s = sum(took) / 1000
    run_s = _run_s(case, eval_s)
    if run_s is None or not ADVICE_FROM * run_s <= eval_s <= run_s:
        return None
    share = percent(eval_s / run_s)
    return Finding(
        "eval-spikes",
        "advice",
        say("Evaluation took {share} of the run", share=share),
        say(
            "{count} evaluations cost {time} of {run}: {share} of the run.",
            count=f"{len(took):,}",
            time=duration(eval_s),
            run=duration(run_s),
            share=share,
        ),
        "",
        # No numbers: some count this interval in updates, and number their lines by micro-batches.
        say("A doubled eval_interval halves what evaluations cost."),
    )


def _run_s(case: Case, eval_s: float) -> float | None:
    """The wall clock's word where there is one, else all that is timed: iterations and evaluations."""
    wall_s = case.history.setup.wall_s if len(case.history.segments) == 1 else None
    trained_s = case.facts.estimated_total_s
    run_s = wall_s or (trained_s and trained_s + eval_s)
    return run_s if run_s and math.isfinite(run_s) else None


def _from_ledger(case: Case) -> Finding | None:
    """GlassGPT keeps evaluation out of its step times; the ledger says what it took."""
    ledger = case.history.ledger or {}
    wall_s, eval_s = sum(ledger.values()), ledger.get("eval", 0.0)
    if not (math.isfinite(wall_s) and wall_s > 0 and eval_s >= LEDGER_FROM * wall_s):
        return None
    share = eval_s / wall_s
    return Finding(
        "eval-spikes",
        "advice",
        say("Evaluation took {share} of the run", share=percent(share)),
        say(
            "{count} evaluations took {time} of {run}; training took {train}.",
            count=f"{len(case.history.evals):,}",
            time=duration(eval_s),
            run=duration(wall_s),
            train=duration(ledger.get("train", 0.0)),
        ),
        say("The ledger of the run counts evaluation apart, so step times and tokens/s do not hold it."),
        _ledger_advice(case, share),
    )


def _ledger_advice(case: Case, share: float) -> str:
    interval = eval_interval(case)
    wider = _wider(case, interval) if interval else None
    at = [done.iteration for done in case.history.evals if done.iteration is not None]
    said = [say("A quarter of eval_tokens saves {share} of the run.", share=percent(0.75 * share))]
    saving = share * share_not_kept(at, wider) if wider and at else 0.0
    if saving >= WORTH_ADVISING:
        said.insert(
            0,
            say(
                "Raise eval_interval: {old} -> {new} saves {share} of the run.",
                old=str(interval),
                new=str(wider),
                share=percent(saving),
            ),
        )
    return " ".join(said)
