"""What the loss means: how much of its text a model knows, compared with tables of n-grams; how much of its
context it uses; and milestones that were seen in its checkpoints (runs/checkpoint_looks.py)."""

from __future__ import annotations

import math
from collections.abc import Callable

from glassgpt.data.ladder import Rung
from glassgpt.estimate.flops import attention_flops_per_token
from glassgpt.explain.rules.loss_plausibility import has_leaked_data
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.checkpoint_looks import CheckpointLook
from glassgpt.runs.loss_by_class import LossByClass, read_loss_parts
from glassgpt.runs.noise import VISIBLE_STANDARD_ERRORS
from glassgpt.runs.trajectory import planned_end_iteration, positive_int_setting

# Nats per token by which more context must lower the loss to be useful: about 2% of usual losses.
MIN_CONTEXT_GAIN = 0.03
MIN_CONTEXT_ORDER = 3  # of a rung to pass first: a model that knows only pairs needs no context yet
MIN_ADVICE_SAVING = 0.05  # of the FLOPs: below, a shorter context is not worth a change
MIN_TRAINED_SHARE = 0.9  # of the plan: before, a model has not learned to use its context
MIN_KNOWN_WORDS = 0.5  # of the words of its samples
MIN_BRACKETS = 5  # opened in its samples: fewer say nothing
MIN_CLOSED_BRACKETS = 0.5  # of the share that closes in validation text
# Mean attention to what followed the same token before: of all heads, and in terms of uniform attention.
MIN_INDUCTION_SCORE, MIN_INDUCTION_RATIO = 0.25, 5.0
# A string that is copied from the training text: tokens, of its sample, and compared with validation text.
MIN_MEMORISED_TOKENS, MIN_MEMORISED_SHARE, MIN_MEMORISED_RATIO = 30, 0.25, 2.0


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
        distance = say(
            "ladder.evidence.past_best",
            best_loss=best_loss,
            distance=top.loss - best_loss,
            best_table=top.loss,
            at=progress.passed[top.order].iteration,
        )
    else:
        distance = say(
            "ladder.evidence.short_of",
            best_loss=best_loss,
            table=baseline_name(ahead.order),
            loss=ahead.loss,
            best_table=top.loss,
            passed=baseline_name(highest.order),
            at=progress.passed[highest.order].iteration,
        )
    return make_finding(
        "ladder",
        "info",
        title=say("ladder.title.level", passed=baseline_name(highest.order), ahead=baseline_name(ahead.order))
        if ahead is not None and best_loss < ahead.loss  # below it, by less than its noise
        else ladder_position(highest, ahead),
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


# --- context ---


def context_unused(analysis: Analysis) -> Finding | None:
    """From some length of context on, more of it does not lower the loss: what a shorter one would save."""
    log = analysis.log
    evaluation = log.closing_eval or (log.evals[-1] if log.evals else None)
    parts = None if evaluation is None else read_loss_parts(evaluation)
    block_size, n_layer, n_embd = (
        positive_int_setting(log, name) for name in ("block_size", "n_layer", "n_embd")
    )
    progress = analysis.ladder_progress
    if progress is not None and (progress.highest is None or progress.highest.order < MIN_CONTEXT_ORDER):
        return None
    done, planned = analysis.trajectory.last_iteration, planned_end_iteration(log)
    if parts is None or evaluation is None or not (block_size and n_layer and n_embd and evaluation.stderr):
        return None
    if done is None or planned is None or done < MIN_TRAINED_SHARE * planned:
        return None
    flat_from = _flat_position(parts, evaluation.stderr)
    if flat_from is None:
        return None
    last, loss, later_loss = flat_from
    useful = last + 1
    if 2 * useful > block_size:
        return None
    saved = None
    if analysis.size.flops_per_token:
        now, then = (attention_flops_per_token(n_layer, n_embd, one) for one in (block_size, useful))
        saved = (now - then) / analysis.size.flops_per_token
    is_worth_it = saved is not None and saved >= MIN_ADVICE_SAVING
    return make_finding(
        "context-unused",
        "advice" if is_worth_it else "info",
        title=say("context-unused.title", useful=useful, block_size=block_size),
        evidence=say("context-unused.evidence", last=last, loss=loss, later_loss=later_loss),
        explanation=say("context-unused.explanation"),
        advice=say("context-unused.advice", useful=useful, saved=saved) if is_worth_it else None,
        claims={"useful context": useful},
    )


def _flat_position(parts: LossByClass, stderr: float) -> tuple[int, float, float] | None:
    """The shortest context beyond which the loss is flat: its tokens, the loss there, the loss with more."""
    total = sum(tokens for _, _, tokens, _ in parts.by_position)
    for index, (_, last, tokens, loss) in enumerate(parts.by_position[:-1]):
        later = parts.by_position[index + 1 :]
        later_tokens = sum(row[2] for row in later)
        later_loss = sum(row[2] * row[3] for row in later) / later_tokens
        # As if the two were independent. They are of the same windows, so the real error is smaller.
        error = stderr * math.sqrt(total / tokens + total / later_tokens)
        if loss - later_loss + VISIBLE_STANDARD_ERRORS * error < MIN_CONTEXT_GAIN:
            return last, loss, later_loss
    return None


# --- milestones ---


def half_known_words(analysis: Analysis) -> Finding | None:
    """The first checkpoint half of whose sampled words are words of the training text."""
    found = _first_look(analysis, lambda look: (look.known_words or 0.0) >= MIN_KNOWN_WORDS)
    if found is None or found.val_known_words is None:
        return None
    return make_finding(
        "half-known-words",
        "info",
        title=say("half-known-words.title", update=found.iteration),
        evidence=say(
            "half-known-words.evidence", share=found.known_words, val_share=found.val_known_words or 1.0
        ),
        explanation=say("half-known-words.explanation"),
        at=found.iteration,
    )


def brackets_close(analysis: Analysis) -> Finding | None:
    """The first checkpoint whose samples close their brackets and quotes."""

    def do_close(look: CheckpointLook) -> bool:
        wanted = MIN_CLOSED_BRACKETS * (1.0 if look.val_brackets_closed is None else look.val_brackets_closed)
        is_enough = (look.brackets_opened or 0) >= MIN_BRACKETS
        return is_enough and look.brackets_closed is not None and look.brackets_closed >= max(wanted, 0.1)

    look = _first_look(analysis, do_close)
    if look is None:
        return None
    return make_finding(
        "brackets-close",
        "info",
        title=say("brackets-close.title", update=look.iteration),
        evidence=say("brackets-close.evidence", opened=look.brackets_opened, share=look.brackets_closed),
        explanation=say("brackets-close.explanation"),
        at=look.iteration,
    )


def induction_head(analysis: Analysis) -> Finding | None:
    """The first checkpoint with a head that finds what followed the same token before."""

    def has_one(look: CheckpointLook) -> bool:
        best, uniform = look.best_induction, look.induction_uniform
        if best is None or not uniform or look.first_copy_loss is None or look.second_copy_loss is None:
            return False
        repeats = look.second_copy_loss < look.first_copy_loss
        return repeats and best[2] >= max(MIN_INDUCTION_SCORE, MIN_INDUCTION_RATIO * uniform)

    look = _first_look(analysis, has_one)
    if look is None or (best := look.best_induction) is None:
        return None
    return make_finding(
        "induction-head",
        "info",
        title=say("induction-head.title", update=look.iteration, layer=best[0] + 1, head=best[1] + 1),
        evidence=say(
            "induction-head.evidence",
            score=best[2],
            uniform=look.induction_uniform,
            first=look.first_copy_loss,
            second=look.second_copy_loss,
        ),
        explanation=say("induction-head.explanation"),
        at=look.iteration,
    )


def copied_text(analysis: Analysis) -> Finding | None:
    """Memorised or learned: the longest string of the latest samples that stands in the training text."""
    looks = [look for look in analysis.log.looks if look.copied_tokens is not None]
    if not looks:
        return None
    look = looks[-1]
    tokens, share, by_chance = look.copied_tokens or 0, look.copied_share or 0.0, look.val_copied_tokens or 0
    is_memorised = (
        tokens >= max(MIN_MEMORISED_TOKENS, MIN_MEMORISED_RATIO * by_chance) and share >= MIN_MEMORISED_SHARE
    )
    memorised, own = say("copied-text.title.memorised", share=share), say("copied-text.title.own")
    return make_finding(
        "copied-text",
        "advice" if is_memorised else "info",
        title=memorised if is_memorised else own,
        evidence=say(
            "copied-text.evidence", tokens=tokens, share=share, val_tokens=by_chance, update=look.iteration
        ),
        explanation=say("copied-text.explanation"),
        advice=say("copied-text.advice") if is_memorised else None,
        at=look.iteration,
    )


def _first_look(analysis: Analysis, has_it: Callable[[CheckpointLook], bool]) -> CheckpointLook | None:
    """The first checkpoint that was looked at and has it."""
    return next(filter(has_it, analysis.log.looks), None)
