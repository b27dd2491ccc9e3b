"""Losses that are not plausible: far from chance at the start, below what text allows, or a perplexity."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.i18n import say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import numeric_setting

MAX_INIT_LOSS_DEVIATION = 0.15  # first loss over ln(vocab_size): a fresh model starts within this of 1
GPT2_VOCAB_SIZE = 50_257  # for ppl-vs-loss, where the log does not say the vocabulary
MAX_VOCAB_SIZE = 1_000_000  # no tokenizer in use has more
# First loss over ln(MAX_VOCAB_SIZE): a deliberately large initialisation stays below this.
MIN_EXCESS_OVER_CHANCE = 1.5
MIN_LOGGED_STEPS = 20
IMPLAUSIBLE_LOSS = 0.1  # nats per token; the largest models stay several times above it
MIN_FIRST_LOSS = 10 * IMPLAUSIBLE_LOSS  # the first training loss of a run that learnt it
# For ppl-vs-loss: a validation loss above these, in terms of ln(vocab_size), is none.
MAX_LOSS_OVER_CHANCE, MAX_LOSS_OVER_GPT2_CHANCE = 1.5, 1.2
MIN_LOG_PPL_TO_TRAIN_LOSS = 0.6  # ln(val loss) over train loss: less does not fit either


def init_loss(analysis: Analysis) -> Finding | None:
    """The first loss differs from ln(vocab_size), the loss of uniform guessing, by more than 15 %."""
    run_log = analysis.log
    vocab_size = numeric_setting(run_log, "vocab_size")
    initial = _initial_loss(run_log)
    if initial is None:
        return None
    at, first = initial
    if not vocab_size or vocab_size < 2:  # not in the log: compare with the largest there is
        chance = math.log(MAX_VOCAB_SIZE)
        if first <= MIN_EXCESS_OVER_CHANCE * chance or not run_log.trainer.evaluates_next_token_loss:
            return None
        title = say("init-loss.title.above_any_vocabulary")
        evidence = say(
            "init-loss.evidence.vocabulary_unknown",
            first_loss=first,
            chance_loss=chance,
            vocab_size=MAX_VOCAB_SIZE,
        )
    else:
        chance = math.log(vocab_size)
        deviation = first / chance - 1
        if abs(deviation) <= MAX_INIT_LOSS_DEVIATION:
            return None
        evidence = say(
            "init-loss.evidence.vocabulary_known",
            first_loss=first,
            vocab_size=int(vocab_size),
            chance_loss=chance,
        )
        if deviation < 0:
            if run_log.trainer.often_finetunes:
                return None
            return make_finding(
                "init-loss",
                "info",
                title=say("init-loss.title.below", deficit_share=-deviation),
                evidence=evidence,
                explanation=say("init-loss.explanation.below"),
                at=at,
            )
        title = say("init-loss.title.above", excess_share=deviation)
    return make_finding(
        "init-loss",
        "warning",
        title=title,
        evidence=evidence,
        explanation=say("init-loss.explanation.above"),
        advice=say("init-loss.advice", excess_loss=first - chance),
        at=at,
    )


def _initial_loss(run_log: RunLog) -> tuple[int, float] | None:
    """The first iteration and the loss of weights before any update, as far as the log shows."""
    steps, process = run_log.steps, run_log.segments[0] if run_log.segments else None
    if process is None or not process.has_startup or process.resumed:
        return None
    if run_log.setup.settings.get("init_from", "scratch") != "scratch":
        return None
    for evaluation in run_log.evals[:1]:
        if evaluation.iteration == 0 and evaluation.val_loss is not None and run_log.val_metric == "loss":
            return (0, evaluation.val_loss) if math.isfinite(evaluation.val_loss) else None
    first = run_log.trainer.first_iteration
    is_first = len(steps) and steps.iteration[0] == first
    has_loss = is_first and steps.has_loss[0] and math.isfinite(steps.loss[0])
    return (first, float(steps.loss[0])) if has_loss else None


def memorised_data(analysis: Analysis) -> Finding | None:
    """The training loss fell below what ordinary text allows, and nothing was evaluated."""
    at, losses = analysis.trajectory.finite_losses()
    run_log = analysis.log
    if not run_log.trainer.trains_on_plain_text or run_log.evals or len(losses) < MIN_LOGGED_STEPS:
        return None
    end = _late_median(losses)
    if not 0 <= end < IMPLAUSIBLE_LOSS or not losses[0] > MIN_FIRST_LOSS:
        return None
    return make_finding(
        "memorised-data",
        "advice",
        title=say("memorised-data.title"),
        evidence=say(
            "memorised-data.evidence",
            first_loss=float(losses[0]),
            end_loss=end,
            iterations=int(at[-1]) - int(at[0]) + 1,
        ),
        explanation=say("memorised-data.explanation"),
        advice=say("memorised-data.advice"),
    )


def _late_median(losses: Floats) -> float:
    """The median of the last tenth, of five losses at least."""
    return float(np.median(losses[-max(5, len(losses) // 10) :]))


def has_leaked_data(analysis: Analysis) -> bool:
    run_log, trajectory = analysis.log, analysis.trajectory
    _, losses = trajectory.finite_losses()
    val_losses = [
        evaluation.val_loss
        for evaluation in trajectory.evals
        if evaluation.val_loss is not None and evaluation.iteration
    ]
    if not run_log.trainer.trains_on_plain_text or run_log.val_metric != "loss":
        return False
    return bool(
        val_losses
        and len(losses)
        and 0 <= val_losses[-1] < IMPLAUSIBLE_LOSS
        and 0 <= _late_median(losses) < IMPLAUSIBLE_LOSS
        and losses[0] > MIN_FIRST_LOSS
    )


def leaked_data(analysis: Analysis) -> Finding | None:
    """The validation loss is below what ordinary text allows too: memorising does not explain that."""
    if not has_leaked_data(analysis):
        return None
    last = analysis.trajectory.evals[-1]
    _, losses = analysis.trajectory.finite_losses()
    return make_finding(
        "leaked-data",
        "warning",
        title=say("leaked-data.title"),
        evidence=say(
            "leaked-data.evidence",
            val_loss=float(last.val_loss or 0.0),
            eval_iteration=last.iteration or 0,
            train_loss=_late_median(losses),
        ),
        explanation=say("leaked-data.explanation"),
        advice=say("leaked-data.advice"),
        at=last.iteration,
    )


def ppl_vs_loss(analysis: Analysis) -> Finding | None:
    """The logged validation "loss" is a perplexity: above chance, while its logarithm fits the train loss."""
    run_log, trajectory = analysis.log, analysis.trajectory
    if run_log.val_metric != "loss" or not run_log.has_iteration_numbers:
        return None
    vocab_size = numeric_setting(run_log, "vocab_size")
    if vocab_size and vocab_size > 1:
        limit = MAX_LOSS_OVER_CHANCE * math.log(vocab_size)
    else:
        limit = MAX_LOSS_OVER_GPT2_CHANCE * math.log(GPT2_VOCAB_SIZE)
    trained = [evaluation for evaluation in trajectory.evals if evaluation.iteration]
    val_losses = [evaluation.val_loss for evaluation in trained if evaluation.val_loss is not None]
    if not val_losses or min(val_losses) <= limit:  # it was a plausible loss once: that run diverged
        return None
    last = trained[-1]
    train_loss, (_, losses) = last.train_loss, trajectory.finite_losses()
    if train_loss is None and len(losses):
        train_loss = float(np.median(losses[-20:]))
    if train_loss is None or not 0 < train_loss < limit / 1.2 or last.val_loss is None:
        return None
    log_val_loss = math.log(last.val_loss)
    if log_val_loss < MIN_LOG_PPL_TO_TRAIN_LOSS * train_loss:
        return None
    return make_finding(
        "ppl-vs-loss",
        "warning",
        title=say("ppl-vs-loss.title"),
        evidence=say(
            "ppl-vs-loss.evidence",
            val_loss=last.val_loss,
            eval_iteration=last.iteration or 0,
            train_loss=train_loss,
            log_val_loss=log_val_loss,
        ),
        explanation=say("ppl-vs-loss.explanation", val_loss=last.val_loss),
        advice=say("ppl-vs-loss.advice", log_val_loss=log_val_loss),
        at=last.iteration,
    )
