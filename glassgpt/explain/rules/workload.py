"""How much work an iteration is, by the log's own speed: hidden micro-steps, devices, parameters.

Only for an MFU that counts 6 x (parameters without positions) + 12 x layers x width x context FLOP per
token, the tokens of one device, against a fixed peak.
"""

from __future__ import annotations

import math

from glassgpt.estimate import flops
from glassgpt.format import format_count, format_flops_per_s, format_ms, format_percent, format_percent_value
from glassgpt.i18n import say
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.inference import (
    attention_flops,
    device_count,
    flops_from_parameters,
    nearest_multiple,
    parameters_from_flops,
    stated_parameters,
    stated_peak_flops,
)
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import positive_int_setting

MAX_SHAPE_DEVIATION = 0.03  # parameters of the stated shape over inferred ones: then they agree
GPT2_VOCAB_SIZES = (50304, 50257)  # padded to a multiple of 64, and not


def hidden_accumulation(analysis: Analysis) -> Finding | None:
    """The MFU implies the tokens that one device works on; they are a multiple or a part of those stated."""
    run_log, throughput = analysis.log, analysis.throughput
    flops_per_token = flops_from_parameters(stated_parameters(run_log), run_log)
    if throughput is None or not flops_per_token:
        return None
    tokens, stated_tokens = throughput.flops / flops_per_token, analysis.facts.tokens_per_iteration
    values = {
        "mfu": format_percent_value(throughput.mfu_percent),
        "rate": format_flops_per_s(throughput.flops_per_s),
        "done": f"{tokens:,.0f}",
    }
    if stated_tokens:
        evidence = say(
            "{mfu} MFU is {rate}, which implies {done} tokens per iteration; the log says {stated}.",
            stated=f"{stated_tokens:,}",
            **values,
        )
        if devices := nearest_multiple(stated_tokens / tokens):
            if run_log.setup.world_size == devices:
                return None
            return Finding(
                "hidden-accumulation",
                "info",
                say("The MFU is that of one of {devices} devices", devices=devices),
                evidence,
                say(
                    "An iteration's tokens are split over {devices} devices, and {trainer}'s MFU counts the "
                    "share of one. All of them together reach {rate}.",
                    trainer=run_log.trainer.name,
                    devices=devices,
                    rate=format_flops_per_s(throughput.flops_per_s * devices),
                ),
                "",
            )
        if more := nearest_multiple(tokens / stated_tokens):
            return Finding(
                "hidden-accumulation",
                "warning",
                say("An iteration does {more} times as much work as the log states", more=more),
                evidence,
                say(
                    "Iteration time and MFU agree only if an iteration has {more} times as many tokens: it "
                    "accumulates more micro-steps than stated, or the MFU counts them wrongly.",
                    more=more,
                ),
                say(
                    "Check gradient_accumulation_steps and batch_size; tokens/s and tokens seen may be "
                    "{more} times as many.",
                    more=more,
                ),
            )
    return _unstated_micro_steps(analysis, tokens, values)


def _unstated_micro_steps(analysis: Analysis, tokens: float, values: dict[str, str]) -> Finding | None:
    """batch_size and block_size are in the log, gradient_accumulation_steps is not."""
    run_log = analysis.log
    batch, context = positive_int_setting(run_log, "batch_size"), positive_int_setting(run_log, "block_size")
    if not batch or not context or "gradient_accumulation_steps" in run_log.setup.settings:
        return None
    micro_steps = nearest_multiple(tokens / (batch * context))
    if micro_steps is None:
        return None
    return Finding(
        "hidden-accumulation",
        "info",
        say("An iteration is {steps} micro-steps", steps=micro_steps),
        say(
            "{mfu} MFU is {rate}, which implies {done} tokens per iteration; batch_size x block_size is "
            "{one}.",
            one=f"{batch * context:,}",
            **values,
        ),
        say(
            "gradient_accumulation_steps is not in the log; times and MFU fit {steps}. A micro-step takes "
            "{time}.",
            steps=micro_steps,
            time=format_ms((analysis.facts.steady_ms or math.nan) / micro_steps),
        ),
        "",
    )


def parameters_inferred(analysis: Analysis) -> Finding | None:
    """The parameters that MFU and step time imply: where the log states none, or others."""
    run_log, throughput, tokens = analysis.log, analysis.throughput, analysis.facts.tokens_per_iteration
    if throughput is None or not tokens:
        return None
    flops_per_token = throughput.flops * device_count(run_log) / tokens
    stated, inferred = stated_parameters(run_log), parameters_from_flops(flops_per_token, run_log)
    if stated is not None and not analysis.size.is_contradicted:
        return None
    evidence = say(
        "{mfu} of {peak} is {rate}; with {tokens} tokens in {time} that is {flops} FLOP per token.",
        mfu=format_percent_value(throughput.mfu_percent),
        peak=format_flops_per_s(stated_peak_flops(run_log) or math.nan),
        rate=format_flops_per_s(throughput.flops_per_s),
        tokens=f"{tokens:,}",
        time=format_ms(analysis.facts.steady_ms or math.nan),
        flops=format_count(flops_per_token),
    )
    if inferred is None:  # without the shape attention's part is not known: all of it may be parameters
        return Finding(
            "parameters-inferred",
            "info",
            say(
                "The speed implies at most {most} parameters",
                most=format_count(round(flops_per_token / 6)),
            ),
            evidence,
            say("6 FLOP per parameter and token; attention takes some of it. This assumes one device."),
            "",
        )
    if stated is None:
        return Finding(
            "parameters-inferred",
            "info",
            say("The speed implies about {inferred} parameters", inferred=format_count(inferred)),
            evidence,
            _size_explanation(run_log, inferred),
            "",
        )
    return Finding(
        "parameters-inferred",
        "warning",
        say(
            "The speed implies {inferred} parameters, not {stated}",
            inferred=format_count(inferred),
            stated=format_count(stated),
        ),
        evidence,
        _size_explanation(run_log, inferred),
        say(
            "Check the stated size; figures computed from it are off by {share}.",
            share=format_percent(abs(stated / inferred - 1)),
        ),
    )


def _size_explanation(run_log: RunLog, inferred: int) -> str:
    explanation = say(
        "Attention takes 12 x layers x width x context = {attention} FLOP of it; the rest is 6 per "
        "parameter, without position embeddings. This assumes one device.",
        attention=format_count(attention_flops(run_log) or 0),
    )
    n_layer, n_embd, block_size, stated_vocab_size = (
        positive_int_setting(run_log, name) for name in ("n_layer", "n_embd", "block_size", "vocab_size")
    )
    if not (n_layer and n_embd and block_size):
        return explanation
    for vocab_size in (stated_vocab_size,) if stated_vocab_size else GPT2_VOCAB_SIZES:
        parameters = flops.count_parameters(
            n_layer=n_layer,
            n_embd=n_embd,
            block_size=block_size,
            vocab_size=vocab_size,
            arch="gpt2",
            bias=False,
            positions=False,
        )
        if abs(parameters / inferred - 1) <= MAX_SHAPE_DEVIATION:
            return f"{explanation} " + say(
                "{layers} layers of width {width} with a vocabulary of {vocabulary} have {size} parameters, "
                "which agrees.",
                layers=n_layer,
                width=n_embd,
                vocabulary=f"{vocab_size:,}",
                size=format_count(parameters),
            )
    return explanation
