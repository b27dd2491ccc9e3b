"""Which of two runs is faster, and why.

    tokens per second = FLOP/s achieved / FLOPs per token

So a run is faster because it achieves more FLOP/s, or because its tokens need fewer FLOPs. MFU measures only
the first.
"""

from __future__ import annotations

from glassgpt.compare.compared_run import Claim, ComparedRun, safe_ratio
from glassgpt.compare.differences import Difference, list_settings
from glassgpt.format import format_parameters
from glassgpt.i18n import Text, say
from glassgpt.runs.trajectory import positive_int_setting

_EQUAL_SPEED_TOLERANCE = 0.02  # relative; repeated runs on one machine vary as much
_MIN_NOTABLE_RATIO = 1.05  # of FLOPs per token, or of FLOP/s: a smaller one is not the reason
_MIN_OVERHEAD_GAP = 0.05  # between two overhead shares
_RATE_SETTINGS = (
    "device", "device_name", "device.name", "device.type", "dtype", "compile", "world_size", "n_embd",
    "batch_size", "block_size", "attention", "cpu.model",
)  # fmt: skip


def compare_speed(first: ComparedRun, other: ComparedRun, differences: tuple[Difference, ...]) -> list[Claim]:
    labels = (first.label, other.label)
    size_claims = _contradicted_size_claims(first, other)
    rates = first.analysis.tokens_per_s, other.analysis.tokens_per_s
    speedup = safe_ratio(*rates)
    if speedup is None:
        sentence = say("compare.speed-unknown", a=first.label, b=other.label)
        return [Claim("speed-unknown", labels, sentence, _step_time_details(first, other)), *size_claims]
    if abs(speedup - 1) <= _EQUAL_SPEED_TOLERANCE:
        sentence = say(
            "compare.equally-fast",
            a=first.label,
            b=other.label,
            a_rate=rates[0] or 0.0,
            b_rate=rates[1] or 0.0,
        )
        return [Claim("equally-fast", labels, sentence), *size_claims, *_overhead_claims(first, other)]
    fast, slow = (first, other) if speedup > 1 else (other, first)
    return [
        _faster_claim(fast, slow),
        *_reason_claims(fast, slow, differences),
        *_mfu_is_not_speed_claims(fast, slow),
        *_micro_batch_claims(first, other),
        *size_claims,
        *_overhead_claims(first, other),
    ]


def _step_time_details(first: ComparedRun, other: ComparedRun) -> Text:
    """A sentence with both step times, if both are known."""
    if not first.analysis.steady_ms or not other.analysis.steady_ms:
        return ()
    sentence = say(
        "compare.faster.reason.step_times",
        a=first.label,
        b=other.label,
        a_ms=first.analysis.steady_ms,
        b_ms=other.analysis.steady_ms,
    )
    return (sentence,)


def _faster_claim(fast: ComparedRun, slow: ComparedRun) -> Claim:
    rates = fast.analysis.tokens_per_s, slow.analysis.tokens_per_s
    sentence = say(
        "compare.faster",
        fast=fast.label,
        slow=slow.label,
        fast_rate=rates[0] or 0.0,
        slow_rate=rates[1] or 0.0,
        factor=safe_ratio(*rates) or 1.0,
    )
    details = _step_time_details(fast, slow)
    tokens = {run.analysis.tokens_per_iteration for run in (fast, slow)}
    if details and len(tokens) == 1 and None not in tokens:
        same_batch = say("compare.faster.reason.same_batch", tokens=tokens.pop() or 0)
        details = (*details, same_batch)
    return Claim("faster", (fast.label, slow.label), sentence, details)


# --- why ---


def _reason_claims(fast: ComparedRun, slow: ComparedRun, differences: tuple[Difference, ...]) -> list[Claim]:
    """Cheaper tokens, or more FLOP/s."""
    flops = fast.analysis.size.flops_per_token, slow.analysis.size.flops_per_token
    tflops = fast.analysis.achieved_tflops, slow.analysis.achieved_tflops
    cost, rate = safe_ratio(flops[1], flops[0]), safe_ratio(*tflops)
    if cost is None or rate is None:
        return []
    labels = (fast.label, slow.label)
    details = [
        say(
            "compare.faster-by-rate.reason.flops_per_token",
            fast=fast.label,
            slow=slow.label,
            factor=max(cost, 1 / cost),
            fast_flops=flops[0] or 0.0,
            slow_flops=flops[1] or 0.0,
        ),
        say(
            "compare.faster-by-rate.reason.achieved",
            fast=fast.label,
            slow=slow.label,
            factor=max(rate, 1 / rate),
            fast_rate=(tflops[0] or 0.0) * 1e12,
            slow_rate=(tflops[1] or 0.0) * 1e12,
        ),
    ]
    if rate >= _MIN_NOTABLE_RATIO:
        sentence = say("compare.faster-by-rate", fast=fast.label, rate=rate)
        rate_settings = [
            difference
            for difference in differences
            if difference.name in _RATE_SETTINGS and (difference.is_known or difference.name == "device")
        ]
        if rate_settings:
            details.append(
                say("compare.faster-by-rate.reason.settings", settings=list_settings(rate_settings))
            )
        return [Claim("faster-by-rate", labels, sentence, tuple(details))]
    if cost >= _MIN_NOTABLE_RATIO:
        sentence = say("compare.faster-by-size", slow=slow.label, cost=cost)
        return [Claim("faster-by-size", labels, sentence, tuple(details))]
    return []


def _mfu_is_not_speed_claims(fast: ComparedRun, slow: ComparedRun) -> list[Claim]:
    """The slower run may have the higher MFU."""
    rate = safe_ratio(slow.analysis.achieved_tflops, fast.analysis.achieved_tflops)
    cost = safe_ratio(slow.analysis.size.flops_per_token, fast.analysis.size.flops_per_token)
    if rate is None or cost is None or rate < 1 + _EQUAL_SPEED_TOLERANCE:
        return []
    sentence = say("compare.mfu-is-not-speed", slow=slow.label, rate=rate, cost=cost)
    details = []
    if fast.mfu and slow.mfu:
        details.append(
            say(
                "compare.mfu-is-not-speed.reason.mfu",
                fast=fast.label,
                slow=slow.label,
                fast_mfu=fast.mfu,
                slow_mfu=slow.mfu,
            )
        )
    return [Claim("mfu-is-not-speed", (slow.label, fast.label), sentence, tuple(details))]


def _micro_batch_claims(first: ComparedRun, other: ComparedRun) -> list[Claim]:
    """A smaller micro-batch is often credited with FLOP/s that come from a wider model."""
    ratio = safe_ratio(other.analysis.achieved_tflops, first.analysis.achieved_tflops)
    if ratio is None or abs(ratio - 1) <= _EQUAL_SPEED_TOLERANCE:
        return []
    high, low = (other, first) if ratio > 1 else (first, other)
    high_batch, low_batch = (positive_int_setting(run.log, "batch_size") for run in (high, low))
    high_width, low_width = (positive_int_setting(run.log, "n_embd") for run in (high, low))
    if high_batch is None or low_batch is None or high_width is None or low_width is None:
        return []
    if high_batch >= low_batch or high_width <= low_width:
        return []
    sentence = say(
        "compare.micro-batch-not-cause", high=high.label, low_batch=low_batch, high_batch=high_batch
    )
    details = [
        say("compare.micro-batch-not-cause.reason.wider_model", low_width=low_width, high_width=high_width)
    ]
    tokens = {run.analysis.tokens_per_iteration for run in (high, low)}
    if len(tokens) == 1 and None not in tokens:
        details.append(say("compare.micro-batch-not-cause.reason.accumulation", tokens=tokens.pop() or 0))
    return [Claim("micro-batch-not-cause", (high.label, low.label), sentence, tuple(details))]


# --- size and overhead ---


def _contradicted_size_claims(first: ComparedRun, other: ComparedRun) -> list[Claim]:
    claims = []
    for run in (first, other):
        size = run.analysis.size
        if not size.is_contradicted:
            continue
        sentence = say(
            "compare.parameters-contradicted",
            run=run.label,
            real=format_parameters(size.parameters or 0, exact=False),
            stated=format_parameters(size.parameters_stated or 0),
        )
        detail = say(
            "compare.parameters-contradicted.reason.flops_per_token",
            rate=(run.analysis.achieved_tflops or 0.0) * 1e12,
            tokens=run.analysis.tokens_per_s or 0.0,
            flops=size.flops_per_token or 0.0,
        )
        claims.append(Claim("parameters-contradicted", (run.label,), sentence, (detail,)))
    return claims


def _overhead_claims(first: ComparedRun, other: ComparedRun) -> list[Claim]:
    shares = first.analysis.overhead_share, other.analysis.overhead_share
    if shares[0] is None or shares[1] is None or abs(shares[0] - shares[1]) < _MIN_OVERHEAD_GAP:
        return []
    high, low = (first, other) if shares[0] > shares[1] else (other, first)
    sentence = say(
        "compare.overhead",
        high=high.label,
        low=low.label,
        high_share=100 * max(shares[0], shares[1]),
        low_share=100 * min(shares[0], shares[1]),
    )
    high_rate, low_rate = (
        safe_ratio(run.analysis.tokens_of_this_run, run.analysis.total_s) for run in (high, low)
    )
    details: Text = ()
    if high_rate and low_rate:
        details = (
            say(
                "compare.overhead.reason.whole_run_rate",
                high=high.label,
                low=low.label,
                high_rate=high_rate,
                low_rate=low_rate,
            ),
        )
    return [Claim("overhead", (high.label, low.label), sentence, details)]
