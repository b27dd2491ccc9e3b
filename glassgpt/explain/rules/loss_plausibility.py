"""Losses that are not plausible: far from chance at the start, below what text allows, or a perplexity."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.format import format_integer, format_loss, format_loss_difference, format_percent
from glassgpt.i18n import say
from glassgpt.record.finding import Finding
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
    first = _initial_loss(run_log)
    if first is None:
        return None
    if not vocab_size or vocab_size < 2:  # not in the log: compare with the largest there is
        chance = math.log(MAX_VOCAB_SIZE)
        if first <= MIN_EXCESS_OVER_CHANCE * chance or not run_log.trainer.evaluates_next_token_loss:
            return None
        title = say("The initial loss is above that of a uniform guess, for any vocabulary")
        evidence = say(
            "The first loss is {first}; a uniform guess has loss ln(vocabulary size), which is {chance} "
            "even for {vocabulary} tokens.",
            first=format_loss(first),
            chance=format_loss(chance),
            vocabulary=format_integer(MAX_VOCAB_SIZE),
        )
    else:
        chance = math.log(vocab_size)
        deviation = first / chance - 1
        if abs(deviation) <= MAX_INIT_LOSS_DEVIATION:
            return None
        evidence = say(
            "The first loss is {first}; a uniform guess among {vocabulary} tokens has loss ln({vocabulary}) "
            "= {chance}.",
            first=format_loss(first),
            vocabulary=int(vocab_size),
            chance=format_loss(chance),
        )
        if deviation < 0:
            if run_log.trainer.often_finetunes:
                return None
            return Finding(
                "init-loss",
                "info",
                say("The initial loss is {off} below ln(vocabulary size)", off=format_percent(-deviation)),
                evidence,
                say(
                    "A newly initialised model cannot do that. The weights were trained before (a resume or "
                    "a finetune), vocab_size is not that of the data, or the targets leak into the inputs."
                ),
                "",
            )
        title = say("The initial loss is {off} above ln(vocabulary size)", off=format_percent(deviation))
    return Finding(
        "init-loss",
        "warning",
        title,
        evidence,
        say(
            "A newly initialised model should predict a nearly uniform distribution. A higher loss means "
            "that it starts over-confident: the initial weights are too large, or the labels do not match "
            "the inputs."
        ),
        say(
            "Initialise with a standard deviation of 0.02, and less for the layers that add to the residual "
            "stream. That lowers the loss by {gain} before the first update.",
            gain=format_loss_difference(first - chance),
        ),
    )


def _initial_loss(run_log: RunLog) -> float | None:
    """The loss of weights before any update, as far as the log shows."""
    steps, process = run_log.steps, run_log.segments[0] if run_log.segments else None
    if process is None or not process.has_startup or process.resumed:
        return None
    if run_log.setup.settings.get("init_from", "scratch") != "scratch":
        return None
    for done in run_log.evals[:1]:
        if done.iteration == 0 and done.val_loss is not None and run_log.val_metric == "loss":
            return done.val_loss if math.isfinite(done.val_loss) else None
    is_first = len(steps) and steps.iteration[0] == run_log.trainer.first_iteration
    return float(steps.loss[0]) if is_first and steps.has_loss[0] and math.isfinite(steps.loss[0]) else None


def memorised_data(analysis: Analysis) -> Finding | None:
    """The training loss fell below what ordinary text allows, and nothing was evaluated."""
    at, losses = analysis.trajectory.finite_losses()
    run_log = analysis.log
    if not run_log.trainer.trains_on_plain_text or run_log.evals or len(losses) < MIN_LOGGED_STEPS:
        return None
    end = _late_median(losses)
    if not 0 <= end < IMPLAUSIBLE_LOSS or not losses[0] > MIN_FIRST_LOSS:
        return None
    return Finding(
        "memorised-data",
        "advice",
        say("The model has memorised its training data"),
        say(
            "The training loss went from {first} to {end} (median of the last tenth) in {count} iterations, "
            "and nothing was evaluated.",
            first=format_loss(float(losses[0])),
            end=format_loss(end),
            count=format_integer(int(at[-1]) - int(at[0]) + 1),
        ),
        say(
            "Ordinary text cannot be predicted so well: the dataset is small and repeated many times, or "
            "follows a simple rule."
        ),
        say("Hold out a part of the data and evaluate on it: only that shows what the model can do."),
    )


def _late_median(losses: Floats) -> float:
    """The median of the last tenth, of five losses at least."""
    return float(np.median(losses[-max(5, len(losses) // 10) :]))


def has_leaked_data(analysis: Analysis) -> bool:
    run_log, trajectory = analysis.log, analysis.trajectory
    _, losses = trajectory.finite_losses()
    val_losses = [done.val_loss for done in trajectory.evals if done.val_loss is not None and done.iteration]
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
    return Finding(
        "leaked-data",
        "warning",
        say("The validation loss is lower than ordinary text allows"),
        say(
            "val loss {val} at iteration {at}, training loss {train} (median of the last tenth).",
            val=format_loss(float(last.val_loss or 0.0)),
            at=format_integer(last.iteration or 0),
            train=format_loss(_late_median(losses)),
        ),
        say(
            "No model can predict unseen text so well. It sees the targets (they are not shifted, or "
            "attention is not causal), the validation text is in the training text, or the data follow a "
            "simple rule."
        ),
        say(
            "Check that the targets are the inputs shifted by one, that the attention is causal, and that "
            "no part of the validation text is in the training text. Sample from the model: one that saw "
            "the targets generates nonsense."
        ),
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
    trained = [done for done in trajectory.evals if done.iteration]
    val_losses = [done.val_loss for done in trained if done.val_loss is not None]
    if not val_losses or min(val_losses) <= limit:  # it was a plausible loss once: that run diverged
        return None
    last = trained[-1]
    train_loss, (_, losses) = last.train_loss, trajectory.finite_losses()
    if train_loss is None and len(losses):
        train_loss = float(np.median(losses[-20:]))
    if train_loss is None or not 0 < train_loss < limit / 1.2 or last.val_loss is None:
        return None
    as_loss = math.log(last.val_loss)
    if as_loss < MIN_LOG_PPL_TO_TRAIN_LOSS * train_loss:
        return None
    return Finding(
        "ppl-vs-loss",
        "warning",
        say("The logged val loss is a perplexity"),
        say(
            "val loss {val} at iteration {at}, train loss {train}. ln({val}) = {as_loss}.",
            val=f"{last.val_loss:.2f}",
            at=format_integer(last.iteration or 0),
            train=format_loss(train_loss),
            as_loss=f"{as_loss:.2f}",
        ),
        say(
            "A uniform guess has loss ln(vocabulary size), 10.8 for GPT-2's vocabulary. {val} is above that "
            "while the training loss is normal, and its logarithm fits the training loss: it is exp(loss).",
            val=f"{last.val_loss:.2f}",
        ),
        say(
            "Compare {as_loss} with other losses, or log the mean cross-entropy itself.",
            as_loss=f"{as_loss:.2f}",
        ),
    )
