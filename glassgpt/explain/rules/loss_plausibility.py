"""Losses that are not plausible: far from chance at the start, below what text allows, or a perplexity."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.metric_series import MetricSeries
from glassgpt.runs.noise import CLEAR_STANDARD_ERRORS
from glassgpt.runs.past_best import logged_train_loss
from glassgpt.runs.run_log import Floats, Ints, RunLog
from glassgpt.runs.trajectory import numeric_setting, starts_from_scratch, untrained_loss, val_metric_name

MAX_INIT_LOSS_DEVIATION = 0.15  # first loss over ln(vocab_size): a fresh model starts within this of 1
GPT2_VOCAB_SIZE = 50_257  # for ppl-vs-loss, where the log does not say the vocabulary
MAX_VOCAB_SIZE = 1_000_000  # no tokenizer in use has more
# First loss over ln(MAX_VOCAB_SIZE): a deliberately large initialisation stays below this.
MIN_EXCESS_OVER_CHANCE = 1.5
MIN_LOGGED_STEPS = 20
MIN_AVERAGED, MIN_AVERAGED_LINES = 10, 5  # lines that are means of so many iterations: fewer suffice
MIN_FIRST_LOSS = 1.0  # the first training loss of a run that learnt it
MIN_FALL_RATIO = 5.0  # first over last loss, of data that are known to be repeated
# The loss where an epoch begins: of the nearer half of the lines in this part of an epoch before and after.
MIN_STEP_EPOCHS, EPOCH_PART, MIN_EPOCH_PART_LINES, MIN_LINES_PER_EPOCH = 1.5, 0.4, 3, 8
MIN_EPOCH_DROP_SHARE = 0.04  # of the loss before
MIN_DROP_TO_FALL = 2.0  # the drop between two epochs over the fall within one, and over the slope around it
MANY_EPOCHS, MIN_LOSS_MANY_EPOCHS = 10.0, 0.1  # after so many of the same data, a lower loss is of memory
MAX_NEW_DATA_EPOCHS = 3.0  # from there on a model can recite what it was trained on
MAX_FIRST_EPOCH_TO_END = 2.0  # the loss of the first epoch over that of the end: more fell with repetition

# The lowest loss that is believed, in nats per token, of a model that was not trained before. The best of the
# largest models stay above 1.6 on web text; stories for children reach 0.8 and games of chess 0.3.
MIN_LOSS_ANY_TEXT = 0.1
MIN_LOSS_WEB_TEXT, MIN_LOSS_SHAKESPEARE = 1.3, 1.2
MIN_LOSS_UNNAMED_SUBWORDS = 1.0  # a vocabulary as of web text, and the log does not name the dataset
MIN_BITS_WEB_TEXT = 0.5  # per byte
MIN_LOSS_ANYTHING = 1e-4  # whatever it was tuned to
MIN_LOSS_TUNED = 0.05  # of training text, whatever it was tuned to, without an evaluation
MIN_LOSS_OF_ANYTHING, MIN_FALL_TO_NOTHING = 1e-3, 1e3  # whatever is learned: the loss, and its fall
MIN_TRAIN_LOSS_SUBWORDS = 0.5  # of training text, which may be seen twice
MIN_TRAIN_LOSS_WORDS = 0.3
MIN_WORD_VOCAB, MIN_SUBWORD_VOCAB = 1000, 20_000
# No model learns anything so well in so few iterations.
MAX_COLLAPSED_LOSS, MIN_LOSS_BEFORE_COLLAPSE, MAX_COLLAPSE_ITERATIONS = 0.01, 3.0, 20
MIN_FLOOR_LINES = 3  # with the very same loss, after a fall to next to nothing
MIN_CONSTANT_LOSSES = 10  # all the same, to all printed digits
_WEB_TEXT = re.compile(r"webtext|\bowt|fineweb|slimpajama|redpajama|\bc4\b|\bpile\b|wikitext|climbmix", re.I)
_SHAKESPEARE = re.compile(r"shakespeare.?char", re.I)
# For ppl-vs-loss: a validation loss above these, in terms of ln(vocab_size), is none.
MAX_LOSS_OVER_CHANCE, MAX_LOSS_OVER_GPT2_CHANCE = 1.5, 1.2
# ln(val loss) over train loss: the logarithm may be a loss where this is between the number and its inverse.
MIN_LOG_PPL_TO_TRAIN_LOSS = 0.6


def init_loss(analysis: Analysis) -> Finding | None:
    """The first loss differs from ln(vocab_size), the loss of uniform guessing, by more than 15 %."""
    run_log = analysis.log
    vocab_size = numeric_setting(run_log, "vocab_size")
    initial = _first_loss(run_log)
    if initial is None or run_log.trainer.loss_base != math.e:
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
                lines=(*analysis.lines_at([at]), *analysis.eval_lines_at([at])),
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
        lines=(*analysis.lines_at([at]), *analysis.eval_lines_at([at])),
    )


def _first_loss(run_log: RunLog) -> tuple[int, float] | None:
    """Before any update. An evaluation of epoch 0 comes after it, where nothing but epochs is counted."""
    return None if run_log.trainer.iterations_are_epochs else untrained_loss(run_log)


def _vocabulary(analysis: Analysis) -> float | None:
    """As the log says, or as the loss before the first update says: that of a uniform guess."""
    initial, base = _first_loss(analysis.log), analysis.log.trainer.loss_base
    stated = numeric_setting(analysis.log, "vocab_size")
    return stated or (base ** min(initial[1], 20.0) if initial and base else None)


def memorised_data(analysis: Analysis) -> Finding | None:
    """The training loss fell below what text allows, and nothing was evaluated: it is memorised, or shown; or
    it fell far, over many epochs: then it may be."""
    at, losses = analysis.trajectory.finite_losses()
    run_log, epochs = analysis.log, analysis.epochs
    is_averaged = run_log.trainer.loss_is_interval_mean and (run_log.log_interval() or 0) >= MIN_AVERAGED
    if run_log.evals or run_log.evaluates_metrics or not run_log.loss_measures_learning:
        return None
    perplexity = _training_perplexity(run_log)
    if perplexity is not None:
        at, losses = perplexity.iteration, np.log(perplexity.value)
    if len(losses) < (MIN_AVERAGED_LINES if is_averaged else MIN_LOGGED_STEPS):
        return None
    limit = _lowest_train_loss(analysis, float(losses[0]))
    is_any = limit is None  # it may be of anything
    if is_any and MIN_FIRST_LOSS < losses[0] < math.log(MAX_VOCAB_SIZE):
        limit = min(MIN_LOSS_OF_ANYTHING, float(losses[0]) / MIN_FALL_TO_NOTHING)
    end, end_lines = _late_median(losses, 1 if is_averaged else 5)
    is_repeated = epochs is not None and epochs > MAX_NEW_DATA_EPOCHS
    is_many = epochs is not None and epochs >= MANY_EPOCHS
    if limit is not None and is_many and not is_any:
        limit = max(limit, MIN_LOSS_MANY_EPOCHS)
    if end < 0 or (end == 0 and perplexity is None) or collapsed_loss(analysis) or loss_at_floor(analysis):
        return None
    is_low = limit is not None and end < limit
    if not (is_low or (is_many and not is_any)) or not losses[0] > (
        MIN_FALL_RATIO * end if is_repeated else MIN_FIRST_LOSS
    ):
        return None
    is_new = epochs is not None and epochs <= 1
    if limit is not None and epochs is not None and epochs > 1:  # it was as low in its first epoch already
        first_epoch = losses[at * epochs <= at[-1]][-MIN_AVERAGED_LINES:]
        is_new = len(first_epoch) == MIN_AVERAGED_LINES and (
            float(np.median(first_epoch)) < min(limit, MAX_FIRST_EPOCH_TO_END * end)
        )
    title, explanation = say("memorised-data.title"), say("memorised-data.explanation")
    if not is_low:
        title = say("memorised-data.title.unevaluated", epochs=epochs)
        explanation = say("memorised-data.explanation.unevaluated")
    elif is_repeated:
        title = say("memorised-data.title.repeated", end_loss=end, epochs=epochs)
        explanation = say("memorised-data.explanation.repeated")
    elif perplexity is not None:
        title = say("memorised-data.title.perplexity", perplexity=math.exp(end))
        explanation = say("memorised-data.explanation.any")
    elif is_any:
        title = say("memorised-data.title.nothing", end_loss=end)
        explanation = say("memorised-data.explanation.any")
    if is_low and is_new and perplexity is None:
        explanation = say("memorised-data.explanation.new")
    is_of_lines = is_averaged and len(losses) < MIN_LOGGED_STEPS  # these say how much later the last is
    # A line that is a mean holds the iterations before it.
    of_first = (run_log.log_interval() or 1) if run_log.trainer.loss_is_interval_mean else 1
    ends = {
        "first_loss": float(losses[0]),
        "end_loss": end,
        "lines": end_lines,
        "iterations": int(at[-1]) - int(at[0]) + (0 if is_of_lines else min(of_first, int(at[0]) or 1)),
    }
    evidence = say("memorised-data.evidence.lines", **ends) if is_of_lines else None
    if perplexity is not None:
        evidence = say("memorised-data.evidence.perplexity", name=perplexity.name, **ends)
    is_implausible = not is_any and end < MIN_LOSS_TUNED and losses[0] > MIN_LOSS_BEFORE_COLLAPSE
    numbered = run_log.has_iteration_numbers
    return make_finding(
        "memorised-data",
        "info" if is_any else "warning" if is_implausible and not is_repeated else "advice",
        title=title,
        evidence=evidence or say("memorised-data.evidence", **ends),
        explanation=explanation,
        advice=say("memorised-data.advice.new")
        if is_new or is_any or (is_implausible and not is_repeated)
        else say("memorised-data.advice"),
        at=int(at[-1]) if numbered else None,
        lines=analysis.lines_at([int(at[0]), int(at[-1])]),
    )


def _training_perplexity(run_log: RunLog) -> MetricSeries | None:
    """Where one is logged beside the loss, which then has another term: it alone is of the tokens."""
    for one in run_log.own_metrics:
        is_training = one.metric.kind == "perplexity" and not one.metric.is_eval
        if is_training and len(one.value) >= MIN_LOGGED_STEPS and bool((one.value >= 1).all()):
            return one
    return None


def epoch_steps(analysis: Analysis) -> Finding | None:
    """From the second epoch on the training loss drops where an epoch begins, and hardly falls within one:
    the model remembers the examples."""
    run_log, epochs = analysis.log, analysis.epochs
    at, losses = analysis.trajectory.finite_losses()
    interval = run_log.log_interval()
    if not epochs or not interval or not len(at) or run_log.trainer.iterations_are_epochs:
        return None
    per_epoch = int(at[-1]) / epochs
    if epochs < MIN_STEP_EPOCHS or per_epoch < MIN_LINES_PER_EPOCH * interval or analysis.loss_rise:
        return None
    covered = interval if run_log.trainer.loss_is_interval_mean else 0  # by a line, before its iteration
    drops: dict[int, float] = {}
    falls, boundaries = [], 0
    for epoch in range(1, math.floor(epochs - EPOCH_PART) + 1):
        begin, part = epoch * per_epoch, EPOCH_PART * per_epoch
        end = begin + per_epoch
        before = slice(*np.searchsorted(at, (begin - part, begin), side="right"))
        after = slice(*np.searchsorted(at, (begin + covered, begin + part + covered)))
        late = losses[slice(*np.searchsorted(at, (end - part, end), side="right"))]
        lines = min(len(at[before]), len(at[after]))
        if lines < MIN_EPOCH_PART_LINES:
            return None
        near = max(MIN_EPOCH_PART_LINES, lines // 2)
        high, low = losses[before][-near:], losses[after][:near]
        drop = float(high.mean() - low.mean())
        error = math.sqrt(float(high.var() + low.var()) / near)
        if drop < -error:
            return None
        boundaries += 1
        if len(late) >= MIN_EPOCH_PART_LINES:
            falls.append(float(losses[after].mean() - late.mean()))
        distance = float(at[after][:near].mean() - at[before][-near:].mean())
        slope_fall = -distance * _common_slope([(at[side], losses[side]) for side in (before, after)])
        if drop < max(
            CLEAR_STANDARD_ERRORS * error,
            MIN_EPOCH_DROP_SHARE * float(high.mean()),
            MIN_DROP_TO_FALL * slope_fall,
        ):
            continue  # as where the learning rate has run out, or on a steep curve
        drops[epoch] = drop
    fall = float(np.mean(falls)) if falls else 0.0
    if not drops or 2 * len(drops) < boundaries or np.mean(list(drops.values())) < MIN_DROP_TO_FALL * fall:
        return None
    was_evaluated = bool(run_log.evals) or run_log.evaluates_metrics
    return make_finding(
        "epoch-steps",
        "info" if was_evaluated else "advice",
        title=say("epoch-steps.title"),
        evidence=[
            say("epoch-steps.evidence.once", drop=max(drops.values()), epoch=min(drops) + 1, count=1)
            if len(drops) == 1
            else say(
                "epoch-steps.evidence",
                least=min(drops.values()),
                most=max(drops.values()),
                count=len(drops),
                boundaries=boundaries,
            ),
            say("epoch-steps.evidence.falls", fall=fall)
            if fall >= 0
            else say("epoch-steps.evidence.rises", rise=-fall),
        ],
        explanation=say("epoch-steps.explanation"),
        advice=None if was_evaluated else say("epoch-steps.advice"),
        lines=analysis.lines_at(int(at[np.searchsorted(at, epoch * per_epoch)]) for epoch in drops),
    )


def _common_slope(stretches: Sequence[tuple[Ints, Floats]]) -> float:
    """Of the losses within these stretches, whatever lies between them."""
    centered = [(at - at.mean(), losses - losses.mean()) for at, losses in stretches]
    return float(sum(x @ y for x, y in centered) / sum(x @ x for x, _ in centered))


def _lowest_train_loss(analysis: Analysis, first_loss: float) -> float | None:
    """The lowest training loss that is believed without an evaluation; None where it may be of anything."""
    run_log, vocabulary, base = analysis.log, _vocabulary(analysis), analysis.log.trainer.loss_base
    if vocabulary is None and base and first_loss > math.log(MIN_WORD_VOCAB, base):
        vocabulary = base ** min(first_loss, 20.0)  # the first loss that is logged: there may be more
    if starts_from_scratch(run_log):
        if vocabulary and MIN_SUBWORD_VOCAB <= vocabulary <= MAX_VOCAB_SIZE:
            return MIN_TRAIN_LOSS_SUBWORDS
        if vocabulary and MIN_WORD_VOCAB <= vocabulary <= MIN_SUBWORD_VOCAB:
            return MIN_TRAIN_LOSS_WORDS
        if run_log.trainer.trains_on_plain_text:
            return MIN_LOSS_ANY_TEXT
    return MIN_LOSS_TUNED if is_language_loss(run_log, first_loss) else None


def is_language_loss(run_log: RunLog, first_loss: float) -> bool:
    """Whether the loss is one of a language model. That of a loop that is not known may be of anything; it is
    taken for one where it begins at the loss of a guess among the tokens of a usual tokenizer."""
    if not run_log.trainer.reads_any_log or numeric_setting(run_log, "vocab_size"):
        return True
    return math.log(MIN_SUBWORD_VOCAB) <= first_loss <= math.log(MAX_VOCAB_SIZE)


def collapsed_loss(analysis: Analysis) -> Finding | None:
    """The training loss fell from that of a guess to nothing within a few iterations."""
    at, losses = analysis.trajectory.finite_losses()
    if len(losses) < 2 or not analysis.log.has_iteration_numbers or losses[-1] > MAX_COLLAPSED_LOSS:
        return None
    if not is_language_loss(analysis.log, float(losses[0])):
        return None
    high = np.flatnonzero(losses > MIN_LOSS_BEFORE_COLLAPSE)
    if not len(high) or high[-1] + 1 >= len(losses):
        return None
    before, after = int(high[-1]), int(high[-1]) + int(np.argmax(losses[high[-1] :] <= MAX_COLLAPSED_LOSS))
    iterations = int(at[after] - at[before])
    if not 0 <= losses[after] <= MAX_COLLAPSED_LOSS or iterations > MAX_COLLAPSE_ITERATIONS:
        return None
    if np.any(losses[after:] > MAX_COLLAPSED_LOSS):
        return None
    return make_finding(
        "memorised-data",
        "problem",
        title=say("memorised-data.title.collapsed"),
        evidence=say(
            "memorised-data.evidence.collapsed",
            loss_before=float(losses[before]),
            before_iteration=int(at[before]),
            loss_after=float(losses[after]),
            after_iteration=int(at[after]),
        ),
        explanation=say("memorised-data.explanation.collapsed"),
        advice=say("memorised-data.advice.collapsed"),
        at=int(at[after]),
        lines=analysis.lines_at([int(at[before]), int(at[after])]),
    )


def loss_at_floor(analysis: Analysis) -> Finding | None:
    """The training loss is next to nothing, and the same to the last digit on the last lines: what a model
    learns by heart falls on, or varies."""
    at, losses = analysis.trajectory.finite_losses()
    different = np.flatnonzero(losses != losses[-1:])
    lines = len(losses) - 1 - int(different[-1]) if len(different) else 0
    is_low = lines >= MIN_FLOOR_LINES and 0 < losses[-1] < MIN_LOSS_OF_ANYTHING
    if not is_low or losses[-lines - 1] < MIN_FALL_TO_NOTHING * losses[-1]:
        return None
    if round(float(losses[-1]), 4) == losses[-1]:  # so few digits hide a change
        return None
    if not analysis.log.has_iteration_numbers or not analysis.log.loss_measures_learning:
        return None
    if collapsed_loss(analysis):
        return None
    return make_finding(
        "memorised-data",
        "problem",
        title=say("memorised-data.title.collapsed"),
        evidence=[
            say(
                "memorised-data.evidence.collapsed",
                loss_before=float(losses[-lines - 1]),
                before_iteration=int(at[-lines - 1]),
                loss_after=float(losses[-1]),
                after_iteration=int(at[-lines]),
            ),
            say("divergence.evidence.constant_end", lines=lines, loss=float(losses[-1])),
        ],
        explanation=say("memorised-data.explanation.floor"),
        advice=say("memorised-data.advice.floor", before_iteration=int(at[-lines - 1])),
        at=int(at[-lines]),
        lines=analysis.lines_at([int(at[-lines - 1]), int(at[-lines])]),
    )


def constant_loss(analysis: Analysis) -> Finding | None:
    """The training loss is the same to all printed digits: on every line, or from epoch to epoch."""
    at, losses = analysis.trajectory.finite_losses()
    if len(losses) < MIN_CONSTANT_LOSSES or losses[0] <= 0:
        return None
    if np.ptp(losses) != 0:
        return _repeated_losses(analysis)
    loss, base = float(losses[0]), analysis.log.trainer.loss_base
    if round(loss, 2) == loss or float(f"{loss:.3g}") == loss:  # so few digits hide a change
        return None
    return make_finding(
        "plateau",
        "problem",
        title=say("plateau.title.constant"),
        evidence=[
            say("plateau.evidence.constant", loss=loss, logged_losses=len(losses)),
            say("plateau.evidence.constant_choices", choices=round(base**loss))
            if base and MIN_FIRST_LOSS < loss < math.log(MAX_VOCAB_SIZE, base)
            else None,
            norms := _dead_norms(analysis),
        ],
        explanation=say("plateau.explanation.constant"),
        advice=say("plateau.advice.dead_norms") if norms else say("plateau.advice.constant"),
        at=int(at[0]) if analysis.log.has_iteration_numbers else None,
        lines=analysis.lines_at([int(at[0]), int(at[-1])]),
        claims={"learning at the end": "plateau"},
    )


def _dead_norms(analysis: Analysis) -> Message | None:
    """How many of the logged gradient norms are not finite, or exactly 0."""
    norms = analysis.log.steps.grad_norm[~np.isnan(analysis.log.steps.grad_norm)]
    zero, nonfinite = int(np.sum(norms == 0)), int(np.sum(np.isinf(norms)))
    if not zero and not nonfinite:
        return None
    return say("plateau.evidence.dead_norms", norms=len(norms), zero=zero, nonfinite=nonfinite)


def _repeated_losses(analysis: Analysis) -> Finding | None:
    """The losses of one epoch come again in the next, to all printed digits."""
    at, losses = analysis.trajectory.finite_losses()
    head = losses[: len(losses) // 2]
    returns = np.flatnonzero(losses[2 : len(losses) // 2 + 1] == losses[0]) + 2
    period = next((int(one) for one in returns if np.array_equal(losses[one:], losses[:-one])), None)
    is_coarse = bool(np.all(np.round(losses, 2) == losses))
    if period is None or is_coarse or np.ptp(head) == 0 or len(losses) - period < MIN_CONSTANT_LOSSES:
        return None
    return make_finding(
        "plateau",
        "problem",
        title=say("plateau.title.repeated"),
        evidence=[
            say("plateau.evidence.repeated", period=period, logged_losses=len(losses)),
            _dead_norms(analysis),
        ],
        explanation=say("plateau.explanation.repeated"),
        advice=say("plateau.advice.repeated"),
        lines=analysis.lines_at([int(at[0]), int(at[period])]),
        claims={"learning at the end": "plateau"},
    )


def _late_median(losses: Floats, least: int = 5) -> tuple[float, int]:
    """The median of the last tenth, of so many losses at least; and of how many."""
    lines = min(len(losses), max(least, len(losses) // 10))
    return float(np.median(losses[-lines:])), lines


def lowest_plausible_loss(analysis: Analysis) -> tuple[float, bool]:
    """The lowest validation loss that is believed, in the metric of the log; and whether that is certain, or
    holds for web text only, and the log does not say what the text is."""
    run_log = analysis.log
    dataset = str(run_log.setup.settings.get("dataset") or run_log.setup.data.get("name") or "")
    if not starts_from_scratch(run_log) or not run_log.trainer.trains_on_plain_text:
        return MIN_LOSS_ANYTHING, True
    if run_log.val_metric == "bits_per_byte":
        return (MIN_BITS_WEB_TEXT if _WEB_TEXT.search(dataset) else MIN_LOSS_ANY_TEXT), True
    vocabulary = _vocabulary(analysis)
    if vocabulary and MIN_SUBWORD_VOCAB <= vocabulary <= MAX_VOCAB_SIZE:
        if not dataset:
            return MIN_LOSS_UNNAMED_SUBWORDS, False
        return (MIN_LOSS_WEB_TEXT if _WEB_TEXT.search(dataset) else MIN_LOSS_ANY_TEXT), True
    return (MIN_LOSS_SHAKESPEARE if _SHAKESPEARE.search(dataset) else MIN_LOSS_ANY_TEXT), True


def has_leaked_data(analysis: Analysis) -> bool:
    """The last validation loss is below what the text allows, and the log says what text it is."""
    return _is_implausible(analysis) and lowest_plausible_loss(analysis)[1]


def _is_implausible(analysis: Analysis) -> bool:
    trained = [one for one in analysis.trajectory.evals if one.iteration and one.val_loss is not None]
    losses = analysis.trajectory.finite_losses()[1]
    if not is_language_loss(analysis.log, float(losses[0]) if len(losses) else 0.0):
        return False
    return bool(trained) and 0 <= (trained[-1].val_loss or 0.0) < lowest_plausible_loss(analysis)[0]


def leaked_data(analysis: Analysis) -> Finding | None:
    """The validation loss is below what such text allows: memorising does not explain that."""
    if not _is_implausible(analysis):
        return None
    last, (limit, is_certain) = analysis.trajectory.evals[-1], lowest_plausible_loss(analysis)
    if not is_certain and analysis.has_overfitted:
        return None  # what is read from the inputs is not overfitted
    _, losses = analysis.trajectory.finite_losses()
    if limit == MIN_LOSS_ANYTHING:
        explanation = say("leaked-data.explanation.tuned")
    elif is_certain:
        explanation = say("leaked-data.explanation.text")
    else:
        explanation = say("leaked-data.explanation.unnamed", limit=limit)
    values = {"metric": val_metric_name(analysis.log), "val_loss": last.val_loss}
    late = _late_median(losses) if len(losses) else None
    numbered = analysis.log.has_iteration_numbers
    return make_finding(
        "leaked-data",
        "info" if not is_certain else "problem" if limit > MIN_LOSS_ANYTHING else "warning",
        title=say("leaked-data.title") if is_certain else say("leaked-data.title.unnamed"),
        evidence=[
            say("leaked-data.evidence.val_loss_at", eval_iteration=last.iteration, **values)
            if numbered
            else say("leaked-data.evidence.val_loss", **values),
            say("leaked-data.evidence.train_loss", train_loss=late[0], lines=late[1]) if late else None,
        ],
        explanation=explanation,
        advice=say("leaked-data.advice"),
        at=last.iteration if numbered else None,
        lines=(last.line,),
        claims={"validation loss": "implausible"} if is_certain else {},
    )


def ppl_vs_loss(analysis: Analysis) -> Finding | None:
    """The logged validation "loss" is a perplexity: above chance, while its logarithm fits the train loss."""
    run_log, trajectory = analysis.log, analysis.trajectory
    if run_log.val_metric != "loss" or not run_log.has_iteration_numbers:
        return None
    if run_log.trainer.loss_base != math.e:
        return None  # a loss of another kind
    vocab_size = numeric_setting(run_log, "vocab_size")
    if vocab_size and vocab_size > 1:
        limit = MAX_LOSS_OVER_CHANCE * math.log(vocab_size)
    else:
        limit = MAX_LOSS_OVER_GPT2_CHANCE * math.log(GPT2_VOCAB_SIZE)
    trained = [evaluation for evaluation in trajectory.evals if evaluation.iteration]
    val_losses = [evaluation.val_loss for evaluation in trained if evaluation.val_loss is not None]
    if not val_losses or min(val_losses) <= limit:  # it was a plausible loss once: that run diverged
        return None
    if any(one.metric.kind == "perplexity" and one.metric.is_eval for one in run_log.own_metrics):
        return None  # that is another value: this one may be a sum
    last = trained[-1]
    train_loss, (_, losses) = last.train_loss, trajectory.finite_losses()
    if train_loss is None and len(losses):
        train_loss = float(np.median(losses[-20:]))
    if train_loss is None or not 0 < train_loss < limit / 1.2 or last.val_loss is None:
        return None
    log_val_loss = math.log(last.val_loss)
    if log_val_loss < MIN_LOG_PPL_TO_TRAIN_LOSS * train_loss:
        return None
    # A run may overfit later, but its logarithm was near the training loss at some evaluation.
    pairs = [
        (
            math.log(one.val_loss),
            one.train_loss or logged_train_loss(run_log, trajectory, one.iteration or 0)[0],
        )
        for one in trained
        if one.val_loss is not None
    ]
    ratios = [loss / train for loss, train in pairs if train] or [log_val_loss / train_loss]
    if min(ratios) >= 1 / MIN_LOG_PPL_TO_TRAIN_LOSS:
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
        lines=(last.line,),
    )
