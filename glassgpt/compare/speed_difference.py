"""Which of two runs is faster, and why.

    tokens per second = FLOP/s achieved / FLOPs per token

So a run is faster because it computes faster, or because its tokens cost less. MFU is the first alone.
"""

from __future__ import annotations

from glassgpt import format
from glassgpt.compare.claim import Claim
from glassgpt.compare.compared_run import ComparedRun, safe_ratio
from glassgpt.compare.derived import bounded_int_setting
from glassgpt.compare.differences import Difference
from glassgpt.i18n import say

_EQUAL_SPEED_TOLERANCE = 0.02  # speeds closer than this are the same: runs on one machine vary as much
_MIN_NOTABLE_RATIO = 1.05  # a factor worth a sentence
_MIN_OVERHEAD_GAP = 0.05


def compare_speed(first: ComparedRun, other: ComparedRun, differences: tuple[Difference, ...]) -> list[Claim]:
    size = _sizes(first, other)
    factor = safe_ratio(first.metrics.tokens_per_s, other.metrics.tokens_per_s)
    if factor is None:
        return [_unknown_speed_claim(first, other), *size]
    if abs(factor - 1) <= _EQUAL_SPEED_TOLERANCE:
        return [_alike(first, other), *size, *_overhead_claims(first, other)]
    fast, slow = (first, other) if factor > 1 else (other, first)
    return [
        _faster_claim(fast, slow),
        *_reason_claims(fast, slow, differences),
        *_mfu_is_not_speed_claims(fast, slow),
        *_micro_batch_claims(first, other),
        *size,
        *_overhead_claims(first, other),
    ]


def _pair(first: ComparedRun, other: ComparedRun) -> tuple[str, str]:
    return first.label, other.label


def _unknown_speed_claim(first: ComparedRun, other: ComparedRun) -> Claim:
    claim = say(
        "Which of {a} and {b} is faster cannot be told: not every log says how many tokens it did "
        "and in what time.",
        a=first.label,
        b=other.label,
    )
    a_ms, b_ms = first.metrics.steady_ms, other.metrics.steady_ms
    details: tuple[str, ...] = ()
    if a_ms and b_ms:
        details = (_iteration_times(first, other),)
    return Claim("speed-unknown", _pair(first, other), claim, details)


def _iteration_times(first: ComparedRun, other: ComparedRun) -> str:
    return say(
        "An iteration takes {a_ms} in {a} and {b_ms} in {b}.",
        a=first.label,
        b=other.label,
        a_ms=format.format_ms(first.metrics.steady_ms or 0.0),
        b_ms=format.format_ms(other.metrics.steady_ms or 0.0),
    )


def _alike(first: ComparedRun, other: ComparedRun) -> Claim:
    claim = say(
        "{a} and {b} are equally fast: {a_rate} and {b_rate} tokens per second.",
        a=first.label,
        b=other.label,
        a_rate=format.format_count(first.metrics.tokens_per_s or 0.0),
        b_rate=format.format_count(other.metrics.tokens_per_s or 0.0),
    )
    return Claim("equally-fast", _pair(first, other), claim)


def _faster_claim(fast: ComparedRun, slow: ComparedRun) -> Claim:
    claim = say(
        "{fast} is faster than {slow}: {fast_rate} against {slow_rate} tokens per second, {factor}.",
        fast=fast.label,
        slow=slow.label,
        fast_rate=format.format_count(fast.metrics.tokens_per_s or 0.0),
        slow_rate=format.format_count(slow.metrics.tokens_per_s or 0.0),
        factor=format.format_factor(safe_ratio(fast.metrics.tokens_per_s, slow.metrics.tokens_per_s) or 1.0),
    )
    details = []
    if fast.metrics.steady_ms and slow.metrics.steady_ms:
        details.append(_iteration_times(fast, slow))
        tokens = {side.metrics.tokens_per_iteration for side in (fast, slow)}
        if len(tokens) == 1 and None not in tokens:
            details.append(
                say(
                    "Both have {tokens} tokens per iteration.",
                    tokens=format.format_integer(tokens.pop() or 0),
                )
            )
    return Claim("faster", (fast.label, slow.label), claim, tuple(details))


# --- why ---


def _reason_claims(fast: ComparedRun, slow: ComparedRun, differences: tuple[Difference, ...]) -> list[Claim]:
    cost = safe_ratio(slow.metrics.size.flops_per_token, fast.metrics.size.flops_per_token)
    rate = safe_ratio(fast.metrics.achieved_tflops, slow.metrics.achieved_tflops)
    if cost is None or rate is None:
        return []
    details = tuple(detail for detail in (_cost(fast, slow, cost), _rate(fast, slow, rate)) if detail)
    if cost >= _MIN_NOTABLE_RATIO and rate < _MIN_NOTABLE_RATIO:
        claim = say(
            "The reason is the size of the model, not the speed of the machine: a token of {slow} costs "
            "{cost} the arithmetic.",
            slow=slow.label,
            cost=format.format_factor(cost),
        )
        return [Claim("faster-by-size", (fast.label, slow.label), claim, details)]
    if rate >= _MIN_NOTABLE_RATIO:
        claim = say(
            "The reason is that {fast} does {rate} as much arithmetic per second.",
            fast=fast.label,
            rate=format.format_factor(rate),
        )
        more = _what_sets_the_rate(differences)
        return [Claim("faster-by-rate", (fast.label, slow.label), claim, (*details, *more))]
    return []


def _cost(fast: ComparedRun, slow: ComparedRun, cost: float) -> str:
    return say(
        "FLOPs per token: {fast} {fast_flops}, {slow} {slow_flops} ({factor}).",
        fast=fast.label,
        slow=slow.label,
        factor=format.format_factor(max(cost, 1 / cost)),
        fast_flops=format.format_flops(fast.metrics.size.flops_per_token or 0.0),
        slow_flops=format.format_flops(slow.metrics.size.flops_per_token or 0.0),
    )


def _rate(fast: ComparedRun, slow: ComparedRun, rate: float) -> str:
    return say(
        "Achieved: {fast} {fast_rate}, {slow} {slow_rate} ({factor}).",
        fast=fast.label,
        slow=slow.label,
        factor=format.format_factor(max(rate, 1 / rate)),
        fast_rate=format.format_flops_per_s((fast.metrics.achieved_tflops or 0.0) * 1e12),
        slow_rate=format.format_flops_per_s((slow.metrics.achieved_tflops or 0.0) * 1e12),
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
    named = [
        one for one in differences if one.name in _RATE_SETTINGS and (one.is_known or one.name == "device")
    ]
    if not named:
        return []
    listed = ", ".join(
        f"{one.name} ({' / '.join(format_setting(value) for value in one.values)})" for one in named
    )
    return [say("What differs and can do that: {settings}.", settings=listed)]


def format_setting(value: object) -> str:
    """A setting's value; unknown is a question mark."""
    if value is None:
        return "?"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _mfu_is_not_speed_claims(fast: ComparedRun, slow: ComparedRun) -> list[Claim]:
    rate = safe_ratio(slow.metrics.achieved_tflops, fast.metrics.achieved_tflops)
    cost = safe_ratio(slow.metrics.size.flops_per_token, fast.metrics.size.flops_per_token)
    if rate is None or cost is None or rate < 1 + _EQUAL_SPEED_TOLERANCE:
        return []
    claim = say(
        "The higher MFU of {slow} does not make it faster: it does {rate} as much arithmetic per second, but "
        "each token needs {cost} as much.",
        slow=slow.label,
        rate=format.format_factor(rate),
        cost=format.format_factor(cost),
    )
    details = []
    if fast.metrics.mfu and slow.metrics.mfu:
        details.append(
            say(
                "MFU: {fast} {fast_mfu}, {slow} {slow_mfu}.",
                fast=fast.label,
                slow=slow.label,
                fast_mfu=format.format_percent_value(fast.metrics.mfu),
                slow_mfu=format.format_percent_value(slow.metrics.mfu),
            )
        )
    return [Claim("mfu-is-not-speed", (slow.label, fast.label), claim, tuple(details))]


def _micro_batch_claims(first: ComparedRun, other: ComparedRun) -> list[Claim]:
    """A smaller micro-batch is often given the credit for a rate that a wider model brought."""
    faster = safe_ratio(other.metrics.achieved_tflops, first.metrics.achieved_tflops)
    if faster is None or abs(faster - 1) <= _EQUAL_SPEED_TOLERANCE:
        return []
    high, low = (other, first) if faster > 1 else (first, other)
    batches = [bounded_int_setting(side.log, "batch_size") for side in (high, low)]
    widths = [bounded_int_setting(side.log, "n_embd") for side in (high, low)]
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
    tokens = {side.metrics.tokens_per_iteration for side in (high, low)}
    if len(tokens) == 1 and None not in tokens:
        details.append(
            say(
                "More accumulation makes up for it: {tokens} tokens per iteration in both.",
                tokens=format.format_integer(tokens.pop() or 0),
            )
        )
    return [Claim("micro-batch-not-cause", (high.label, low.label), claim, tuple(details))]


# --- what else the times tell ---


def _sizes(first: ComparedRun, other: ComparedRun) -> list[Claim]:
    return [_contradicted_size_claim(side) for side in (first, other) if side.metrics.size.is_contradicted]


def _contradicted_size_claim(side: ComparedRun) -> Claim:
    size = side.metrics.size
    claim = say(
        "{run} has {real} parameters, not {stated}.",
        run=side.label,
        real=format.format_parameters(size.parameters or 0, exact=False),
        stated=format.format_parameters(size.parameters_stated or 0),
    )
    detail = say(
        "Its own MFU and times say so: {rate} at {tokens} tokens per second is {flops} per token.",
        rate=format.format_flops_per_s((side.metrics.achieved_tflops or 0.0) * 1e12),
        tokens=format.format_count(side.metrics.tokens_per_s or 0.0),
        flops=format.format_flops(size.flops_per_token or 0.0),
    )
    return Claim("parameters-contradicted", (side.label,), claim, (detail,))


def _overhead_claims(first: ComparedRun, other: ComparedRun) -> list[Claim]:
    shares = [side.metrics.overhead_share for side in (first, other)]
    if shares[0] is None or shares[1] is None or abs(shares[0] - shares[1]) < _MIN_OVERHEAD_GAP:
        return []
    high, low = (first, other) if shares[0] > shares[1] else (other, first)
    claim = say(
        "{high} spends {high_share} of its time on evaluation, checkpoints and start-up, {low} {low_share}.",
        high=high.label,
        low=low.label,
        high_share=format.format_percent_value(100 * max(shares[0], shares[1])),
        low_share=format.format_percent_value(100 * min(shares[0], shares[1])),
    )
    rates = [_overall(side) for side in (high, low)]
    details: tuple[str, ...] = ()
    if rates[0] and rates[1]:
        details = (
            say(
                "Over the whole run that leaves {high} {high_rate} tokens per second and {low} {low_rate}.",
                high=high.label,
                low=low.label,
                high_rate=format.format_count(rates[0]),
                low_rate=format.format_count(rates[1]),
            ),
        )
    return [Claim("overhead", (high.label, low.label), claim, details)]


def _overall(side: ComparedRun) -> float | None:
    return safe_ratio(side.metrics.tokens_of_this_run, side.metrics.time_s)
