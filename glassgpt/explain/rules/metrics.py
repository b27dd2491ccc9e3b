"""What metrics besides the loss show: a policy that drifts, collapses or does not move, a model that gets
nothing right."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.i18n import say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import detrended_std
from glassgpt.runs.metric_series import course_of, is_preference
from glassgpt.runs.noise import CLEAR_STANDARD_ERRORS
from glassgpt.runs.run_log import Floats

MIN_KL = 1.0  # nats per token or per answer: the policy is another one than it was
MIN_KL_GROWTH = 3.0  # times its first value
MAX_REWARD_GAIN = 0.1  # of the first reward: less is hardly any
MIN_REWARDS = 20  # values
MAX_LN2_DEVIATION = 0.05  # of the loss from ln 2: the policy has hardly moved
MAX_CHOICE_ACCURACY = 0.75  # usually: it may be one of a choice between two
MIN_COLLAPSE_VALUES, MIN_COLLAPSED_VALUES = 5, 2  # of a metric; of these, at the end
MIN_GOOD_VALUES, MIN_LATE_VALUES = 4, 5  # up to the best, to know how they scatter; or in the second half
MIN_COLLAPSE = 0.2  # of an accuracy, whose highest is 1, or 100 in percent
MIN_LOST_OF_FIRST = 1 / 3  # of the first value, where that is the best
MAX_COLLAPSED_SHARE, MAX_DEAD_SHARE = 0.5, 0.05  # of what it was
MIN_DEAD_REWARDS, MIN_DEAD_SHARE = 10, 0.1  # at the end, all of them the lowest
MIN_PAIR_LOSSES, MIN_DECIDED_MARGIN, MAX_DECIDED_LOSS = 3, 8.0, 0.01  # a margin of 8: one in 3000 is wrong


def policy_drift(analysis: Analysis) -> Finding | None:
    """The policy moves away from its reference, and the reward hardly rises."""
    kl = course_of(analysis.log.own_metrics, "kl")
    reward = course_of(analysis.log.own_metrics, "reward")
    if kl is None or reward is None or min(kl.values, reward.values) < MIN_REWARDS:
        return None
    gain = reward.last - reward.first
    if kl.last < max(MIN_KL, MIN_KL_GROWTH * kl.first) or gain > MAX_REWARD_GAIN * abs(reward.first):
        return None
    return make_finding(
        "policy-drift",
        "warning",
        title=say("policy-drift.title"),
        evidence=say(
            "policy-drift.evidence",
            kl_first=kl.first,
            kl_last=kl.last,
            reward_first=reward.first,
            reward_last=reward.last,
            values=kl.mean_of,
        ),
        explanation=say("policy-drift.explanation"),
        advice=say("policy-drift.advice"),
    )


def decided_pairs(analysis: Analysis) -> Finding | None:
    """Preferences (DPO): every pair is decided, by far, and the loss is gone."""
    margin = course_of(analysis.log.own_metrics, "margin")
    accuracies = [
        one for one in analysis.log.own_metrics if one.metric.kind == "accuracy" and not one.metric.is_eval
    ]
    losses = analysis.trajectory.finite_losses()[1]
    late = losses[-max(MIN_PAIR_LOSSES, len(losses) // 10) :]
    if margin is None or not accuracies or len(late) < MIN_PAIR_LOSSES:
        return None
    are_right = all((one.value[-MIN_PAIR_LOSSES:] >= 1).all() for one in accuracies)
    if margin.last < MIN_DECIDED_MARGIN or not are_right or late.max() > MAX_DECIDED_LOSS:
        return None
    return make_finding(
        "decided-pairs",
        "advice",
        title=say("decided-pairs.title"),
        evidence=say("decided-pairs.evidence", loss=float(late.max()), margin=margin.last, count=len(late)),
        explanation=say("decided-pairs.explanation"),
        advice=say("decided-pairs.advice"),
    )


def undecided_pairs(analysis: Analysis) -> Finding | None:
    """Preferences (DPO): the loss is still near ln 2, where it begins."""
    losses, log = analysis.trajectory.finite_losses()[1], analysis.log
    count = max(MIN_PAIR_LOSSES, len(losses) // 10)
    if len(losses) < 2 * MIN_PAIR_LOSSES:
        return None
    early, late = (float(np.median(part)) for part in (losses[:count], losses[-count:]))
    if max(abs(one / math.log(2) - 1) for one in (early, late)) > MAX_LN2_DEVIATION:
        return None
    # Tokens of a text are predicted at such a loss, too, but then most of them rightly.
    accuracies = [one.value for one in log.own_metrics if one.metric.kind == "accuracy" and len(one.value)]
    is_choice = any(np.median(values) < MAX_CHOICE_ACCURACY for values in accuracies)
    if not is_choice and not (accuracies and is_preference(log.own_metrics)):
        return None
    is_over = analysis.facts.ended == "finished"
    return make_finding(
        "undecided-pairs",
        "warning" if is_over else "info",
        title=say("undecided-pairs.title"),
        evidence=say("undecided-pairs.evidence", first_loss=early, late_loss=late),
        explanation=say("undecided-pairs.explanation"),
        advice=say("undecided-pairs.advice") if is_over else None,
    )


def metric_collapse(analysis: Analysis) -> Finding | None:
    """An accuracy or a reward that was high falls to half of that and less, and stays there."""
    for one in analysis.log.own_metrics:
        values, is_known = one.value, one.metric.kind in ("accuracy", "reward", "score")
        if not is_known or len(values) < MIN_COLLAPSE_VALUES or values.min() < 0:
            continue
        width = max(MIN_COLLAPSED_VALUES, len(values) // 20)
        means = np.convolve(values, np.full(width, 1 / width), mode="valid")
        best = int(means.argmax())
        high, end = float(means[best]), float(means[-1])
        later: Floats | None = None  # where the best is the first
        scale = 100.0 if values.max() > 1 else 1.0
        least = MIN_COLLAPSE * scale if one.metric.kind == "accuracy" else 0.0
        if best + width >= MIN_GOOD_VALUES:
            noise = detrended_std(values[: best + width]) or 0.0
            least = max(least, CLEAR_STANDARD_ERRORS * math.sqrt(2 / width) * noise)
            if best + width > len(values) - width or end > MAX_COLLAPSED_SHARE * min(high, float(means[0])):
                continue
            if high - end <= least or high <= 0:
                continue
        else:  # too few to tell how much they scatter: then the later ones do
            late, high = values[len(values) // 2 :], float(values[0])
            least = max(least, MIN_LOST_OF_FIRST * high)
            is_short = one.metric.kind != "accuracy" or len(late) < MIN_LATE_VALUES
            if is_short or high - late.max() <= max(least, CLEAR_STANDARD_ERRORS * float(np.std(late))):
                continue
            best, end, later = 0, float(values[-1]), late
        evidence = say(
            "metric-collapse.evidence",
            name=one.name,
            high=high,
            end=end,
            count=width,
            last=float(values[-1]),
        )
        if later is not None:
            evidence = say(
                "metric-collapse.evidence.first",
                name=one.name,
                high=high,
                end=end,
                count=len(later),
                highest=float(later.max()),
            )
        last_good = best + int(np.flatnonzero(values[best:] > (high + end) / 2)[-1])
        at = int(one.iteration[last_good])
        saves = [save.iteration for save in analysis.trajectory.checkpoints if save.iteration is not None]
        usable = max((save for save in saves if save <= at), default=None)
        return make_finding(
            "metric-collapse",
            "problem" if end < MAX_DEAD_SHARE * high else "warning",
            title=say("metric-collapse.title", name=one.name)
            if at < 0
            else say("metric-collapse.title.after", name=one.name, after=at),
            evidence=evidence,
            explanation=say("metric-collapse.explanation"),
            advice=[
                None
                if usable is None or at < 0
                else say("loss-explosion.advice.earlier_checkpoint", saved_iteration=usable),
                say("metric-collapse.advice"),
            ],
            at=at if at >= 0 else None,
            lines=[int(one.line[last_good])] if analysis.log.has_line_numbers else (),
        )
    return None


def dead_reward(analysis: Analysis) -> Finding | None:
    """Reinforcement learning: all rewards are the lowest, so no answer is better than another."""
    if analysis.log.loss_measures_learning or metric_collapse(analysis):
        return None
    for one in analysis.log.own_metrics:
        values = one.value
        if one.metric.kind != "reward" or one.metric.is_eval or not len(values) or values[-1] > values.min():
            continue
        above = np.flatnonzero(values > values[-1])
        count = len(values) - int(above[-1]) - 1 if len(above) else 0
        if count < max(MIN_DEAD_REWARDS, MIN_DEAD_SHARE * len(values)):
            continue
        at = int(one.iteration[above[-1]])
        return make_finding(
            "dead-reward",
            "problem",
            title=say("dead-reward.title", name=one.name, count=count),
            evidence=say(
                "dead-reward.evidence",
                name=one.name,
                count=count,
                reward_last=float(values[-1]),
                reward_highest=float(values.max()),
            ),
            explanation=say("dead-reward.explanation"),
            advice=say("metric-collapse.advice"),
            at=at if at >= 0 else None,
            lines=[int(one.line[above[-1]])] if analysis.log.has_line_numbers else (),
        )
    return None


def nothing_right(analysis: Analysis) -> Finding | None:
    """Every evaluation says that not one answer is right."""
    accuracies = [one for one in analysis.log.own_metrics if one.metric.kind == "accuracy"]
    wrong = [one for one in accuracies if not one.value.any()]
    is_repeated = any(len(one.value) > 1 or one.metric.is_eval for one in wrong)
    if not is_repeated or len(wrong) < len(accuracies):
        return None
    lines = [int(line) for line in wrong[0].line] if analysis.log.has_line_numbers else []
    return make_finding(
        "nothing-right",
        "warning",
        title=say("nothing-right.title", name=wrong[0].name),
        evidence=say("nothing-right.evidence", name=wrong[0].name, count=len(wrong[0].value)),
        explanation=say("nothing-right.explanation"),
        advice=say("nothing-right.advice"),
        lines=tuple(lines),
    )
