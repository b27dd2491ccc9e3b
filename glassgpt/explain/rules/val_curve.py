"""The curve of validation losses: where the run should have stopped, and whether its noise hides progress."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
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
    run_log, rise = analysis.log, past.end_loss - past.best_loss
    compared = {
        "metric": val_metric_name(run_log),
        "best_loss": past.best_loss,
        "end_loss": past.end_loss,
        "rise": rise,
    }
    claims: dict[str, object] = {"learning at the end": "overfitting"}
    if run_log.has_iteration_numbers:
        claims["best iteration"] = past.best_iteration
        title = say("overfitting.title.since_iteration", best_iteration=past.best_iteration)
        comparison = say(
            "overfitting.evidence.best_end_numbered",
            best_iteration=past.best_iteration,
            last_iteration=past.end_iteration,
            **compared,
        )
    else:
        title = say("overfitting.title.last_share", share_after_best=past.share_after_best)
        comparison = say("overfitting.evidence.best_end", **compared)
    evidence = [
        comparison,
        say("overfitting.evidence.training_loss", train_loss_at_best=fell[0], train_loss_at_end=fell[1]),
        say("overfitting.evidence.iterations_after_best", share_after_best=past.share_after_best),
    ]
    saving = past.share_after_best
    if wasted := analysis.seconds_and_share_after(past.best_iteration, past.end_iteration):
        seconds, saving = wasted
        evidence.append(
            say(
                "overfitting.evidence.time_after_best",
                time_after_best_s=seconds,
                time_share_after_best=saving,
            )
        )
    return make_finding(
        "overfitting",
        "warning" if rise > WARNING_RISE_SHARE * past.best_loss else "advice",
        title=title,
        evidence=evidence,
        explanation=say("overfitting.explanation"),
        advice=_overfitting_advice(analysis, past, saving),
        at=past.best_iteration if run_log.has_iteration_numbers else None,
        claims=claims,
    )


def _overfitting_advice(analysis: Analysis, past: PastBest, saving: float) -> list[Message]:
    best_iteration = past.best_iteration
    effect = {"saving": saving, "rise": past.end_loss - past.best_loss}
    advice = []
    if not analysis.log.has_iteration_numbers:
        advice.append(say("overfitting.advice.stop_at_best", **effect))
    elif takes_known_settings(analysis.log):
        advice.append(say("overfitting.advice.set_max_iters", best_iteration=best_iteration, **effect))
        if any(
            save.iteration is not None and save.iteration > best_iteration
            for save in analysis.trajectory.checkpoints
        ):
            advice.append(say("overfitting.advice.keep_best_weights"))
    else:
        advice.append(say("overfitting.advice.stop_at_iteration", best_iteration=best_iteration, **effect))
    advice.append(say("overfitting.advice.more_text", best_loss=past.best_loss))
    return advice


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
    factor = (visible / usual_step) ** 2  # the error falls with the square root of the tokens
    if noise.eval_batches:
        advice = say(
            "eval-noise.advice.raise_eval_iters",
            eval_iters=int(noise.eval_batches),
            enough_eval_iters=math.ceil(noise.eval_batches * factor - 1e-6),
        )
    else:
        advice = say("eval-noise.advice.more_tokens", token_factor=math.ceil(factor - 1e-6))
    return make_finding(
        "eval-noise",
        "advice",
        title=say("eval-noise.title"),
        evidence=[
            say(
                "eval-noise.evidence.median_change",
                changes=len(steps),
                metric=val_metric_name(analysis.log),
                median_change=usual_step,
                min_visible=visible,
            ),
            _noise_sentence(noise),
        ],
        explanation=say("eval-noise.explanation", min_visible=visible),
        advice=advice,
    )


def _noise_sentence(noise: EvalNoise) -> Message:
    if noise.source == "batches" and noise.batch_std and noise.eval_batches:
        return say(
            "eval-noise.evidence.noise_from_batches",
            batch_std=noise.batch_std,
            eval_iters=int(noise.eval_batches),
            eval_std=noise.std,
        )
    if noise.source == "tokens" and noise.eval_tokens:
        return say("eval-noise.evidence.noise_from_tokens", eval_tokens=noise.eval_tokens, eval_std=noise.std)
    if noise.source == "stderr":
        return say("eval-noise.evidence.noise_logged", eval_std=noise.std)
    return say("eval-noise.evidence.noise_from_scatter", eval_std=noise.std)
