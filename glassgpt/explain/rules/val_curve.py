"""The curve of validation losses: where the run should have stopped, and whether its noise hides progress."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.format import (
    format_count,
    format_duration,
    format_integer,
    format_loss,
    format_loss_difference,
    format_percent,
)
from glassgpt.i18n import say
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.noise import EvalNoise
from glassgpt.runs.trajectory import Trajectory, takes_known_settings, val_metric_name

# The rise after the best evaluation has to exceed each of these.
MIN_RISE_STANDARD_ERRORS = 3.0  # of a difference of two evaluations
DEFAULT_NOISE_SHARE = 0.01  # of the best loss: replaces the above where the noise is not known
MIN_RISE_SHARE = 0.01  # of the best loss: less is no reason to stop
MIN_RISE_SHARE_SINGLE_EVAL = 0.03  # of the best loss, where only one evaluation came after the best
MIN_TRAIN_LOSSES = 5  # for the training loss at one point of the run
WARNING_RISE_SHARE = 0.02  # of the best loss: then the last weights are not worth keeping

# Steps from one evaluation to the next, compared with the noise of their difference.
MIN_VISIBLE_STANDARD_ERRORS = 2.0  # that a step must have to be distinguished from noise
MIN_VISIBLE_SHARE = 0.01  # of the loss: nobody chooses between runs by less
MIN_STEP_TO_VISIBLE = 1 / 20  # a curve that moves less is a plateau; more batches do not help


@dataclass(frozen=True)
class PastBest:
    """How far a run went past its best evaluation."""

    best_loss: float
    best_iteration: int
    end_loss: float
    end_iteration: int
    start_iteration: int

    @property
    def share_after_best(self) -> float:
        return (self.end_iteration - self.best_iteration) / max(1, self.end_iteration - self.start_iteration)


def find_past_best(analysis: Analysis) -> PastBest | None:
    """None where the last evaluations are not clearly above the best one."""
    at, values = analysis.trajectory.val_curve()
    if len(values) < 3:
        return None
    best = int(np.argmin(values))
    evals_after = len(values) - 1 - best
    lowest, noise = float(values[best]), analysis.eval_noise
    min_rise = MIN_RISE_STANDARD_ERRORS * math.sqrt(2) * noise.std if noise else DEFAULT_NOISE_SHARE * lowest
    low, end = lowest, float(values[-1])
    if evals_after >= 2:  # the lowest of many is low by luck too: take the median with its neighbours
        low = float(np.median(values[max(0, best - 1) : best + 2]))
        end = float(np.mean(values[-min(evals_after, 3) :]))
    else:  # a single evaluation past the best may be an accident
        min_rise = max(min_rise, MIN_RISE_SHARE_SINGLE_EVAL * lowest)
    if evals_after < 1 or at[best] <= 0 or not end - low > max(min_rise, MIN_RISE_SHARE * low):
        return None
    trajectory, start = analysis.trajectory, int(at[0])
    if trajectory.segments and analysis.log.segments[trajectory.segments[0]].has_startup:
        start = 0
    elif len(trajectory.iteration):
        start = min(start, int(trajectory.iteration[0]))
    return PastBest(lowest, int(at[best]), float(values[-1]), int(at[-1]), start)


def _train_loss_fell(trajectory: Trajectory, past: PastBest) -> tuple[float, float] | None:
    """The training loss at the best evaluation and at the end, if it is lower at the end."""
    train_losses = {done.iteration: done.train_loss for done in trajectory.evals}
    at_best, at_end = train_losses.get(past.best_iteration), train_losses.get(past.end_iteration)
    if at_best is None or at_end is None:
        at, losses = trajectory.finite_losses()
        around = np.flatnonzero((at > past.best_iteration * 0.9) & (at <= past.best_iteration * 1.1))
        late = np.flatnonzero(at > past.end_iteration - 0.1 * (past.end_iteration - past.start_iteration))
        if len(around) < MIN_TRAIN_LOSSES:  # a large log interval: take the nearest lines
            around = np.sort(np.argsort(np.abs(at - past.best_iteration), kind="stable")[:MIN_TRAIN_LOSSES])
        if len(late) < MIN_TRAIN_LOSSES:
            late = np.arange(len(at))[-MIN_TRAIN_LOSSES:]
        if len(around) < MIN_TRAIN_LOSSES or around[-1] >= late[0]:
            return None
        at_best, at_end = float(np.median(losses[around])), float(np.median(losses[late]))
    return (at_best, at_end) if at_end < at_best else None


def has_overfitted(analysis: Analysis) -> bool:
    past = find_past_best(analysis)
    return past is not None and _train_loss_fell(analysis.trajectory, past) is not None


def overfitting(analysis: Analysis) -> Finding | None:
    """The validation loss rose after its best while the training loss fell."""
    past = find_past_best(analysis)
    fell = _train_loss_fell(analysis.trajectory, past) if past else None
    if past is None or fell is None:
        return None
    run_log = analysis.log
    rise = past.end_loss - past.best_loss
    worse = format_loss_difference(rise)
    losses = {"best": format_loss(past.best_loss), "end": format_loss(past.end_loss), "worse": worse}
    if run_log.has_iteration_numbers:
        title = say("The model has overfitted since iteration {at}", at=format_integer(past.best_iteration))
        compared = say(
            "Best {metric} {best} at iteration {at}, at the end {end} at iteration {last}: {worse} worse.",
            metric=val_metric_name(run_log),
            at=format_integer(past.best_iteration),
            last=format_integer(past.end_iteration),
            **losses,
        )
    else:
        title = say(
            "The model has overfitted for the last {share} of the run",
            share=format_percent(past.share_after_best),
        )
        compared = say(
            "Best {metric} {best}, at the end {end}: {worse} worse.",
            metric=val_metric_name(run_log),
            **losses,
        )
    evidence = [
        compared,
        say(
            "The training loss fell from {then} to {now} meanwhile.",
            then=format_loss(fell[0]),
            now=format_loss(fell[1]),
        ),
        say("{share} of the iterations came after the best.", share=format_percent(past.share_after_best)),
    ]
    wasted = analysis.seconds_and_share_after(past.best_iteration, past.end_iteration)
    if wasted:
        time, share = format_duration(wasted[0]), format_percent(wasted[1])
        evidence.append(say("They took {time}, {share} of the time.", time=time, share=share))
    return Finding(
        "overfitting",
        "warning" if rise > WARNING_RISE_SHARE * past.best_loss else "advice",
        title,
        " ".join(evidence),
        say(
            "After its best evaluation the model memorises the training text: it gets better on that and "
            "worse on unseen text. The last loss is not what this run achieved."
        ),
        _overfitting_advice(analysis, past, wasted[1] if wasted else past.share_after_best),
    )


def _overfitting_advice(analysis: Analysis, past: PastBest, saving: float) -> str:
    values = {
        "share": format_percent(saving),
        "worse": format_loss_difference(past.end_loss - past.best_loss),
    }
    advice = []
    if not analysis.log.has_iteration_numbers:
        advice.append(say("Stopping there saves {share} of the run and ends about {worse} lower.", **values))
    elif takes_known_settings(analysis.log):
        advice.append(
            say(
                "max_iters={at} with lr_decay_iters={at} saves {share} of the run and ends about {worse} "
                "lower.",
                at=past.best_iteration,
                **values,
            )
        )
        if any(
            save.iteration is not None and save.iteration > past.best_iteration
            for save in analysis.trajectory.checkpoints
        ):
            advice.append(say("always_save_checkpoint=False keeps the best weights instead of the last."))
    else:
        advice.append(
            say(
                "Stopping at iteration {at} saves {share} of the run and ends about {worse} lower.",
                at=format_integer(past.best_iteration),
                **values,
            )
        )
    advice.append(
        say(
            "To get below {best}: more text, more dropout, or a smaller model.",
            best=format_loss(past.best_loss),
        )
    )
    return " ".join(advice)


def eval_noise(analysis: Analysis) -> Finding | None:
    """Neighbouring evaluations differ by less than two standard errors of their difference."""
    noise, trainer = analysis.eval_noise, analysis.log.trainer
    _, values = analysis.trajectory.val_curve()
    recent = values[-max(4, len(values) // 3) :]
    if noise is None or len(recent) < 4 or find_past_best(analysis):  # a rise of several is not noise
        return None
    if noise.source == "scatter":
        if not trainer.evaluates_random_batches:
            return None  # the others evaluate the same tokens every time: the scatter is the model's
        if np.all(np.diff(values[len(values) // 3 :]) < 0):
            return None  # the curve falls at every evaluation: the scatter is its bend
    steps = np.abs(np.diff(recent))
    usual_step = float(np.median(steps))
    visible = MIN_VISIBLE_STANDARD_ERRORS * math.sqrt(2) * noise.std
    if not MIN_STEP_TO_VISIBLE * visible <= usual_step < visible:
        return None
    if visible < MIN_VISIBLE_SHARE * float(recent[-1]):
        return None
    evidence = say(
        "The last {pairs} changes from one {metric} to the next have a median of {usual}; only more than "
        "{visible} stands out from the noise.",
        pairs=len(steps),
        metric=val_metric_name(analysis.log),
        usual=format_loss_difference(usual_step),
        visible=format_loss_difference(visible),
    )
    factor = (visible / usual_step) ** 2  # the error falls with the square root of the tokens
    if noise.eval_batches:
        advice = say(
            "eval_iters={old} -> {new} would distinguish them. Evaluating the same tokens every time does "
            "so at lower cost.",
            old=int(noise.eval_batches),
            new=math.ceil(noise.eval_batches * factor - 1e-6),
        )
    else:
        advice = say(
            "Evaluating {more} times as many tokens would distinguish them, or the same tokens every time.",
            more=format_integer(math.ceil(factor - 1e-6)),
        )
    return Finding(
        "eval-noise",
        "advice",
        say("Successive evaluations differ by less than their noise"),
        f"{evidence} {_noise_sentence(noise)}",
        say(
            "Every evaluation is a sample. A difference below {visible} between two of them may be chance "
            "instead of progress, and so may the choice of the best one.",
            visible=format_loss_difference(visible),
        ),
        advice,
    )


def _noise_sentence(noise: EvalNoise) -> str:
    error = format_loss_difference(noise.std)
    if noise.source == "batches" and noise.batch_std and noise.eval_batches:
        return say(
            "Single batches have a standard deviation of {batch}, so a mean of eval_iters={batches} of them "
            "has one of {error}.",
            batch=format_loss_difference(noise.batch_std),
            batches=int(noise.eval_batches),
            error=error,
        )
    if noise.source == "tokens" and noise.eval_tokens:
        return say(
            "The mean over {tokens} evaluated tokens has a standard error of about {error}.",
            tokens=format_count(noise.eval_tokens),
            error=error,
        )
    if noise.source == "stderr":
        return say("The log gives a standard error of {error}.", error=error)
    return say("The evaluations scatter by {error} around the trend.", error=error)
