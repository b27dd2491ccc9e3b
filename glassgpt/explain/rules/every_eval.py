"""A run that evaluates at every iteration, or at every logged one: no line shows what training takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Case, Finding, Severity
from glassgpt.explain.rules.eval_cost import ADVICE_FROM, eval_interval
from glassgpt.format import milliseconds, percent
from glassgpt.i18n import say
from glassgpt.runs.inference import devices
from glassgpt.runs.trajectory import planned_end, whole_setting

FEWEST = 5  # iterations that evaluate
NEARLY_ALL = 0.9  # of the iterations
FORWARD = 1 / 3  # of the work on a token in training: the backward pass is twice the forward pass
MOST = 0.5  # of the time


@dataclass(frozen=True)
class Work:
    """An evaluation against the updates between two of them, in tokens. Estimated by the passes made."""

    batches: int
    splits: int
    is_default: bool  # the batches are not in the log
    updates: float  # that take as long as one evaluation
    interval: int

    def share(self, interval: int) -> float:
        """Of the time, at that interval."""
        return self.updates / (self.updates + interval)

    def saved(self, wider: int) -> float:
        """Of the run as it was."""
        return (self.updates - self.updates * self.interval / wider) / (self.updates + self.interval)


def evaluates_always(case: Case) -> Finding | None:
    interval = eval_interval(case)
    if not interval or not _is_always(case):
        return None
    work = _work(case, interval)
    return Finding(
        "eval-spikes",
        _severity(interval, work),
        say("Every iteration evaluates") if interval == 1 else say("Every logged iteration evaluates"),
        " ".join(_evidence(case, work)),
        _explanation(case),
        _advice(case, work),
    )


def _explanation(case: Case) -> str:
    if case.history.trainer.step_time_includes_eval:
        return say(
            "{trainer} evaluates with its clock running, so these times hold the evaluation.",
            trainer=case.history.trainer.name,
        )
    return say(
        "The times of its iterations are without the evaluations, so the run took longer than they add to."
    )


def _severity(interval: int, work: Work | None) -> Severity:
    if work is None:
        return "warning" if interval == 1 else "info"
    share = work.share(interval)
    return "warning" if share > MOST else "advice" if share >= ADVICE_FROM else "info"


def _is_always(case: Case) -> bool:
    history = case.history
    if history.quoted or history.ledger is not None or any(done.ms is not None for done in history.evals):
        return False  # a piece of a log, or one that says what evaluating took
    if history.trainer.step_time_includes_eval:
        timed = np.isfinite(history.steps.ms) & ~history.first_of_process()
        return int(timed.sum()) >= FEWEST and bool(np.all(history.holds_eval()[timed]))
    evaluated = {(done.segment, done.iteration) for done in history.evals if done.iteration is not None}
    iterations = history.iterations()
    return iterations >= FEWEST and len(evaluated) >= NEARLY_ALL * iterations


def _work(case: Case, interval: int) -> Work | None:
    history, tokens = case.history, case.facts.tokens_per_iteration
    splits = history.trainer.eval_splits
    batch, context = whole_setting(history, "batch_size"), whole_setting(history, "block_size")
    if not splits or not tokens or not batch or not context:
        return None
    told = whole_setting(history, "eval_iters")
    batches = told or int(history.trainer.defaults.get("eval_iters", 0))
    if not batches:
        return None
    # One card evaluates such batches while each does only its part of an update.
    updates = FORWARD * splits * batches * batch * context * devices(history) / tokens
    return Work(batches, splits, told is None, updates, interval)


def _evidence(case: Case, work: Work | None) -> list[str]:
    history = case.history
    said = []
    if history.trainer.step_time_includes_eval:
        timed = np.isfinite(history.steps.ms) & ~history.first_of_process()
        said.append(
            say(
                "All {count} iterations with a time, but for the first, hold an evaluation; the median is "
                "{ms}. So nothing here shows what an update alone takes.",
                count=f"{np.count_nonzero(timed):,}",
                ms=milliseconds(float(np.median(history.steps.ms[timed]))),
            )
        )
    else:
        said.append(
            say(
                "{count} evaluations in {iterations} iterations, and what they took is not in the log.",
                count=f"{len(history.evals):,}",
                iterations=f"{history.iterations():,}",
            )
        )
    if work is not None:
        said.append(
            say(
                "By its passes an evaluation ({splits} x {batches} batches, forward only) takes as long as "
                "{updates} updates: about {share} of the time.",
                splits=work.splits,
                batches=work.batches,
                updates=f"{work.updates:.3g}",
                share=percent(work.share(work.interval)),
            )
        )
        if work.is_default:
            said.append(say("Not in the log, so taken as the default: {names}.", names="eval_iters"))
    return said


def _advice(case: Case, work: Work | None) -> str:
    if work is None:
        return say("A doubled eval_interval halves what evaluations cost.")
    ends = planned_end(case.history)
    wider = max(10 * work.interval, ends // 10 if ends else 100 * work.interval)
    return say(
        "Raise eval_interval: {old} -> {new} saves {share} of the run.",
        old=str(work.interval),
        new=str(wider),
        share=percent(work.saved(wider)),
    )
