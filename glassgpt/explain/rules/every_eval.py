"""A run that evaluates at every iteration, or at every logged one: no line shows what training takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis, Severity
from glassgpt.explain.rules.eval_cost import MIN_ADVICE_SHARE, effective_eval_interval
from glassgpt.format import format_ms, format_percent
from glassgpt.i18n import say
from glassgpt.runs.inference import device_count
from glassgpt.runs.trajectory import planned_end_iteration, positive_int_setting

MIN_EVALUATIONS = 5  # iterations that evaluate
MIN_EVALUATED_SHARE = 0.9  # of the iterations
FORWARD_SHARE = 1 / 3  # of the work on a token in training: the backward pass is twice the forward pass
WARNING_SHARE = 0.5  # of the time


@dataclass(frozen=True)
class EvalWork:
    """An evaluation against the updates between two of them, in tokens. Estimated by the passes made."""

    batches: int
    splits: int
    is_default_batches: bool  # the batches are not in the log
    equivalent_updates: float  # that take as long as one evaluation
    interval: int

    def time_share(self, interval: int) -> float:
        """Of the time, at that interval."""
        return self.equivalent_updates / (self.equivalent_updates + interval)

    def saving(self, wider: int) -> float:
        """Of the run as it was."""
        return (self.equivalent_updates - self.equivalent_updates * self.interval / wider) / (
            self.equivalent_updates + self.interval
        )


def evaluates_every_step(case: RunAnalysis) -> Finding | None:
    interval = effective_eval_interval(case)
    if not interval or not _is_always(case):
        return None
    work = _estimate_eval_work(case, interval)
    return Finding(
        "eval-spikes",
        _severity(interval, work),
        say("Every iteration evaluates") if interval == 1 else say("Every logged iteration evaluates"),
        " ".join(_evidence(case, work)),
        _explanation(case),
        _advice(case, work),
    )


def _explanation(case: RunAnalysis) -> str:
    if case.log.trainer.step_time_includes_eval:
        return say(
            "{trainer} evaluates with its clock running, so these times hold the evaluation.",
            trainer=case.log.trainer.name,
        )
    return say(
        "The times of its iterations are without the evaluations, so the run took longer than they add to."
    )


def _severity(interval: int, work: EvalWork | None) -> Severity:
    if work is None:
        return "warning" if interval == 1 else "info"
    share = work.time_share(interval)
    return "warning" if share > WARNING_SHARE else "advice" if share >= MIN_ADVICE_SHARE else "info"


def _is_always(case: RunAnalysis) -> bool:
    history = case.log
    if history.is_excerpt or history.ledger is not None or any(done.ms is not None for done in history.evals):
        return False  # a piece of a log, or one that says what evaluating took
    if history.trainer.step_time_includes_eval:
        timed = np.isfinite(history.steps.ms) & ~history.is_first_of_process()
        return int(timed.sum()) >= MIN_EVALUATIONS and bool(np.all(history.includes_eval()[timed]))
    evaluated = {(done.segment, done.iteration) for done in history.evals if done.iteration is not None}
    iterations = history.iteration_count()
    return iterations >= MIN_EVALUATIONS and len(evaluated) >= MIN_EVALUATED_SHARE * iterations


def _estimate_eval_work(case: RunAnalysis, interval: int) -> EvalWork | None:
    history, tokens = case.log, case.facts.tokens_per_iteration
    splits = history.trainer.eval_splits
    batch, context = positive_int_setting(history, "batch_size"), positive_int_setting(history, "block_size")
    if not splits or not tokens or not batch or not context:
        return None
    told = positive_int_setting(history, "eval_iters")
    batches = told or int(history.trainer.defaults.get("eval_iters", 0))
    if not batches:
        return None
    # One card evaluates such batches while each does only its part of an update.
    updates = FORWARD_SHARE * splits * batches * batch * context * device_count(history) / tokens
    return EvalWork(batches, splits, told is None, updates, interval)


def _evidence(case: RunAnalysis, work: EvalWork | None) -> list[str]:
    history = case.log
    said = []
    if history.trainer.step_time_includes_eval:
        timed = np.isfinite(history.steps.ms) & ~history.is_first_of_process()
        said.append(
            say(
                "All {count} iterations with a time, but for the first, hold an evaluation; the median is "
                "{ms}. So nothing here shows what an update alone takes.",
                count=f"{np.count_nonzero(timed):,}",
                ms=format_ms(float(np.median(history.steps.ms[timed]))),
            )
        )
    else:
        said.append(
            say(
                "{count} evaluations in {iterations} iterations, and what they took is not in the log.",
                count=f"{len(history.evals):,}",
                iterations=f"{history.iteration_count():,}",
            )
        )
    if work is not None:
        said.append(
            say(
                "By its passes an evaluation ({splits} x {batches} batches, forward only) takes as long as "
                "{updates} updates: about {share} of the time.",
                splits=work.splits,
                batches=work.batches,
                updates=f"{work.equivalent_updates:.3g}",
                share=format_percent(work.time_share(work.interval)),
            )
        )
        if work.is_default_batches:
            said.append(say("Not in the log, so taken as the default: {names}.", names="eval_iters"))
    return said


def _advice(case: RunAnalysis, work: EvalWork | None) -> str:
    if work is None:
        return say("A doubled eval_interval halves what evaluations cost.")
    ends = planned_end_iteration(case.log)
    wider = max(10 * work.interval, ends // 10 if ends else 100 * work.interval)
    return say(
        "Raise eval_interval: {old} -> {new} saves {share} of the run.",
        old=str(work.interval),
        new=str(wider),
        share=format_percent(work.saving(wider)),
    )
