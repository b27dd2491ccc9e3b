"""Which of two runs is faster, and why.

    tokens per second = FLOP/s achieved / FLOPs per token

So a run is faster because its tokens need fewer FLOPs, or because it achieves more FLOP/s. The latter is not
a cause yet: what differs in settings, machine and load is, or the cause is unknown.
"""

from __future__ import annotations

import numpy as np

from glassgpt.compare.compared_run import Claim, ComparedRun, least_work_ratio, safe_ratio, work_bounds
from glassgpt.compare.differences import HARDWARE_SETTINGS, Difference, list_settings
from glassgpt.format import format_parameters
from glassgpt.i18n import Message, Text, make_text, say
from glassgpt.runs.model_size import device_count
from glassgpt.runs.trajectory import positive_int_setting

_EQUAL_SPEED_TOLERANCE = 0.02  # relative; repeated runs on one machine vary as much
_MIN_NOTABLE_RATIO = 1.05  # of FLOPs per token, or of FLOP/s: a smaller one is not the reason
_MIN_OVERHEAD_GAP = 0.05  # between two overhead shares
_COARSE_RATIO = 1.1  # of the most to the least FLOPs that a rounded MFU allows
_MIN_LOAD_GAP = 0.3  # cores that other processes keep busy
_MIN_TIMED_ITERATIONS = 20  # for the fastest tenth of them
_MAX_LISTED_SETTINGS = 8
# They change how often something is done besides updates, or what is printed: not the time of an update.
_NOT_OF_UPDATES = (
    "eval_interval", "eval_iters", "eval_tokens", "checkpoint_interval", "always_save_checkpoint",
    "log_interval", "probe_seconds", "device.memory", "memory.total", "os", "kernel", "python",
    "glassgpt", "glassgpt_commit", "commit", "code",
)  # fmt: skip


def compare_speed(first: ComparedRun, other: ComparedRun, differences: tuple[Difference, ...]) -> list[Claim]:
    labels = (first.label, other.label)
    size_claims = _contradicted_size_claims(first, other)
    rates = first.analysis.tokens_per_s, other.analysis.tokens_per_s
    speedup = safe_ratio(*rates)
    if speedup is None:
        return [*_compare_step_times(first, other, differences), *size_claims]
    peaks = [*_inferred_devices_claims(first, other), *_different_peak_claims(first, other)]
    overhead = _overhead_claims(first, other)
    if abs(speedup - 1) <= _EQUAL_SPEED_TOLERANCE:
        sentence = say(
            "compare.equally-fast",
            a=first.label,
            b=other.label,
            a_rate=rates[0] or 0.0,
            b_rate=rates[1] or 0.0,
        )
        return [Claim("equally-fast", labels, sentence), *size_claims, *overhead, *peaks]
    fast, slow = (first, other) if speedup > 1 else (other, first)
    return [
        _faster_claim(fast, slow),
        *_reason_claims(fast, slow, differences),
        *_mfu_is_not_speed_claims(fast, slow),
        *_micro_batch_claims(first, other),
        *size_claims,
        *overhead,
        *peaks,
    ]


def _compare_step_times(
    first: ComparedRun, other: ComparedRun, differences: tuple[Difference, ...]
) -> list[Claim]:
    """Without tokens per second: step times can be compared if an iteration of both is the same work."""
    labels, times = (first.label, other.label), (first.analysis.steady_ms, other.analysis.steady_ms)
    bounds = [work_bounds(run) for run in (first, other)]
    ratio = safe_ratio(times[1], times[0])
    is_same_work = (
        bounds[0] is not None
        and bounds[1] is not None
        and max(bounds[0][1], bounds[1][1]) <= _COARSE_RATIO * min(bounds[0][0], bounds[1][0])
    )
    if not is_same_work or ratio is None:
        sentence = say("compare.speed-unknown", a=first.label, b=other.label)
        unknown = Claim("speed-unknown", labels, sentence, _step_time_details(first, other))
        return [*_different_work_claims(first, other), unknown]
    fast, slow = (first, other) if ratio > 1 else (other, first)
    values: dict[str, object] = {
        "fast": fast.label,
        "slow": slow.label,
        "fast_ms": fast.analysis.steady_ms or 0.0,
        "slow_ms": slow.analysis.steady_ms or 0.0,
        "flops": sum(bounds[0] or ()) / 2,
    }
    if abs(ratio - 1) <= _EQUAL_SPEED_TOLERANCE:
        return [Claim("equally-fast", labels, say("compare.equally-fast.same_work", **values))]
    sentence = say("compare.faster.same_work", factor=max(ratio, 1 / ratio), **values)
    faster = Claim("faster", (fast.label, slow.label), sentence, _step_time_details(fast, slow)[1:])
    return [faster, *_cause_claims(fast, slow, (), differences)]


def _different_work_claims(first: ComparedRun, other: ComparedRun) -> list[Claim]:
    """Where a log does not state model and batch: MFU times step time is the work of an iteration."""
    least = least_work_ratio(first, other)
    if least is None:
        return []
    bounds = {run.label: work_bounds(run) or (0.0, 0.0) for run in (first, other)}
    small, large = sorted(bounds, key=lambda label: bounds[label])
    sentence = say("compare.different-work", large=large, small=small, least=least)
    detail = say(
        "compare.different-work.reason.product",
        large=large,
        small=small,
        large_flops=sum(bounds[large]) / 2,
        small_flops=sum(bounds[small]) / 2,
    )
    details = [detail]
    low, high = bounds[small]
    if high > _COARSE_RATIO * low:
        details.append(say("compare.different-work.reason.rounded", small=small, least=low, most=high))
    return [Claim("different-work", (large, small), sentence, tuple(details))]


def _step_time_details(first: ComparedRun, other: ComparedRun) -> Text:
    """A sentence with both step times, if both are known; and for a run with regimes, that its time and its
    tokens per second are medians over all of them."""
    if not first.analysis.steady_ms or not other.analysis.steady_ms:
        return ()
    regimes = tuple(
        say(
            "compare.faster.reason.over_regimes",
            run=run.label,
            low_ms=min(regime.steady_ms for regime in run.analysis.regimes),
            high_ms=max(regime.steady_ms for regime in run.analysis.regimes),
        )
        for run in (first, other)
        if len(run.analysis.regimes) > 1
    )
    sentence = say(
        "compare.faster.reason.step_times",
        a=first.label,
        b=other.label,
        a_ms=first.analysis.steady_ms,
        b_ms=other.analysis.steady_ms,
    )
    return (sentence, *regimes)


def _faster_claim(fast: ComparedRun, slow: ComparedRun) -> Claim:
    rates = fast.analysis.tokens_per_s, slow.analysis.tokens_per_s
    run_rates = [safe_ratio(run.analysis.tokens_of_this_run, run.analysis.total_s) for run in (fast, slow)]
    values: dict[str, object] = {
        "fast": fast.label,
        "slow": slow.label,
        "fast_rate": rates[0] or 0.0,
        "slow_rate": rates[1] or 0.0,
        "factor": safe_ratio(*rates) or 1.0,
    }
    sentence = say("compare.faster", **values)
    # A median is of most iterations, the time of a run also of evaluations and of slow stretches.
    if fast.is_whole and slow.is_whole and run_rates[0] and run_rates[1] and run_rates[0] < run_rates[1]:
        values |= {"fast_run_rate": run_rates[0], "slow_run_rate": run_rates[1]}
        sentence = say("compare.faster.by_iteration", **values)
    details = _step_time_details(fast, slow)
    tokens = {run.analysis.tokens_per_iteration for run in (fast, slow)}
    if details and len(tokens) == 1 and None not in tokens:
        same_batch = say("compare.faster.reason.same_batch", tokens=tokens.pop() or 0)
        details = (*details, same_batch)
    return Claim("faster", (fast.label, slow.label), sentence, details)


# --- why ---


def _reason_claims(fast: ComparedRun, slow: ComparedRun, differences: tuple[Difference, ...]) -> list[Claim]:
    """Cheaper tokens, or more FLOP/s; and of the latter what differs that can cause it."""
    pair = {"fast": fast.label, "slow": slow.label}
    flops = _token_flops(fast), _token_flops(slow)
    achieved = [
        (run.analysis.achieved_tflops or 0.0) * 1e12 or (own or 0.0) * (run.analysis.tokens_per_s or 0.0)
        for run, own in zip((fast, slow), flops, strict=True)
    ]
    cost, rate = safe_ratio(flops[1], flops[0]), safe_ratio(achieved[0], achieved[1])
    if cost is None or rate is None:
        return _cause_claims(fast, slow, (), differences)
    labels = (fast.label, slow.label)
    details = (
        say(
            "compare.faster-by-rate.reason.flops_per_token",
            **pair,
            factor=max(cost, 1 / cost),
            fast_flops=flops[0] or 0.0,
            slow_flops=flops[1] or 0.0,
        ),
        say(
            "compare.faster-by-rate.reason.achieved",
            **pair,
            factor=max(rate, 1 / rate),
            fast_rate=achieved[0],
            slow_rate=achieved[1],
        ),
    )
    if cost < _MIN_NOTABLE_RATIO:
        return _cause_claims(fast, slow, details, differences) if rate >= _MIN_NOTABLE_RATIO else []
    if rate < _MIN_NOTABLE_RATIO:
        sentence = say("compare.faster-by-size", slow=slow.label, cost=cost)
        return [Claim("faster-by-size", labels, sentence, details)]
    sentence = say("compare.faster-by-size.and_rate", **pair, cost=cost, rate=rate)
    by_size = Claim("faster-by-size", labels, sentence, details)
    return [by_size, *_cause_claims(fast, slow, (), differences)]


def _token_flops(run: ComparedRun) -> float | None:
    """FLOPs per token; those of the parameters alone, where the shape is not known."""
    size = run.analysis.size
    return size.flops_per_token or (6.0 * size.parameters if size.parameters else None)


def _cause_claims(
    fast: ComparedRun, slow: ComparedRun, details: Text, differences: tuple[Difference, ...]
) -> list[Claim]:
    """What differs that can make an update faster: settings, machine, load. Else the cause is unknown."""
    causes = [
        difference
        for difference in differences
        if difference.name not in _NOT_OF_UPDATES
        and (difference.is_known or difference.name in HARDWARE_SETTINGS)
        and (difference.affects in ("speed", "both") or difference.group == "versions")
    ]
    order = {name: at for at, name in enumerate(HARDWARE_SETTINGS)}
    causes.sort(
        key=lambda difference: (difference.group == "versions", order.get(difference.name, len(order)))
    )
    extra = make_text(
        [_load_detail(fast, slow), _measured_peak_detail(fast, slow), _slow_at_times_detail(fast, slow)]
    )
    setups = [run.log.setup for run in (fast, slow)]
    is_machine_known = all(setup.device_name or setup.settings.get("device") for setup in setups)
    is_machine_known |= any(cause.name in HARDWARE_SETTINGS for cause in causes)
    unknown = () if is_machine_known else make_text(say("compare.faster-by-rate.reason.machine_unknown"))
    labels, values = (fast.label, slow.label), {"fast": fast.label, "slow": slow.label}
    if causes:
        listed = list_settings(causes[:_MAX_LISTED_SETTINGS])
        sentence = say("compare.faster-by-rate", settings=listed, **values)
    elif extra:
        sentence = say("compare.faster-by-rate.no_setting", **values)
    else:
        sentence = say("compare.faster-by-rate.unknown", **values)
    return [Claim("faster-by-rate", labels, sentence, (*extra, *details, *(unknown if causes else ())))]


def _load_detail(fast: ComparedRun, slow: ComparedRun) -> Message | None:
    """GlassGPT records how many cores were busy with other processes when the run began."""
    loads = [run.log.setup.machine.get("busy_cores") for run in (fast, slow)]
    if not all(isinstance(load, int | float) for load in loads):
        return None
    fast_load, slow_load = float(loads[0]), float(loads[1])  # type: ignore[arg-type]
    if slow_load - fast_load < _MIN_LOAD_GAP:
        return None
    return say(
        "compare.faster-by-rate.reason.load",
        fast=fast.label,
        slow=slow.label,
        fast_load=f"{fast_load:.1f}",
        slow_load=f"{slow_load:.1f}",
    )


def _measured_peak_detail(fast: ComparedRun, slow: ComparedRun) -> Message | None:
    """GlassGPT measures the matmul peak before a run. On one device, another peak is another state of it."""
    setups = [run.log.setup for run in (fast, slow)]
    peaks = [setup.peak_flops if run.log.trainer.lines_count_updates else None
             for run, setup in zip((fast, slow), setups, strict=True)]  # fmt: skip
    ratio = safe_ratio(*peaks)
    if ratio is None or ratio < _MIN_NOTABLE_RATIO or setups[0].device_name != setups[1].device_name:
        return None
    return say(
        "compare.faster-by-rate.reason.peak",
        fast=fast.label,
        slow=slow.label,
        fast_peak=peaks[0] or 0.0,
        slow_peak=peaks[1] or 0.0,
    )


def _slow_at_times_detail(fast: ComparedRun, slow: ComparedRun) -> Message | None:
    """A tenth of the slow run's iterations is as fast as the fast run: something slowed it at times."""
    if fast.analysis.tokens_per_iteration != slow.analysis.tokens_per_iteration:
        return None
    ms = slow.log.steps.ms[slow.log.is_steady()]
    if len(ms) < _MIN_TIMED_ITERATIONS or not fast.analysis.steady_ms:
        return None
    fastest = float(np.percentile(ms, 10))
    if fastest > _MIN_NOTABLE_RATIO * fast.analysis.steady_ms:
        return None
    return say(
        "compare.faster-by-rate.reason.at_times",
        slow=slow.label,
        fast=fast.label,
        fastest_ms=fastest,
        median_ms=slow.analysis.steady_ms or 0.0,
    )


def _inferred_devices_claims(first: ComparedRun, other: ComparedRun) -> list[Claim]:
    """Tokens are of all devices and MFU is of one: together they say how many there are."""
    claims = []
    for run in (first, other):
        if run.devices > device_count(run.log):
            sentence = say(
                "compare.several-devices",
                run=run.label,
                devices=run.devices,
                mfu=run.device_mfu or 0.0,
                rate=(run.analysis.achieved_tflops or 0.0) * 1e12,
            )
            claims.append(Claim("several-devices", (run.label,), sentence))
    return claims


def _different_peak_claims(first: ComparedRun, other: ComparedRun) -> list[Claim]:
    """MFUs of different peaks are not compared."""
    if first.mfu is None or other.mfu is None or first.shares_peak_with(other):
        return []
    peaks = [run.peak.flops if run.peak else 0.0 for run in (first, other)]
    sentence = say(
        "compare.mfu-not-comparable", a=first.label, b=other.label, a_peak=peaks[0], b_peak=peaks[1]
    )
    return [Claim("mfu-not-comparable", (first.label, other.label), sentence)]


def _mfu_is_not_speed_claims(fast: ComparedRun, slow: ComparedRun) -> list[Claim]:
    """The slower run may have the higher MFU."""
    rate = safe_ratio(slow.analysis.achieved_tflops, fast.analysis.achieved_tflops)
    cost = safe_ratio(slow.analysis.size.flops_per_token, fast.analysis.size.flops_per_token)
    if rate is None or cost is None or rate < 1 + _EQUAL_SPEED_TOLERANCE or not fast.shares_peak_with(slow):
        return []
    sentence = say("compare.mfu-is-not-speed", slow=slow.label, rate=rate, cost=cost)
    detail = None
    if fast.mfu and slow.mfu:
        values = {"fast": fast.label, "slow": slow.label, "fast_mfu": fast.mfu, "slow_mfu": slow.mfu}
        detail = say("compare.mfu-is-not-speed.reason.mfu", **values)
    return [Claim("mfu-is-not-speed", (slow.label, fast.label), sentence, make_text(detail))]


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
    if high_batch >= low_batch or high_width <= low_width or high.devices > 1 or low.devices > 1:
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
    shares = first.analysis.facts.pause_share, other.analysis.facts.pause_share
    if not first.is_whole or not other.is_whole:
        return []
    if shares[0] is None or shares[1] is None or abs(shares[0] - shares[1]) < _MIN_OVERHEAD_GAP:
        return []
    high, low = (first, other) if shares[0] > shares[1] else (other, first)
    sentence = say(
        "compare.overhead",
        high=high.label,
        low=low.label,
        high_share=max(shares[0], shares[1]),
        low_share=min(shares[0], shares[1]),
    )
    high_rate, low_rate = (
        safe_ratio(run.analysis.tokens_of_this_run, run.analysis.total_s) for run in (high, low)
    )
    detail = None
    if high_rate and low_rate:
        values = {"high": high.label, "low": low.label, "high_rate": high_rate, "low_rate": low_rate}
        detail = say("compare.overhead.reason.whole_run_rate", **values)
    return [Claim("overhead", (high.label, low.label), sentence, make_text(detail))]
