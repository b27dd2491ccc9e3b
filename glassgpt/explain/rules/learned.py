"""What the loss means: how much of its text a model knows, compared with tables of n-grams."""

from __future__ import annotations

from glassgpt.data.ladder import Rung
from glassgpt.explain.rules.loss_plausibility import has_leaked_data
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis


def ladder(analysis: Analysis) -> Finding | None:
    """The rungs of its dataset's ladder that a run passed, and where its best loss stands."""
    progress = analysis.ladder_progress
    if progress is None or progress.highest is None or progress.best.val_loss is None:
        return None
    if has_leaked_data(analysis):
        return None
    highest, ahead, best_loss = progress.highest, progress.next_rung, progress.best.val_loss
    top = progress.ladder.best
    passed_at = ", ".join(
        f"{order}: {evaluation.iteration:,}" for order, evaluation in progress.passed.items() if order > 0
    )
    if ahead is None:
        distance = say("ladder.evidence.past_best", best_loss=best_loss, distance=top.loss - best_loss)
    else:
        distance = say(
            "ladder.evidence.short_of",
            best_loss=best_loss,
            table=baseline_name(ahead.order),
            loss=ahead.loss,
            best_table=top.loss,
        )
    return make_finding(
        "ladder",
        "info",
        title=ladder_position(highest, ahead),
        evidence=distance,
        explanation=say("ladder.explanation"),
        more=[
            say("ladder.more.passed", passed_at=passed_at),
            say("ladder.more.assumed") if progress.is_assumed else None,
        ],
        at=progress.passed[highest.order].iteration,
        claims={"ladder order": highest.order},
    )


def ladder_position(highest: Rung, ahead: Rung | None) -> Message:
    """Between which rungs a model stands; `ahead` None: beyond the best."""
    if ahead is None:
        return say("ladder.title.beyond")
    passed, not_passed = baseline_name(highest.order), baseline_name(ahead.order)
    return say("ladder.title.between", passed=passed, ahead=not_passed)


def baseline_name(order: int) -> Message:
    """The rung of this order, in words."""
    if order == 0:
        return say("ladder.knows.nothing")
    if order == 1:
        return say("ladder.knows.frequencies")
    if order == 2:
        return say("ladder.knows.pairs")
    if order == 3:
        return say("ladder.knows.triples")
    return say("ladder.knows.ngrams", order=order)
