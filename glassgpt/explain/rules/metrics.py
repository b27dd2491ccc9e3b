"""What metrics besides the loss show: a policy that drifts for nothing, a model that gets nothing right."""

from __future__ import annotations

from glassgpt.i18n import say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.metric_series import course_of

MIN_KL = 1.0  # nats per token or per answer: the policy is another one than it was
MIN_KL_GROWTH = 3.0  # times its first value
MAX_REWARD_GAIN = 0.1  # of the first reward: less is hardly any
MIN_REWARDS = 20  # values
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
