"""A loss that stands still: nothing was learnt, nothing more is learnt, or the model is too small."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rules.learning import last_lr_share
from glassgpt.explain.rules.loss_plausibility import (
    MAX_VOCAB_SIZE,
    MIN_WORD_VOCAB,
    constant_loss,
    has_leaked_data,
)
from glassgpt.explain.rules.nonfinite import trailing_zero_losses
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import BlockMedians, block_medians, detrended_std
from glassgpt.runs.noise import CLEAR_STANDARD_ERRORS
from glassgpt.runs.run_log import Ints
from glassgpt.runs.trajectory import (
    numeric_setting,
    planned_end_iteration,
    shows_run_start,
    starts_from_scratch,
    val_metric_name,
)

# Plateau: gain of the last third over the one before, as a share of the loss. A tenth of what is usual.
MIN_PLATEAU_STEPS = 50
MAX_TRAIN_GAIN_SHARE, MAX_EVAL_GAIN_SHARE = 0.002, 0.003
MIN_STEADY_FALL_TO_NOISE = 20.0  # a fall of so many times the noise of one line is none
MAX_LEVEL_RANGE = 0.1  # of the medians of blocks, without the outermost tenths: more is no plateau
MIN_FLAT_SHARE = 0.5  # of the run: a level so long is told with its beginning
MAX_PLATEAU_ERROR_SHARE = 0.015  # two standard errors of a third: more hides the usual gain of 0.02
# Nothing learnt: last against first loss, and the range of the whole curve, as shares of the first loss.
MAX_END_CHANGE_SHARE, MAX_RANGE_SHARE = 0.01, 0.02
# Hardly learnt: the loss over ln(vocab_size). Token frequencies alone bring a model below 0.9 in one or two
# hundred iterations.
MIN_SHARE_OF_CHANCE_LOSS, MIN_HARDLY_LEARNT_ITERATIONS = 0.9, 300
# Where nobody says that it is a language model, nor whether iterations are micro-batches.
MIN_HARDLY_LEARNT_LINES, MIN_HARDLY_LEARNT_UNKNOWN = 10, 5000

# Capacity: tokens per parameter where compute is best spent (Hoffmann et al. 2022).
CHINCHILLA_TOKENS_PER_PARAMETER = 20.0
MIN_OVERTRAINING_FACTOR = 5.0  # times that
MIN_EVALUATIONS = 6
MAX_TRAIN_VAL_GAP = 0.03  # |val - train| over train loss: the model does not overfit
MAX_LATE_IMPROVEMENT = 0.01  # change of the val loss over the last third, as a share of it
MIN_END_LOSSES = 3


# --- plateau ---


def plateau(analysis: Analysis) -> Finding | None:
    """Nothing was learnt at all, or nothing more in the last third of the run."""
    run_log = analysis.log
    at, losses = analysis.trajectory.finite_losses()
    min_iterations = max(
        numeric_setting(run_log, "warmup_iters") or 0, 1000 if run_log.trainer.steps_are_micro_batches else 50
    )
    if len(losses) < MIN_PLATEAU_STEPS or at[-1] < min_iterations:
        return None
    if analysis.loss_rise or analysis.loss_jump or analysis.explosions or analysis.facts.nan_step is not None:
        return None
    if has_leaked_data(analysis) or trailing_zero_losses(analysis) or analysis.has_overfitted:
        return None
    if constant_loss(analysis):
        return None
    smooth = block_medians(at, losses, 30)
    from_start = run_log.has_iteration_numbers and int(at[0]) <= run_log.trainer.first_iteration + 1
    if (
        from_start
        and starts_from_scratch(run_log)
        and (nothing := _nothing_learnt(analysis, smooth, min_iterations))
    ):
        return nothing
    if zeros := _nothing_left(analysis):
        return zeros
    evidence = _plateau_evidence(analysis, smooth)
    if not evidence or underfit_capacity(analysis):
        return None
    last = int(at[-1])
    stop = last * 2 // 3
    warmup, planned = numeric_setting(run_log, "warmup_iters") or 0, planned_end_iteration(run_log)
    if stop < 2 * warmup:
        return None
    if analysis.facts.ended != "finished" and planned and planned > 1.1 * last:
        # The schedule goes on: the loss usually falls once the learning rate does.
        return make_finding(
            "plateau",
            "info",
            title=say("plateau.title.flat_so_far"),
            evidence=[
                *evidence,
                say("plateau.evidence.of_planned", last_iteration=last, planned_iterations=planned),
            ],
            explanation=say("plateau.explanation.high_lr"),
            at=stop if run_log.has_iteration_numbers else None,
            claims={"learning at the end": "plateau"},
        )
    saved = analysis.seconds_and_share_after(stop, last)
    saving = saved[1] if saved else 1 / 3
    was_evaluated = len(evidence) > 1  # a training loss alone does not tell when to stop
    advice = (
        say("plateau.advice.stop_at_iteration", stop_iteration=stop, saving=saving)
        if run_log.has_iteration_numbers
        else say("plateau.advice.stop_there", saving=saving)
    )
    return make_finding(
        "plateau",
        "advice" if was_evaluated else "info",
        title=say("plateau.title.no_late_improvement")
        if shows_run_start(run_log) and not run_log.live
        else say("plateau.title.no_late_improvement_here"),
        evidence=evidence + (_flat_since(at, smooth) if run_log.has_iteration_numbers else []),
        explanation=[
            say("plateau.explanation.within_noise")
            if was_evaluated
            else say("plateau.explanation.train_within_noise"),
            say("plateau.explanation.decay") if last_lr_share(analysis) is not None else None,
        ],
        advice=advice if was_evaluated else None,
        at=stop if run_log.has_iteration_numbers else None,
        lines=analysis.lines_at([last]),
        claims={"learning at the end": "plateau"},
    )


def _nothing_left(analysis: Analysis) -> Finding | None:
    """Most losses of the last third are exactly 0: none is lower."""
    at, losses = analysis.trajectory.finite_losses()
    late = losses[at > at[0] + (at[-1] - at[0]) * 2 / 3]
    if 2 * np.count_nonzero(late == 0) <= len(late):
        return None
    first = int(at[np.argmax(losses == 0)])
    counts = {"zero_losses": int(np.count_nonzero(losses == 0)), "logged_losses": len(losses)}
    numbered = analysis.log.has_iteration_numbers
    return make_finding(
        "plateau",
        "advice",
        title=say("loss-nan.title.zeros_between", **counts),
        evidence=say("plateau.evidence.first_zero", zero_iteration=first) if numbered else None,
        explanation=say("plateau.explanation.nothing_left"),
        advice=say("plateau.advice.nothing_left"),
        at=first if numbered else None,
        lines=analysis.lines_at([first]),
        claims={"learning at the end": "plateau"},
    )


def hardly_learnt(analysis: Analysis) -> Finding | None:
    """The training loss begins at that of a guess among the tokens of a usual tokenizer, and is hardly below
    it after many iterations; of lines too few for a plateau, or where the vocabulary is not known."""
    run_log, (at, losses) = analysis.log, analysis.trajectory.finite_losses()
    if len(losses) < MIN_HARDLY_LEARNT_LINES or at[-1] < MIN_HARDLY_LEARNT_UNKNOWN or plateau(analysis):
        return None
    if analysis.loss_rise or analysis.loss_jump or analysis.explosions or constant_loss(analysis):
        return None
    first, end = float(losses[0]), float(np.median(losses[-MIN_END_LOSSES:]))
    is_guess = math.log(MIN_WORD_VOCAB) <= first <= math.log(MAX_VOCAB_SIZE)
    is_from_start = run_log.has_iteration_numbers and at[0] <= max(1, run_log.log_interval() or 1)
    if not is_guess or not is_from_start or not starts_from_scratch(run_log):
        return None
    if not MIN_SHARE_OF_CHANCE_LOSS * first < end <= first or not run_log.loss_measures_learning:
        return None
    return make_finding(
        "plateau",
        "warning",
        title=say("plateau.title.hardly_learnt"),
        evidence=say(
            "plateau.evidence.first_and_last",
            first_loss=first,
            first_iteration=at[0],
            end_loss=losses[-1],
            end_iteration=at[-1],
        ),
        explanation=say("plateau.explanation.worse_than_unigram"),
        advice=say("plateau.advice.raise_lr", tenth_of_loss=0.1 * first),
        lines=analysis.lines_at([int(at[-1])]),
    )


def _nothing_learnt(analysis: Analysis, smooth: BlockMedians, min_iterations: float) -> Finding | None:
    """The loss at the end is the loss at the start, or hardly below that of uniform guessing."""
    at, losses = analysis.trajectory.finite_losses()
    vocab_size = numeric_setting(analysis.log, "vocab_size")
    chance = math.log(vocab_size) if vocab_size and vocab_size > 1 else None
    first, end = losses[0], float(smooth.medians[-1])
    evidence = [
        say(
            "plateau.evidence.first_and_last",
            first_loss=first,
            first_iteration=at[0],
            end_loss=losses[-1],
            end_iteration=at[-1],
        )
    ]
    chance_evidence = []
    if chance is not None and vocab_size:
        chance_evidence = [
            say("plateau.evidence.uniform_guess", vocab_size=int(vocab_size), chance_loss=chance)
        ]
    tenth = 0.1 * float(first)
    is_unchanged = abs(end - float(first)) <= MAX_END_CHANGE_SHARE * first
    if is_unchanged and np.ptp(smooth.medians) <= MAX_RANGE_SHARE * first:
        if chance is not None and abs(losses[-1] - chance) < 0.02 * losses[-1]:
            evidence += chance_evidence
        return make_finding(
            "plateau",
            "problem",
            title=say("plateau.title.nothing_learnt"),
            evidence=evidence,
            explanation=say("plateau.explanation.weights_hardly_change"),
            advice=say("plateau.advice.print_lr", tenth_of_loss=tenth),
            claims={"learning at the end": "plateau"},
        )
    if chance is None or at[-1] < max(MIN_HARDLY_LEARNT_ITERATIONS, 2 * min_iterations):
        return None
    if (
        abs(first / chance - 1) > 1 - MIN_SHARE_OF_CHANCE_LOSS
        or not MIN_SHARE_OF_CHANCE_LOSS * chance < end <= first
    ):
        return None
    return make_finding(
        "plateau",
        "problem",
        title=say("plateau.title.hardly_learnt"),
        evidence=evidence + chance_evidence,
        explanation=say("plateau.explanation.worse_than_unigram"),
        advice=say("plateau.advice.raise_lr", tenth_of_loss=tenth),
    )


def _plateau_evidence(analysis: Analysis, smooth: BlockMedians) -> list[Message]:
    """Evidence that the last third improved nothing; empty if it did, or if there is too little data."""
    third = len(smooth) // 3
    at, losses = analysis.trajectory.finite_losses()
    second, last = (at[0] + (at[-1] - at[0]) * part / 3 for part in (1, 2))
    if third < 5 or not len(middle := losses[(at > second) & (at <= last)]):
        return []
    before, after = float(np.median(middle)), float(np.median(losses[at > last]))
    error = _block_error(smooth) / math.sqrt(third)
    if abs(before - after) > max(2 * error, MAX_TRAIN_GAIN_SHARE * after):
        return []
    if 2 * error > MAX_PLATEAU_ERROR_SHARE * after:
        return []  # too noisy to see whether it improved
    late_medians = smooth.medians[-2 * third :]
    if np.ptp(np.percentile(late_medians, (10, 90))) > MAX_LEVEL_RANGE * after:
        return []  # its level changes on the way
    late = losses[at > second]
    changes = np.abs(np.diff(late))
    noise = max(detrended_std(late) or 0.0, float(changes[changes > 0].min(initial=np.inf)))
    if before - after > MIN_STEADY_FALL_TO_NOISE * noise:
        return []  # slow, but steady
    thirds = {"earlier_train_loss": before, "late_train_loss": after}
    evidence = [
        say("plateau.evidence.train_thirds", **thirds)
        if shows_run_start(analysis.log) and not analysis.log.live
        else say("plateau.evidence.train_thirds_here", **thirds)
    ]
    evaluated, val_losses = analysis.trajectory.val_curve()
    is_late = evaluated > last
    if np.all(is_late) or not np.any(is_late):
        return evidence
    best_before, best_late = val_losses[~is_late].min(), val_losses[is_late].min()
    if float(best_before - best_late) > MAX_EVAL_GAIN_SHARE * float(best_before):
        return []
    evidence.append(
        say(
            "plateau.evidence.best_val",
            metric=val_metric_name(analysis.log),
            earlier_val_loss=best_before,
            late_val_loss=best_late,
        )
    )
    return evidence


def _block_error(smooth: BlockMedians) -> float:
    """The standard error of a late block: of its lines, or by the scatter of blocks, if lines are alike."""
    late = len(smooth) // 3
    medians = smooth.medians[-2 * late :]
    scatter = float(np.std(medians[1:-1] - (medians[:-2] + medians[2:]) / 2)) / math.sqrt(1.5)
    return max(float(np.median(smooth.stderrs[-late:])), scatter)


def _flat_since(at: Ints, smooth: BlockMedians) -> list[Message]:
    """From which iteration on no block is off the level of the last third, if that is most of the run."""
    level = float(np.median(smooth.medians[-(len(smooth) // 3) :]))
    off = np.flatnonzero(np.abs(smooth.medians - level) > CLEAR_STANDARD_ERRORS * _block_error(smooth))
    begin = int(off[-1]) + 1 if len(off) else 0
    first, last = int(at[0]), int(at[-1])
    # Between the middle of this block and of the one before.
    since = first if not begin else float(np.mean(smooth.centers[begin - 1 : begin + 1]))
    share = (last - since) / max(1, last - first)
    if share < MIN_FLAT_SHARE:
        return []
    return [say("plateau.evidence.flat_since", flat_iteration=round(since), share=share)]


# --- capacity ---


def underfit_capacity(analysis: Analysis) -> Finding | None:
    """A finished run from scratch, 100 tokens per parameter or more, both losses close and flat: its size may
    be the limit. Not an advice: a learning rate that ran out flattens the curve, too."""
    facts, last = analysis.facts, analysis.trajectory.last_iteration
    evals = [
        (one.iteration, one.train_loss, one.val_loss)
        for one in analysis.trajectory.evals
        if one.iteration is not None and one.val_loss and one.train_loss and math.isfinite(one.train_loss)
    ]
    if len(evals) < MIN_EVALUATIONS or not facts.parameters or not facts.tokens_per_iteration or not last:
        return None
    if facts.ended != "finished" or not starts_from_scratch(analysis.log) or analysis.explosions:
        return None  # a flat curve of weights that were trained before, or before the schedule's end
    (_, train_loss, val_loss), earlier = evals[-1], [val for at, _, val in evals if at <= last * 2 / 3]
    tokens = analysis.log.tokens_seen_at(np.array([last]), facts.tokens_per_iteration)
    if not earlier or tokens is None:
        return None
    gap, tokens_per_parameter = abs(val_loss - train_loss) / train_loss, float(tokens[0]) / facts.parameters
    is_flat = abs(earlier[-1] - val_loss) < MAX_LATE_IMPROVEMENT * val_loss
    is_overtrained = tokens_per_parameter >= MIN_OVERTRAINING_FACTOR * CHINCHILLA_TOKENS_PER_PARAMETER
    if gap >= MAX_TRAIN_VAL_GAP or not is_flat or not is_overtrained:
        return None
    return make_finding(
        "underfit-capacity",
        "info",
        title=say("underfit-capacity.title"),
        evidence=say(
            "underfit-capacity.evidence",
            train_loss=train_loss,
            metric=val_metric_name(analysis.log),
            val_loss=val_loss,
            train_val_gap=gap,
            earlier_val_loss=earlier[-1],
            parameters=facts.parameters,
            tokens=float(tokens[0]),
            tokens_per_parameter=tokens_per_parameter,
        ),
        explanation=say(
            "underfit-capacity.explanation", best_tokens_per_parameter=CHINCHILLA_TOKENS_PER_PARAMETER
        ),
        claims={"learning at the end": "plateau", "parameters": facts.parameters},
    )
