"""What a loss can be at all: against chance at the start, against its own noise, against a perplexity."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.explain.rules.overfitting import find_past_best
from glassgpt.format import format_count, format_integer, format_loss, format_loss_difference, format_percent
from glassgpt.i18n import say
from glassgpt.runs.noise import EvalNoise
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import Trajectory, numeric_setting, val_metric_name

MAX_INIT_LOSS_DEVIATION = 0.15  # a fresh model starts within this of ln V
GPT2_VOCAB_SIZE = 50_257  # the largest in common use here; a loss far above its ln is none
MAX_VOCAB_SIZE = 1_000_000  # none in use is larger
MIN_EXCESS_OVER_CHANCE = 1.5  # times the largest chance: a deliberate large initialisation stays below that
MIN_STANDARD_ERRORS = 2.0  # standard errors
MIN_VISIBLE_SHARE = 0.01  # of the loss: nobody chooses between runs by less


# --- against chance ---


def init_loss(case: RunAnalysis) -> Finding | None:
    history = case.log
    vocabulary = numeric_setting(history, "vocab_size")
    first = _initial_loss(history)
    if first is None:
        return None
    if not vocabulary or vocabulary < 2:
        return _above_any_chance(history, first)
    chance = math.log(vocabulary)
    off = first / chance - 1
    if abs(off) <= MAX_INIT_LOSS_DEVIATION or (off < 0 and history.trainer.often_finetunes):
        return None
    evidence = say(
        "The first loss is {first}; guessing evenly among {vocabulary} tokens has ln({vocabulary}) = "
        "{chance}.",
        first=format_loss(first),
        vocabulary=int(vocabulary),
        chance=format_loss(chance),
    )
    if off > 0:
        title = say("The run starts {off} above the loss of guessing", off=format_percent(off))
        return _init_loss_too_high(title, evidence, first - chance)
    return _init_loss_too_low(off, evidence)


def _above_any_chance(history: RunLog, first: float) -> Finding | None:
    """Whatever the vocabulary is: none is so large."""
    chance = math.log(MAX_VOCAB_SIZE)
    if first <= MIN_EXCESS_OVER_CHANCE * chance or not history.trainer.evaluates_next_token_loss:
        return None
    evidence = say(
        "The first loss is {first}; guessing evenly has ln(vocabulary), and that is {chance} even for "
        "{vocabulary} tokens.",
        first=format_loss(first),
        chance=format_loss(chance),
        vocabulary=format_integer(MAX_VOCAB_SIZE),
    )
    return _init_loss_too_high(say("The run starts above the loss of any guessing"), evidence, first - chance)


def _init_loss_too_high(title: str, evidence: str, gain: float) -> Finding:
    return Finding(
        "init-loss",
        "warning",
        title,
        evidence,
        say(
            "A fresh model knows nothing, so it should guess evenly. A higher loss means that it starts sure "
            "of wrong answers: the initial weights are too large, or the labels do not belong to the inputs."
        ),
        say(
            "Initialise with a standard deviation of 0.02, and less on the layers that add to the residual "
            "stream. That takes off {gain} before the first update.",
            gain=format_loss_difference(gain),
        ),
    )


def _init_loss_too_low(off: float, evidence: str) -> Finding:
    return Finding(
        "init-loss",
        "info",
        say("The run starts {off} below the loss of guessing", off=format_percent(-off)),
        evidence,
        say(
            "A fresh model cannot do that. The weights were trained before (a resume or a finetune), "
            "vocab_size is not the one the data uses, or the answers leak into the inputs."
        ),
        "",
    )


def _initial_loss(history: RunLog) -> float | None:
    """Of weights that no update has touched, as far as the log tells."""
    steps, first = history.steps, history.trainer.first_iteration
    fresh = history.segments and history.segments[0].has_startup and not history.segments[0].resumed
    origin = history.setup.settings.get("init_from", "scratch")
    if not fresh or origin != "scratch":
        return None
    for done in history.evals[:1]:
        if done.iteration == 0 and done.val_loss is not None and history.val_metric == "loss":
            return done.val_loss if math.isfinite(done.val_loss) else None
    if len(steps) and steps.iteration[0] == first and steps.has_loss[0] and math.isfinite(steps.loss[0]):
        return float(steps.loss[0])
    return None


# --- against its noise ---


@np.errstate(over="ignore", invalid="ignore")  # losses of 1e308 have been seen
def eval_noise(case: RunAnalysis) -> Finding | None:
    history, noise = case.log, case.eval_noise
    _, values = case.trajectory.val_curve()
    recent = values[-max(4, len(values) // 3) :]
    if noise is None or len(recent) < 4 or find_past_best(case):  # past it, a rise of many is no noise
        return None
    if noise.source == "scatter" and not history.trainer.evaluates_random_batches:
        return None  # the others evaluate the same tokens every time: their scatter is not the evaluation's
    if noise.source == "scatter" and np.all(np.diff(values[len(values) // 3 :]) < 0):
        return None  # each is told apart from the one before: what is taken for scatter is the curve's bend
    steps = np.abs(np.diff(recent))
    usual = float(np.median(steps))
    visible = MIN_STANDARD_ERRORS * math.sqrt(2) * noise.std
    # A curve that does not move cannot be told apart by any number of batches; that is a plateau.
    if usual >= visible or usual < visible / 20 or visible < MIN_VISIBLE_SHARE * float(recent[-1]):
        return None
    more = (visible / usual) ** 2
    return Finding(
        "eval-noise",
        "advice",
        say("Neighbouring evaluations cannot be told apart"),
        _noise_evidence(history, noise, usual, visible, len(steps)),
        say(
            "Every evaluation is a sample. A difference below {visible} between two of them is as likely "
            "luck as progress, and so is the choice of the best one.",
            visible=format_loss_difference(visible),
        ),
        _noise_advice(noise, more),
    )


def _noise_evidence(history: RunLog, noise: EvalNoise, usual: float, visible: float, pairs: int) -> str:
    said = [
        say(
            "The last {pairs} steps from one {metric} to the next are {usual} in the median; only more than "
            "{visible} stands out from the noise.",
            pairs=pairs,
            metric=val_metric_name(history),
            usual=format_loss_difference(usual),
            visible=format_loss_difference(visible),
        )
    ]
    if noise.source == "batches" and noise.batch_std and noise.eval_batches:
        said.append(
            say(
                "Single batches scatter by {batch}, so a mean of eval_iters={batches} of them by {error}.",
                batch=format_loss_difference(noise.batch_std),
                batches=int(noise.eval_batches),
                error=format_loss_difference(noise.std),
            )
        )
    elif noise.source == "tokens" and noise.eval_tokens:
        said.append(
            say(
                "Of the {tokens} tokens that it evaluates, the mean has an error of about {error}.",
                tokens=format_count(noise.eval_tokens),
                error=format_loss_difference(noise.std),
            )
        )
    elif noise.source == "stderr":
        said.append(
            say("The log gives a standard error of {error}.", error=format_loss_difference(noise.std))
        )
    else:
        said.append(
            say(
                "The evaluations scatter by {error} around their course.",
                error=format_loss_difference(noise.std),
            )
        )
    return " ".join(said)


def _noise_advice(noise: EvalNoise, more: float) -> str:
    if noise.eval_batches:
        wanted = math.ceil(noise.eval_batches * more - 1e-6)
        return say(
            "eval_iters={old} -> {new} would tell them apart. Evaluating the same tokens every time does it "
            "for less.",
            old=int(noise.eval_batches),
            new=wanted,
        )
    return say(
        "Evaluating {more} times as many tokens would tell them apart, or the same tokens every time.",
        more=format_integer(math.ceil(more - 1e-6)),
    )


# --- against a perplexity ---


def ppl_vs_loss(case: RunAnalysis) -> Finding | None:
    history, course = case.log, case.trajectory
    if history.val_metric != "loss" or not history.numbered:
        return None
    vocabulary = numeric_setting(history, "vocab_size")
    limit = 1.5 * math.log(vocabulary) if vocabulary and vocabulary > 1 else 1.2 * math.log(GPT2_VOCAB_SIZE)
    trained = [done for done in course.evals if done.iteration]
    values = [done.val_loss for done in trained if done.val_loss is not None]
    if not values or min(values) <= limit:  # it was a loss once, so it is one: that run diverged
        return None
    last = trained[-1]
    train = last.train_loss if last.train_loss is not None else _late_loss(course)
    if train is None or not 0 < train < limit / 1.2 or last.val_loss is None:
        return None
    as_loss = math.log(last.val_loss)
    if as_loss < 0.6 * train:
        return None
    return Finding(
        "ppl-vs-loss",
        "warning",
        say("What is called val loss here is a perplexity"),
        say(
            "val loss {val} at iteration {at}, train loss {train}. ln({val}) = {as_loss}.",
            val=f"{last.val_loss:.2f}",
            at=format_integer(last.iteration or 0),
            train=format_loss(train),
            as_loss=f"{as_loss:.2f}",
        ),
        say(
            "A model that knows nothing at all has a loss of ln(vocabulary), 10.8 for GPT-2's. {val} is "
            "above that while the training loss is normal, and its logarithm fits the training loss: it is "
            "exp(loss).",
            val=f"{last.val_loss:.2f}",
        ),
        say(
            "Compare {as_loss} with other losses, or log the mean cross-entropy itself.",
            as_loss=f"{as_loss:.2f}",
        ),
    )


def _late_loss(course: Trajectory) -> float | None:
    _, losses = course.finite_losses()
    return float(np.median(losses[-20:])) if len(losses) else None
