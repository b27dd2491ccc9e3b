"""`glass eval` in the terminal, and as JSON: losses with intervals, and the comparison of two models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from glassgpt.i18n import translate
from glassgpt.sample.eval_texts import ModelOnTexts
from glassgpt.sample.text_loss import CONFIDENCE, MIN_BLOCKS, Estimate, LossComparison, TextLoss
from glassgpt.show.terminal.text_lines import print_line, terminal_text


def print_evaluation(
    evaluated: Sequence[ModelOnTexts], comparison: LossComparison | None, out: Console
) -> None:
    for number, model in enumerate(evaluated):
        if len(evaluated) > 1:
            heading = _model_name(model)
            out.print(Text(terminal_text(f"\n{heading}" if number else heading), style="bold"))
        for result in model.results:
            _print_result(result, model, out)
    if comparison is not None:
        out.print()
        _print_comparison(comparison, [_model_name(model) for model in evaluated], out)


def _print_result(result: TextLoss, model: ModelOnTexts, out: Console) -> None:
    print_line(out, translate("eval.label.text"), result.name or translate("eval.text.all"), "bold")
    if result.bytes is None:
        size = translate("eval.size.tokens", tokens=result.tokens)
    else:
        size = translate("eval.size", tokens=result.tokens, bytes=result.bytes)
    windows = translate("eval.windows", context=model.context, stride=model.stride)
    print_line(out, translate("eval.label.size"), f"{size}; {windows}")
    print_line(out, translate("eval.label.loss"), _with_interval(result.loss, 4))
    print_line(out, translate("eval.label.perplexity"), _with_interval(result.perplexity, 2))
    if result.bits_per_byte is not None:
        print_line(out, translate("eval.label.bits_per_byte"), _with_interval(result.bits_per_byte, 4))
    if result.loss.low is None:
        note = translate("eval.too_short", blocks=result.blocks, context=model.context, needed=MIN_BLOCKS)
        print_line(out, "", note, "dim")


def _with_interval(estimate: Estimate, decimals: int) -> str:
    """A value, and its interval if it has one."""
    value = f"{estimate.value:.{decimals}f}"
    if estimate.low is None or estimate.high is None:
        return value
    low, high = f"{estimate.low:.{decimals}f}", f"{estimate.high:.{decimals}f}"
    interval = translate("eval.interval", confidence=CONFIDENCE, low=low, high=high)
    return f"{value}   {interval}"


def _print_comparison(comparison: LossComparison, names: Sequence[str], out: Console) -> None:
    bits, difference = comparison.bits_per_byte, comparison.difference
    label = translate("eval.label.difference")
    measured = translate(
        "eval.difference", first=bits[0], other=bits[1], bytes=comparison.bytes, pieces=comparison.blocks
    )
    print_line(out, label, _with_interval(difference, 4))
    print_line(out, "", measured)
    if difference.low is None:
        verdict = translate("eval.verdict.too_short", pieces=comparison.blocks, needed=MIN_BLOCKS)
    elif comparison.better is None:
        verdict = translate("eval.verdict.noise")
    else:
        better = comparison.better
        verdict = translate(
            "eval.verdict.real", better=names[better], share=1 - bits[better] / bits[1 - better]
        )
    print_line(out, translate("eval.label.verdict"), verdict)


def _model_name(model: ModelOnTexts) -> str:
    return model.sampler.checkpoint.description


# --- JSON ---


def as_document(evaluated: Sequence[ModelOnTexts], comparison: LossComparison | None) -> dict[str, Any]:
    """What --json prints. A number that is not finite is null."""
    document: dict[str, Any] = {"models": [_model_document(model) for model in evaluated], "comparison": None}
    if comparison is not None:
        document["comparison"] = {
            "bytes": comparison.bytes,
            "pieces": comparison.blocks,
            "bits_per_byte": [_finite(value) for value in comparison.bits_per_byte],
            "difference": _estimate_document(comparison.difference),
            "better": None if comparison.better is None else _model_name(evaluated[comparison.better]),
        }
    return document


def _model_document(model: ModelOnTexts) -> dict[str, Any]:
    return {
        "model": _model_name(model),
        "tokenizer": model.sampler.tokenizer.name,
        "context": model.context,
        "stride": model.stride,
        "texts": [
            {
                "name": result.name or None,
                "tokens": result.tokens,
                "bytes": result.bytes,
                "blocks": result.blocks,
                "loss": _estimate_document(result.loss),
                "perplexity": _estimate_document(result.perplexity),
                "bits_per_byte": result.bits_per_byte and _estimate_document(result.bits_per_byte),
            }
            for result in model.results
        ],
    }


def _estimate_document(estimate: Estimate) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in asdict(estimate).items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
