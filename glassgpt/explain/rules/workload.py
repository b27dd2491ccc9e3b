"""How much work an iteration is, by the log's own speed: hidden micro-steps, devices, parameters.

Only for MFU that counts 6 x (parameters without positions) + 12 x layers x width x context FLOP per
token, the tokens of one device, against a fixed peak.
"""

from __future__ import annotations

import math
from typing import Any

from glassgpt.estimate import flops
from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.explain.step_flops import DeviceThroughput
from glassgpt.format import format_count, format_flops_per_s, format_ms, format_percent, format_percent_value
from glassgpt.i18n import say
from glassgpt.runs.inference import attention_flops, parameters_from_flops, stated_peak_flops
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import positive_int_setting

INTEGER_TOLERANCE = 0.03  # of an integer
MIN_PARAMETER_MISMATCH = 0.07
GPT2_VOCAB_SIZES = (50304, 50257)  # padded to a multiple of 64, and not


def stated_parameters(history: RunLog) -> int | None:
    """Without positions, as the log says it or as the shape it states has it."""
    setup, settings = history.setup, history.setup.settings
    if setup.parameters:
        return setup.parameters
    shape = {
        name: positive_int_setting(history, name)
        for name in ("n_layer", "n_embd", "block_size", "vocab_size")
    }
    if setup.trained_parameters and shape["block_size"] and shape["n_embd"]:
        return setup.trained_parameters - shape["block_size"] * shape["n_embd"]
    if None in shape.values():
        return None
    known: dict[str, Any] = {name: size for name, size in shape.items() if size is not None}
    return flops.count_parameters(**known, arch="gpt2", bias=settings.get("bias") is True, positions=False)


def _stated_flops(history: RunLog) -> float | None:
    parameters, attention = stated_parameters(history), attention_flops(history)
    return 6 * parameters + attention if parameters and attention else None


def _nearest_multiple(ratio: float) -> int | None:
    """The integer from 2 on that this is, within what rounding allows."""
    if not (math.isfinite(ratio) and ratio > 1.5):
        return None
    nearest = round(ratio)
    return nearest if abs(ratio / nearest - 1) <= INTEGER_TOLERANCE else None


def hidden_accumulation(case: RunAnalysis) -> Finding | None:
    """The MFU counts the tokens that one device really works on. Do they fit what the log says?"""
    work, per_token = case.throughput, _stated_flops(case.log)
    if work is None or not per_token:
        return None
    done = work.flops / per_token  # tokens
    stated = case.facts.tokens_per_iteration
    if stated and (devices := _nearest_multiple(stated / done)):
        return (
            None
            if case.log.setup.world_size == devices
            else _several_devices_finding(case, work, done, stated, devices)
        )
    if stated and (more := _nearest_multiple(done / stated)):
        return _extra_work_finding(work, done, stated, more)
    return _unstated_micro_steps(case, work, done)


def _tokens_evidence(work: DeviceThroughput, done: float, stated: int) -> str:
    return say(
        "{mfu} MFU is {rate}, which makes {done} tokens per iteration; the log says {stated}.",
        mfu=format_percent_value(work.mfu_percent),
        rate=format_flops_per_s(work.flops_per_s),
        done=f"{done:,.0f}",
        stated=f"{stated:,}",
    )


def _several_devices_finding(
    case: RunAnalysis, work: DeviceThroughput, done: float, stated: int, devices: int
) -> Finding:
    return Finding(
        "hidden-accumulation",
        "info",
        say("The MFU is that of one of {devices} devices", devices=devices),
        _tokens_evidence(work, done, stated),
        say(
            "An iteration's tokens are shared by {devices} devices, and {trainer}'s MFU counts the part of "
            "one. All of them together do {rate}.",
            trainer=case.log.trainer.name,
            devices=devices,
            rate=format_flops_per_s(work.flops_per_s * devices),
        ),
        "",
    )


def _extra_work_finding(work: DeviceThroughput, done: float, stated: int, more: int) -> Finding:
    return Finding(
        "hidden-accumulation",
        "warning",
        say("An iteration does {more} times the work that the log says", more=more),
        _tokens_evidence(work, done, stated),
        say(
            "Iteration time and MFU fit together only if an iteration is {more} times as many tokens: it "
            "accumulates more micro-steps than stated, or the MFU counts them wrong.",
            more=more,
        ),
        say(
            "Check gradient_accumulation_steps and batch_size; tokens/s and tokens seen may be {more} "
            "times as many.",
            more=more,
        ),
    )


def _unstated_micro_steps(case: RunAnalysis, work: DeviceThroughput, done: float) -> Finding | None:
    """batch_size and block_size are known, gradient_accumulation_steps is not."""
    batch, context = (
        positive_int_setting(case.log, "batch_size"),
        positive_int_setting(case.log, "block_size"),
    )
    if not batch or not context or "gradient_accumulation_steps" in case.log.setup.settings:
        return None
    steps = _nearest_multiple(done / (batch * context))
    if steps is None:
        return None
    return Finding(
        "hidden-accumulation",
        "info",
        say("An iteration is {steps} micro-steps", steps=steps),
        say(
            "{mfu} MFU is {rate}, which makes {done} tokens per iteration; batch_size x block_size is {one}.",
            mfu=format_percent_value(work.mfu_percent),
            rate=format_flops_per_s(work.flops_per_s),
            done=f"{done:,.0f}",
            one=f"{batch * context:,}",
        ),
        say(
            "gradient_accumulation_steps is not in the log; times and MFU fit {steps}. A micro-step takes "
            "{time}.",
            steps=steps,
            time=format_ms((case.facts.steady_ms or math.nan) / steps),
        ),
        "",
    )


def parameters_inferred(case: RunAnalysis) -> Finding | None:
    """FLOPs per token back from MFU and time, and the parameters from those."""
    work, tokens = case.throughput, case.facts.tokens_per_iteration
    if work is None or not tokens:
        return None
    per_token = work.flops * (case.log.setup.world_size or 1) / tokens
    stated, inferred = stated_parameters(case.log), parameters_from_flops(per_token, case.log)
    expected = _stated_flops(case.log)
    if expected and (_nearest_multiple(per_token / expected) or _nearest_multiple(expected / per_token)):
        return None  # hidden micro-steps or devices; nothing about the size
    evidence = say(
        "{mfu} of {peak} is {rate}; with {tokens} tokens in {time} that is {flops} FLOP per token.",
        mfu=format_percent_value(work.mfu_percent),
        peak=format_flops_per_s(stated_peak_flops(case.log) or math.nan),
        rate=format_flops_per_s(work.flops_per_s),
        tokens=f"{tokens:,}",
        time=format_ms(case.facts.steady_ms or math.nan),
        flops=format_count(per_token),
    )
    if inferred is None:
        return _upper_bound_finding(stated, round(per_token / 6), evidence)
    if stated is None:
        return _unstated(case.log, inferred, evidence)
    # Attention is part of what was measured, so its share makes the rest less certain.
    uncertain = work.relative_error * per_token / (6 * inferred)
    if abs(inferred / stated - 1) <= max(MIN_PARAMETER_MISMATCH, 2 * uncertain):
        return None
    return _mismatch_finding(case.log, inferred, stated, evidence)


def _upper_bound_finding(stated: int | None, most: int, evidence: str) -> Finding | None:
    """Without the shape, attention's part is not known: all of it may be parameters."""
    if stated is not None:
        return None  # less than it says would be the part of one of several devices; nothing tells
    return Finding(
        "parameters-inferred",
        "info",
        say("The model has at most {most} parameters, by its speed", most=format_count(most)),
        evidence,
        say("6 FLOP per parameter and token; attention takes some of it. This holds for one device."),
        "",
    )


def _size_explanation(history: RunLog, inferred: int) -> str:
    how = say(
        "Attention takes 12 x layers x width x context = {attention} FLOP of it; the rest is 6 per "
        "parameter, positions not counted. This holds for one device.",
        attention=format_count(attention_flops(history) or 0),
    )
    layers, width, context = (
        positive_int_setting(history, name) for name in ("n_layer", "n_embd", "block_size")
    )
    if not (layers and width and context):
        return how
    told = positive_int_setting(history, "vocab_size")
    for vocabulary in (told,) if told else GPT2_VOCAB_SIZES:
        size = flops.count_parameters(
            n_layer=layers,
            n_embd=width,
            block_size=context,
            vocab_size=vocabulary,
            arch="gpt2",
            bias=False,
            positions=False,
        )
        if abs(size / inferred - 1) <= INTEGER_TOLERANCE:
            return f"{how} " + say(
                "{layers} layers of width {width} with {vocabulary} token ids have {size}, which agrees.",
                layers=layers,
                width=width,
                vocabulary=f"{vocabulary:,}",
                size=format_count(size),
            )
    return how


def _unstated(history: RunLog, inferred: int, evidence: str) -> Finding:
    return Finding(
        "parameters-inferred",
        "info",
        say("The model has about {inferred} parameters, by its speed", inferred=format_count(inferred)),
        evidence,
        _size_explanation(history, inferred),
        "",
    )


def _mismatch_finding(history: RunLog, inferred: int, stated: int, evidence: str) -> Finding:
    return Finding(
        "parameters-inferred",
        "warning",
        say(
            "By its speed the model has {inferred} parameters, not {stated}",
            inferred=format_count(inferred),
            stated=format_count(stated),
        ),
        evidence,
        _size_explanation(history, inferred),
        say(
            "Check the stated size; figures that build on it are off by {share}.",
            share=format_percent(abs(stated / inferred - 1)),
        ),
    )
