"""A resume that lost something: the run is worse than its checkpoint, and takes long to come back."""

from __future__ import annotations

import numpy as np

from glassgpt.explain.rules.resumes import MIN_JUMP_SHARE, NEIGHBOUR_STEPS
from glassgpt.i18n import say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis

MAX_BATCH_SHARE = 0.1  # of a loss: one batch is so far from the mean


def resume_lost_state(analysis: Analysis) -> Finding | None:
    """The first validation after a load is worse than what the checkpoint says of itself: the weights were
    there, and the first updates spoilt them."""
    run_log, before = analysis.log, analysis.log.setup.resumed_val_loss
    evals = [
        (one.iteration, one.val_loss)
        for one in analysis.trajectory.evals
        if one.iteration is not None and one.val_loss is not None
    ]
    if not before or not evals or run_log.val_metric != "loss" or len(run_log.segments) > 1:
        return None
    start, (first_at, first) = int(run_log.steps.iteration[0]), evals[0]
    if first <= (1 + MIN_JUMP_SHARE) * before:
        return None
    back = next((at for at, loss in evals if loss <= before), None)
    losses, norms = (
        column[: NEIGHBOUR_STEPS + 1][np.isfinite(column[: NEIGHBOUR_STEPS + 1])]
        for column in (run_log.steps.loss, run_log.steps.grad_norm)
    )
    has_weights = len(losses) > 0 and losses[0] <= (1 + MAX_BATCH_SHARE) * before
    cost = None if back is None else analysis.seconds_and_share_after(start, back)
    evidence = [
        say("resume-lost-state.evidence.validation", before=before, after=first, at=first_at),
        say("resume-lost-state.evidence.loss", first_loss=float(losses[0]), max_loss=float(losses[1:].max()))
        if len(losses) > 1
        else None,
        say("resume-lost-state.evidence.norm", first_norm=float(norms[0]), max_norm=float(norms[1:].max()))
        if len(norms) > 1
        else None,
    ]
    if back is None:
        evidence.append(say("resume-lost-state.evidence.never_back"))
    elif cost is None:
        evidence.append(say("resume-lost-state.evidence.back", back=back, iterations=back - start))
    else:
        seconds, share = cost
        evidence.append(
            say(
                "resume-lost-state.evidence.back_after",
                back=back,
                iterations=back - start,
                seconds=seconds,
                share=share,
            )
        )
    return make_finding(
        "resume-lost-state",
        "warning",
        title=say("resume-lost-state.title"),
        evidence=evidence,
        explanation=[
            say("resume-lost-state.explanation.weights") if has_weights else None,
            say("resume-lost-state.explanation"),
        ],
        advice=say("resume-lost-state.advice"),
        at=first_at,
        lines=analysis.lines_at([start]) + analysis.eval_lines_at([first_at]),
    )
