"""How much work an iteration is, by the log's own speed: hidden micro-steps, devices, parameters.

Only for an MFU that counts 6 x (parameters without positions) + 12 x layers x width x context FLOP per
token, the tokens of one device, against a fixed peak.
"""

from __future__ import annotations

import math

from glassgpt.estimate import flops
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.model_size import (
    attention_flops,
    device_count,
    flops_from_parameters,
    known_device_count,
    mfu_unit_count,
    nearest_multiple,
    parameters_from_flops,
    replica_count,
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
    implied: dict[str, object] = {
        "mfu_percent": throughput.mfu_percent,
        "flops_per_s": throughput.flops_per_s,
        "implied_tokens": tokens,
    }
    if stated_tokens:
        evidence = say("hidden-accumulation.evidence.stated_tokens", stated_tokens=stated_tokens, **implied)
        devices = nearest_multiple(stated_tokens / tokens)
        if devices and devices > 1 and devices * replica_count(run_log) == device_count(run_log):
            return make_finding(
                "hidden-accumulation",
                "warning",
                title=say("hidden-accumulation.title.shared_tokens", devices=devices),
                evidence=evidence,
                explanation=say(
                    "hidden-accumulation.explanation.shared_tokens",
                    devices=device_count(run_log),
                    total_flops_per_s=throughput.flops_per_s * replica_count(run_log),
                    device_flops_per_s=throughput.flops_per_s
                    * replica_count(run_log)
                    / device_count(run_log),
                ),
                advice=say("hidden-accumulation.advice.shared_tokens", devices=devices),
            )
        if devices:
            if run_log.setup.world_size == devices:
                return None
            return make_finding(
                "hidden-accumulation",
                "info",
                title=say("hidden-accumulation.title.one_device", devices=devices),
                evidence=evidence,
                explanation=say(
                    "hidden-accumulation.explanation.one_device",
                    trainer=run_log.trainer.name,
                    devices=devices,
                    total_flops_per_s=throughput.flops_per_s * devices,
                ),
            )
        if ratio := nearest_multiple(tokens / stated_tokens):
            return make_finding(
                "hidden-accumulation",
                "warning",
                title=say("hidden-accumulation.title.more_work", token_ratio=ratio),
                evidence=evidence,
                explanation=say("hidden-accumulation.explanation.more_work", token_ratio=ratio),
                advice=say("hidden-accumulation.advice", token_ratio=ratio),
            )
    # batch_size and block_size may be in the log, and gradient_accumulation_steps not.
    batch, context = positive_int_setting(run_log, "batch_size"), positive_int_setting(run_log, "block_size")
    if not batch or not context or "gradient_accumulation_steps" in run_log.setup.settings:
        return None
    micro_steps = nearest_multiple(tokens / (batch * context))
    if micro_steps is None:
        return None
    return make_finding(
        "hidden-accumulation",
        "info",
        title=say("hidden-accumulation.title.micro_steps", micro_steps=micro_steps),
        evidence=say(
            "hidden-accumulation.evidence.batch_times_context", micro_batch_tokens=batch * context, **implied
        ),
        explanation=say(
            "hidden-accumulation.explanation.micro_steps",
            micro_steps=micro_steps,
            micro_step_ms=(analysis.facts.steady_ms or math.nan) / micro_steps,
        ),
    )


def parameters_inferred(analysis: Analysis) -> Finding | None:
    """The parameters that MFU and step time imply: where the log states none, or others."""
    run_log, throughput, tokens = analysis.log, analysis.throughput, analysis.facts.tokens_per_iteration
    if throughput is None or not tokens:
        return None
    flops_per_token = throughput.flops * mfu_unit_count(run_log) / tokens
    stated, inferred = stated_parameters(run_log), parameters_from_flops(flops_per_token, run_log)
    if stated is not None and not analysis.size.is_contradicted:
        return None
    steady_ms, peak = analysis.facts.steady_ms, stated_peak_flops(run_log)
    evidence = say(
        "parameters-inferred.evidence",
        mfu_percent=throughput.mfu_percent,
        peak_flops_per_s=peak,
        flops_per_s=throughput.flops_per_s,
        tokens_per_iteration=tokens,
        steady_ms=steady_ms,
        flops_per_token=flops_per_token,
    )
    claims = {"peak of the MFU": peak, "tokens per iteration": tokens, "steady ms": steady_ms}
    if inferred is None:  # without the shape attention's part is not known: all of it may be parameters
        most = round(flops_per_token / flops.FLOPS_PER_PARAMETER)
        return make_finding(
            "parameters-inferred",
            "info",
            title=say("parameters-inferred.title.at_most_on_one", max_parameters=most)
            if known_device_count(run_log) is None
            else say("parameters-inferred.title.at_most", max_parameters=most),
            evidence=evidence,
            explanation=say("parameters-inferred.explanation.at_most"),
            claims=claims,
        )
    if stated is None:
        title, advice = say("parameters-inferred.title.unstated", parameters=inferred), None
    else:
        title = say("parameters-inferred.title.contradicted", parameters=inferred, stated_parameters=stated)
        advice = say("parameters-inferred.advice", deviation=abs(stated / inferred - 1))
    return make_finding(
        "parameters-inferred",
        "info" if stated is None else "warning",
        title=title,
        evidence=evidence,
        explanation=[
            say(
                "parameters-inferred.explanation.attention_part",
                attention_flops=attention_flops(run_log),
            ),
            _agreeing_shape(run_log, inferred),
        ],
        advice=advice,
        claims={**claims, "parameters": inferred},
    )


def _agreeing_shape(run_log: RunLog, inferred: int) -> Message | None:
    """The stated shape, where it has about as many parameters as inferred."""
    n_layer, n_embd, block_size, stated_vocab_size = (
        positive_int_setting(run_log, name) for name in ("n_layer", "n_embd", "block_size", "vocab_size")
    )
    if not (n_layer and n_embd and block_size):
        return None
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
            return say(
                "parameters-inferred.explanation.shape_agrees",
                n_layer=n_layer,
                n_embd=n_embd,
                vocab_size=vocab_size,
                shape_parameters=parameters,
            )
    return None
