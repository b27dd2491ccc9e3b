"""Which of two runs is faster, and why.

    tokens per second = FLOP/s achieved / FLOPs per token

So a run is faster because it computes faster, or because its tokens cost less. MFU is the first alone.
"""

from __future__ import annotations

from glassgpt import format
from glassgpt.compare.claim import Conclusion
from glassgpt.compare.compared_run import Side, ratio
from glassgpt.compare.derived import positive
from glassgpt.compare.differences import Difference
from glassgpt.i18n import say

_SAME = 0.02  # speeds closer than this are the same: runs on one machine vary as much
_NOTABLE = 1.05  # a factor worth a sentence
_OVERHEAD_APART = 0.05


def conclude_speed(first: Side, other: Side, differences: tuple[Difference, ...]) -> list[Conclusion]:
    size = _sizes(first, other)
    factor = ratio(first.derived.tokens_per_s, other.derived.tokens_per_s)
    if factor is None:
        return [_untold(first, other), *size]
    if abs(factor - 1) <= _SAME:
        return [_alike(first, other), *size, *_overhead(first, other)]
    fast, slow = (first, other) if factor > 1 else (other, first)
    return [
        _faster(fast, slow),
        *_why(fast, slow, differences),
        *_mfu_is_not_speed(fast, slow),
        *_micro_batch(first, other),
        *size,
        *_overhead(first, other),
    ]


def _pair(first: Side, other: Side) -> tuple[str, str]:
    return first.label, other.label


def _untold(first: Side, other: Side) -> Conclusion:
    claim = say(
        "Which of {a} and {b} is faster cannot be told: not every log says how many tokens it did "
        "and in what time.",
        a=first.label,
        b=other.label,
    )
    a_ms, b_ms = first.derived.steady_ms, other.derived.steady_ms
    details: tuple[str, ...] = ()
    if a_ms and b_ms:
        details = (_iteration_times(first, other),)
    return Conclusion("speed-unknown", _pair(first, other), claim, details)


def _iteration_times(first: Side, other: Side) -> str:
    return say(
        "An iteration takes {a_ms} in {a} and {b_ms} in {b}.",
        a=first.label,
        b=other.label,
        a_ms=format.milliseconds(first.derived.steady_ms or 0.0),
        b_ms=format.milliseconds(other.derived.steady_ms or 0.0),
    )


def _alike(first: Side, other: Side) -> Conclusion:
    claim = say(
        "{a} and {b} are equally fast: {a_rate} and {b_rate} tokens per second.",
        a=first.label,
        b=other.label,
        a_rate=format.count(first.derived.tokens_per_s or 0.0),
        b_rate=format.count(other.derived.tokens_per_s or 0.0),
    )
    return Conclusion("equally-fast", _pair(first, other), claim)


def _faster(fast: Side, slow: Side) -> Conclusion:
    claim = say(
        "{fast} is faster than {slow}: {fast_rate} against {slow_rate} tokens per second, {factor}.",
        fast=fast.label,
        slow=slow.label,
        fast_rate=format.count(fast.derived.tokens_per_s or 0.0),
        slow_rate=format.count(slow.derived.tokens_per_s or 0.0),
        factor=format.factor(ratio(fast.derived.tokens_per_s, slow.derived.tokens_per_s) or 1.0),
    )
    details = []
    if fast.derived.steady_ms and slow.derived.steady_ms:
        details.append(_iteration_times(fast, slow))
        tokens = {side.derived.tokens_per_iteration for side in (fast, slow)}
        if len(tokens) == 1 and None not in tokens:
            details.append(
                say("Both have {tokens} tokens per iteration.", tokens=format.whole(tokens.pop() or 0))
            )
    return Conclusion("faster", (fast.label, slow.label), claim, tuple(details))


# --- why ---


def _why(fast: Side, slow: Side, differences: tuple[Difference, ...]) -> list[Conclusion]:
    cost = ratio(slow.derived.size.flops_per_token, fast.derived.size.flops_per_token)
    rate = ratio(fast.derived.achieved_tflops, slow.derived.achieved_tflops)
    if cost is None or rate is None:
        return []
    details = tuple(detail for detail in (_cost(fast, slow, cost), _rate(fast, slow, rate)) if detail)
    if cost >= _NOTABLE and rate < _NOTABLE:
        claim = say(
            "The reason is the size of the model, not the speed of the machine: a token of {slow} costs "
            "{cost} the arithmetic.",
            slow=slow.label,
            cost=format.factor(cost),
        )
        return [Conclusion("faster-by-size", (fast.label, slow.label), claim, details)]
    if rate >= _NOTABLE:
        claim = say(
            "The reason is that {fast} does {rate} as much arithmetic per second.",
            fast=fast.label,
            rate=format.factor(rate),
        )
        more = _what_sets_the_rate(differences)
        return [Conclusion("faster-by-rate", (fast.label, slow.label), claim, (*details, *more))]
    return []


def _cost(fast: Side, slow: Side, cost: float) -> str:
    return say(
        "FLOPs per token: {fast} {fast_flops}, {slow} {slow_flops} ({factor}).",
        fast=fast.label,
        slow=slow.label,
        factor=format.factor(max(cost, 1 / cost)),
        fast_flops=format.work(fast.derived.size.flops_per_token or 0.0),
        slow_flops=format.work(slow.derived.size.flops_per_token or 0.0),
    )


def _rate(fast: Side, slow: Side, rate: float) -> str:
    return say(
        "Achieved: {fast} {fast_rate}, {slow} {slow_rate} ({factor}).",
        fast=fast.label,
        slow=slow.label,
        factor=format.factor(max(rate, 1 / rate)),
        fast_rate=format.flop_rate((fast.derived.achieved_tflops or 0.0) * 1e12),
        slow_rate=format.flop_rate((slow.derived.achieved_tflops or 0.0) * 1e12),
    )


_RATE_SETTINGS = (
    "device",
    "device_name",
    "device.name",
    "device.type",
    "dtype",
    "compile",
    "world_size",
    "n_embd",
    "batch_size",
    "block_size",
    "attention",
    "cpu.model",
)


def _what_sets_the_rate(differences: tuple[Difference, ...]) -> list[str]:
    """What differs and can: hardware, precision, compiling, and how large the matrix products are."""
    named = [one for one in differences if one.name in _RATE_SETTINGS and (one.known or one.name == "device")]
    if not named:
        return []
    listed = ", ".join(f"{one.name} ({' / '.join(shown(value) for value in one.values)})" for one in named)
    return [say("What differs and can do that: {settings}.", settings=listed)]


def shown(value: object) -> str:
    """A setting's value; unknown is a question mark."""
    if value is None:
        return "?"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _mfu_is_not_speed(fast: Side, slow: Side) -> list[Conclusion]:
    rate = ratio(slow.derived.achieved_tflops, fast.derived.achieved_tflops)
    cost = ratio(slow.derived.size.flops_per_token, fast.derived.size.flops_per_token)
    if rate is None or cost is None or rate < 1 + _SAME:
        return []
    claim = say(
        "The higher MFU of {slow} does not make it faster: it does {rate} as much arithmetic per second, but "
        "each token needs {cost} as much.",
        slow=slow.label,
        rate=format.factor(rate),
        cost=format.factor(cost),
    )
    details = []
    if fast.derived.mfu and slow.derived.mfu:
        details.append(
            say(
                "MFU: {fast} {fast_mfu}, {slow} {slow_mfu}.",
                fast=fast.label,
                slow=slow.label,
                fast_mfu=format.points(fast.derived.mfu),
                slow_mfu=format.points(slow.derived.mfu),
            )
        )
    return [Conclusion("mfu-is-not-speed", (slow.label, fast.label), claim, tuple(details))]


def _micro_batch(first: Side, other: Side) -> list[Conclusion]:
    """A smaller micro-batch is often given the credit for a rate that a wider model brought."""
    faster = ratio(other.derived.achieved_tflops, first.derived.achieved_tflops)
    if faster is None or abs(faster - 1) <= _SAME:
        return []
    high, low = (other, first) if faster > 1 else (first, other)
    batches = [positive(side.history, "batch_size") for side in (high, low)]
    widths = [positive(side.history, "n_embd") for side in (high, low)]
    if None in batches or None in widths or not (batches[0] or 0) < (batches[1] or 0):
        return []
    if not (widths[0] or 0) > (widths[1] or 0):
        return []
    claim = say(
        "The smaller micro-batch of {high} (batch_size {low_batch} -> {high_batch}) is not why its rate is "
        "higher.",
        high=high.label,
        low_batch=batches[1],
        high_batch=batches[0],
    )
    details = [
        say(
            "It gives the device less to do at a time. What raises the rate is the wider model "
            "(n_embd {low_width} -> {high_width}): its matrix products are larger.",
            low_width=widths[1],
            high_width=widths[0],
        )
    ]
    tokens = {side.derived.tokens_per_iteration for side in (high, low)}
    if len(tokens) == 1 and None not in tokens:
        details.append(
            say(
                "More accumulation makes up for it: {tokens} tokens per iteration in both.",
                tokens=format.whole(tokens.pop() or 0),
            )
        )
    return [Conclusion("micro-batch-not-cause", (high.label, low.label), claim, tuple(details))]


# --- what else the times tell ---


def _sizes(first: Side, other: Side) -> list[Conclusion]:
    return [_contradicted(side) for side in (first, other) if side.derived.size.contradicted]


def _contradicted(side: Side) -> Conclusion:
    size = side.derived.size
    claim = say(
        "{run} has {real} parameters, not {stated}.",
        run=side.label,
        real=format.parameters(size.parameters or 0, exact=False),
        stated=format.parameters(size.parameters_stated or 0),
    )
    detail = say(
        "Its own MFU and times say so: {rate} at {tokens} tokens per second is {flops} per token.",
        rate=format.flop_rate((side.derived.achieved_tflops or 0.0) * 1e12),
        tokens=format.count(side.derived.tokens_per_s or 0.0),
        flops=format.work(size.flops_per_token or 0.0),
    )
    return Conclusion("parameters-contradicted", (side.label,), claim, (detail,))


def _overhead(first: Side, other: Side) -> list[Conclusion]:
    shares = [side.derived.overhead_share for side in (first, other)]
    if shares[0] is None or shares[1] is None or abs(shares[0] - shares[1]) < _OVERHEAD_APART:
        return []
    high, low = (first, other) if shares[0] > shares[1] else (other, first)
    claim = say(
        "{high} spends {high_share} of its time on evaluation, checkpoints and start-up, {low} {low_share}.",
        high=high.label,
        low=low.label,
        high_share=format.points(100 * max(shares[0], shares[1])),
        low_share=format.points(100 * min(shares[0], shares[1])),
    )
    rates = [_overall(side) for side in (high, low)]
    details: tuple[str, ...] = ()
    if rates[0] and rates[1]:
        details = (
            say(
                "Over the whole run that leaves {high} {high_rate} tokens per second and {low} {low_rate}.",
                high=high.label,
                low=low.label,
                high_rate=format.count(rates[0]),
                low_rate=format.count(rates[1]),
            ),
        )
    return [Conclusion("overhead", (high.label, low.label), claim, details)]


def _overall(side: Side) -> float | None:
    return ratio(side.derived.tokens_here, side.derived.time_s)
