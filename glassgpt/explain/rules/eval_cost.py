"""What evaluations and checkpoints cost a run: the spikes in its times, explained and priced."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.format import format_duration, format_ms, format_percent, format_ratio
from glassgpt.i18n import say
from glassgpt.runs.curve import median_stderr
from glassgpt.runs.run_log import Bools, RunLog
from glassgpt.runs.trajectory import planned_end_iteration, positive_int_setting

MIN_ADVICE_SHARE = 0.05  # of the run
MIN_LEDGER_ADVICE_SHARE = 0.15  # of a run by GlassGPT, whose evaluation is part of its promise
MIN_EVAL_BATCHES = 20  # per evaluation, to advise
MIN_SAVING_SHARE = 0.001  # of the run: what is shown as more than 0.0%
MIN_SPIKE_RATIO = 1.5  # times a steady iteration; less than that nobody sees

StepKey = tuple[int, int]  # segment, iteration


@dataclass(frozen=True)
class EvalCost:
    eval_steps: tuple[StepKey, ...]  # of all evaluations, those without a line of their own too
    save_count: int
    spike_ms: float  # the usual time of an iteration that evaluates
    steady_ms: float
    eval_ms: float  # of one evaluation, with its save where that cannot be told apart
    save_ms: float | None  # of one save, where it can be told apart
    run_ms: float
    is_excerpt: bool  # it does not show how much training there is to each evaluation
    excess_ms: float = 0.0  # of `eval_ms` over what first iterations took at all, which save nothing yet

    @property
    def total_ms(self) -> float:
        return len(self.eval_steps) * self.eval_ms + self.save_count * (self.save_ms or 0) - self.excess_ms

    def saving_by_interval(self, interval: int) -> float:
        """The share of the run that evaluating only at multiples of `interval` saves."""
        at = [iteration for _, iteration in self.eval_steps]
        return share_dropped(at, interval) * self.total_ms / self.run_ms

    def saving_by_batches(self) -> float:
        """The share of the run that a quarter of the batches per evaluation saves."""
        return 0.75 * len(self.eval_steps) * self.eval_ms / self.run_ms


def share_dropped(at: list[int], interval: int) -> float:
    """Of these evaluations, those that are not at multiples of `interval`. The last one is made anyway."""
    last, each = max(at), set(at)
    kept = sum(iteration % interval == 0 or iteration == last for iteration in each)
    return 1 - kept / len(each)


def eval_spikes(case: RunAnalysis) -> Finding | None:
    if case.log.ledger is not None:
        return _from_ledger(case)
    if not case.log.trainer.step_time_includes_eval:
        return _from_logged_eval_times(case)
    cost = _eval_cost(case)
    if cost is None or cost.spike_ms < MIN_SPIKE_RATIO * cost.steady_ms:
        return None
    share = cost.total_ms / cost.run_ms
    return Finding(
        "eval-spikes",
        "advice" if share >= MIN_ADVICE_SHARE and not cost.is_excerpt else "info",
        say(
            "Iterations that evaluate take {ratio} times as long as others",
            ratio=format_ratio(cost.spike_ms / cost.steady_ms),
        ),
        _evidence(cost, share),
        _explanation(case.log, cost),
        _advice(case, cost),
    )


def _eval_cost(case: RunAnalysis) -> EvalCost | None:
    history, facts = case.log, case.facts
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
        places |= set(_step_keys(history, history.is_first_of_process()))
    logged = set(_step_keys(history, history.is_first_of_process() | history.includes_eval()))
    saved = places & {(done.segment, done.iteration) for done in history.saves if done.iteration is not None}
    eval_ms, save_ms = _split_eval_and_save(history, saved, overhead, steady)
    # The estimate counts an iteration without a line as steady; one that evaluated was not.
    hidden_ms = len(places - logged) * overhead
    run_ms = 1000 * total_s + hidden_ms
    if not math.isfinite(run_ms + overhead):
        return None
    return EvalCost(
        eval_steps=tuple(sorted(places)),
        save_count=len(saved),
        spike_ms=overhead + steady,
        steady_ms=steady,
        eval_ms=eval_ms,
        save_ms=save_ms,
        run_ms=run_ms,
        is_excerpt=len(places) < 2 or effective_eval_interval(case) is None,
        excess_ms=_excess_ms(history, steady + eval_ms),
    )


def _excess_ms(history: RunLog, spike_ms: float) -> float:
    ms = history.steps.ms[history.is_first_of_process() & history.includes_eval()]
    over = spike_ms - ms[np.isfinite(ms)]
    return float(np.sum(over[over > 0]))


def _step_keys(history: RunLog, rows: Bools) -> list[StepKey]:
    steps = history.steps
    return list(zip(steps.segment[rows].tolist(), steps.iteration[rows].tolist(), strict=True))


def _split_eval_and_save(
    history: RunLog, saved: set[StepKey], overhead: float, steady: float
) -> tuple[float, float | None]:
    """The cost of an evaluation and of a save. Where only some saved, the difference is the save's,
    provided that it stands out from their scatter."""
    spikes: Bools = history.includes_eval() & ~history.is_first_of_process() & np.isfinite(history.steps.ms)
    with_save = np.array([place in saved for place in _step_keys(history, spikes)], dtype=bool)
    times_ms = history.steps.ms[spikes]
    saving, only = times_ms[with_save], times_ms[~with_save]
    if len(saving) < 2 or len(only) < 2:
        return overhead, None
    with np.errstate(over="ignore", invalid="ignore"):  # times of 1e308 have been seen
        difference = float(np.median(saving) - np.median(only))
        error = math.hypot(median_stderr(saving), median_stderr(only))
    if not math.isfinite(difference) or difference <= max(3 * error, 0.02 * overhead):
        return overhead, None
    return float(np.median(only)) - steady, difference


def _evidence(cost: EvalCost, share: float) -> str:
    said = [
        say(
            "An iteration that evaluates takes {spike}, a steady one {steady}.",
            spike=format_ms(cost.spike_ms),
            steady=format_ms(cost.steady_ms),
        )
    ]
    if not cost.is_excerpt:
        said.append(
            say(
                "{count} evaluations cost {time} of {run}: {share} of the run.",
                count=f"{len(cost.eval_steps):,}",
                time=format_duration(cost.total_ms / 1000),
                run=format_duration(cost.run_ms / 1000),
                share=format_percent(share),
            )
        )
    if cost.save_ms is not None:
        said.append(
            say(
                "An evaluation takes about {eval}, a checkpoint {save} more ({count} were saved).",
                eval=format_ms(cost.eval_ms),
                save=format_ms(cost.save_ms),
                count=f"{cost.save_count:,}",
            )
        )
    return " ".join(said)


def _explanation(history: RunLog, cost: EvalCost) -> str:
    title = history.trainer.name
    if history.trainer.eval_time_cause:
        cause = history.trainer.eval_time_cause()
    elif not cost.save_count:
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


def _advice(case: RunAnalysis, cost: EvalCost) -> str:
    rarer = case.log.trainer.rarer_eval_advice
    if rarer:
        interval = effective_eval_interval(case)
        if not interval:
            return ""
        wider = 4 * interval
        return rarer(interval, wider, format_percent(_long_run_saving(cost, interval, wider)))
    said = [_interval_advice(case, cost), _batches_advice(case, cost)]
    return " ".join(sentence for sentence in said if sentence)


def _long_run_saving(cost: EvalCost, interval: int, wider: int) -> float:
    """So much of every `interval` iterations is evaluation, and so much less of it there would be."""
    often = cost.eval_ms / (interval * cost.steady_ms + cost.eval_ms)
    return (1 - interval / wider) * often


def _interval_advice(case: RunAnalysis, cost: EvalCost) -> str:
    interval = effective_eval_interval(case)
    wider = _wider_interval(case, interval) if interval else None
    if not interval:
        return "" if case.log.is_excerpt else say("A doubled eval_interval halves what evaluations cost.")
    if not wider:
        return ""
    values = {"old": str(interval), "new": str(wider)}
    # A log too short to show it, or one that begins on the way, says nothing about where evaluations lie.
    if cost.is_excerpt or not _has_run_start(case) or wider > (case.facts.last_iteration or 0):
        saving = _long_run_saving(cost, interval, wider)
        return say(
            "Raise eval_interval: {old} -> {new} saves {share} of a run longer than this log.",
            share=format_percent(saving),
            **values,
        )
    saving = cost.saving_by_interval(wider)
    if saving < MIN_SAVING_SHARE:
        return ""
    return say(
        "Raise eval_interval: {old} -> {new} saves {share} of the run.",
        share=format_percent(saving),
        **values,
    )


def _has_run_start(case: RunAnalysis) -> bool:
    return bool(case.log.segments) and case.log.segments[0].has_startup


def _batches_advice(case: RunAnalysis, cost: EvalCost) -> str:
    batches = positive_int_setting(case.log, "eval_iters")
    if cost.is_excerpt:
        saving = say(
            "A quarter of eval_iters makes each evaluation up to {time} shorter.",
            time=format_ms(0.75 * cost.eval_ms),
        )
        return f"{saving} {_noise_warning()}"
    is_mixed = cost.save_count > 0 and cost.save_ms is None  # then part of the cost may be the checkpoints'
    interval = effective_eval_interval(case)
    share = format_percent(
        cost.saving_by_batches()
        if _has_run_start(case) or not interval
        else _long_run_saving(cost, interval, 4 * interval)
    )
    if batches is None:
        if is_mixed:
            saving = say(
                "A quarter of eval_iters saves up to {share} (less what the saving takes).", share=share
            )
        else:
            saving = say("A quarter of eval_iters saves {share}.", share=share)
        return f"{saving} {_noise_warning()}"
    if batches < 4 * MIN_EVAL_BATCHES:
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


def effective_eval_interval(case: RunAnalysis) -> int | None:
    """As set, else the usual distance of two evaluations."""
    told = positive_int_setting(case.log, "eval_interval")
    if told:
        return told
    evaluated = list(case.facts.eval_steps or [])
    if case.log.trainer.evaluates_before_first_step:
        evaluated += case.log.steps.iteration[case.log.is_first_of_process()].tolist()
    at = np.unique(np.array(evaluated, dtype=np.int64))
    distances = np.diff(at)
    if not len(distances) or (len(distances) == 1 and not _is_without_gap(case, int(at[0]), int(at[1]))):
        return None
    return int(np.median(distances))


def _is_without_gap(case: RunAnalysis, start: int, end: int) -> bool:
    """Whether the log has most lines between two evaluations; else there may have been others."""
    at, every = case.log.steps.iteration, case.facts.log_interval or 1
    return 2 * int(np.count_nonzero((at > start) & (at <= end))) * every >= end - start


def _wider_interval(case: RunAnalysis, interval: int) -> int | None:
    """Four times the interval, or twice; a run whose length is known keeps an evaluation on its way."""
    ends = planned_end_iteration(case.log)
    if ends is None:
        return 4 * interval
    return next((factor * interval for factor in (4, 2) if factor * interval <= ends), None)


def _from_logged_eval_times(case: RunAnalysis) -> Finding | None:
    """A trainer that stops its clock while it evaluates, and says what that took."""
    took = [done.ms for done in case.log.evals if done.ms is not None and math.isfinite(done.ms)]
    eval_s = sum(took) / 1000
    run_s = _run_s(case, eval_s)
    if run_s is None or not MIN_ADVICE_SHARE * run_s <= eval_s <= run_s:
        return None
    share = format_percent(eval_s / run_s)
    return Finding(
        "eval-spikes",
        "advice",
        say("Evaluation took {share} of the run", share=share),
        say(
            "{count} evaluations cost {time} of {run}: {share} of the run.",
            count=f"{len(took):,}",
            time=format_duration(eval_s),
            run=format_duration(run_s),
            share=share,
        ),
        "",
        # No numbers: some count this interval in updates, and number their lines by micro-batches.
        say("A doubled eval_interval halves what evaluations cost."),
    )


def _run_s(case: RunAnalysis, eval_s: float) -> float | None:
    """The wall clock's word where there is one, else all that is timed: iterations and evaluations."""
    wall_s = case.log.setup.wall_s if len(case.log.segments) == 1 else None
    trained_s = case.facts.estimated_total_s
    run_s = wall_s or (trained_s and trained_s + eval_s)
    return run_s if run_s and math.isfinite(run_s) else None


def _from_ledger(case: RunAnalysis) -> Finding | None:
    """GlassGPT keeps evaluation out of its step times; the ledger says what it took."""
    ledger = case.log.ledger or {}
    wall_s, eval_s = sum(ledger.values()), ledger.get("eval", 0.0)
    if not (math.isfinite(wall_s) and wall_s > 0 and eval_s >= MIN_LEDGER_ADVICE_SHARE * wall_s):
        return None
    share = eval_s / wall_s
    return Finding(
        "eval-spikes",
        "advice",
        say("Evaluation took {share} of the run", share=format_percent(share)),
        say(
            "{count} evaluations took {time} of {run}; training took {train}.",
            count=f"{len(case.log.evals):,}",
            time=format_duration(eval_s),
            run=format_duration(wall_s),
            train=format_duration(ledger.get("train", 0.0)),
        ),
        say("The ledger of the run counts evaluation apart, so step times and tokens/s do not hold it."),
        _ledger_advice(case, share),
    )


def _ledger_advice(case: RunAnalysis, share: float) -> str:
    interval = effective_eval_interval(case)
    wider = _wider_interval(case, interval) if interval else None
    at = [done.iteration for done in case.log.evals if done.iteration is not None]
    said = [say("A quarter of eval_tokens saves {share} of the run.", share=format_percent(0.75 * share))]
    saving = share * share_dropped(at, wider) if wider and at else 0.0
    if saving >= MIN_SAVING_SHARE:
        said.insert(
            0,
            say(
                "Raise eval_interval: {old} -> {new} saves {share} of the run.",
                old=str(interval),
                new=str(wider),
                share=format_percent(saving),
            ),
        )
    return " ".join(said)
