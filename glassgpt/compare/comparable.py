"""Whether two losses mean the same: the same text, cut into the same tokens, in the same measure.

Across tokenizers a loss per token says nothing, but one per byte of text does, where the logs say how many
bytes a token stands for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from glassgpt.compare.compared_run import ComparedRun
from glassgpt.compare.differences import dataset_name
from glassgpt.format import format_integer, format_loss
from glassgpt.i18n import say
from glassgpt.runs.run_log import RunLog

_MAX_INITIAL_LOSS_GAP = 1.5  # a vocabulary 4.5 times as large

ComparabilityLevel = Literal["same", "assumed", "bytes", "refused"]


@dataclass(frozen=True)
class Comparability:
    level: ComparabilityLevel
    reasons: tuple[str, ...]


def check_comparability(first: ComparedRun, other: ComparedRun) -> Comparability:
    """`bytes`: only as bits per byte. `assumed`: the logs do not say enough. `refused`: not at all."""
    text = _dataset_difference(first, other)
    if text:
        return Comparability("refused", (text,))
    unlike = [
        reason for reason in (_other_metric(first, other), _tokenizer_difference(first, other)) if reason
    ]
    if unlike and all(bits_per_byte(side, 1.0) is not None for side in (first, other)):
        return Comparability("bytes", tuple(unlike))
    if unlike:
        missing = say(
            "A loss per byte would compare, but not every log says how many bytes a token stands for."
        )
        return Comparability("refused", (*unlike, missing))
    doubt = _initial_loss_doubt(first, other)
    if doubt:
        return Comparability("refused", (doubt,))
    unsaid = _unsaid(first, other)
    return Comparability("assumed", tuple(unsaid)) if unsaid else Comparability("same", ())


def bits_per_byte(side: ComparedRun, value: float) -> float | None:
    """A validation loss of this run, per byte of text; None where the log does not say enough."""
    if side.log.val_metric == "bits_per_byte":
        return value
    length = side.log.setup.bytes_per_token
    return value / math.log(2) / length if length and length > 0 else None


def perplexity(side: ComparedRun, value: float) -> float | None:
    if side.log.val_metric != "loss" or value > 700:
        return None
    return math.exp(value)


def _dataset_difference(first: ComparedRun, other: ComparedRun) -> str | None:
    left, right = first.log, other.log
    hashes = [history.setup.data.get("hash") for history in (left, right)]
    names = [dataset_name(history) for history in (left, right)]
    if all(hashes) and hashes[0] == hashes[1]:
        return None
    if all(names) and names[0] != names[1]:
        return say(
            "The data differs: {a} is evaluated on {a_data}, {b} on {b_data}.",
            a=first.label,
            b=other.label,
            a_data=names[0],
            b_data=names[1],
        )
    if all(hashes) and not _tokenizer_difference(first, other):
        return say(
            "The data differs: the datasets of {a} and {b} have other contents.", a=first.label, b=other.label
        )
    return None


def _other_metric(first: ComparedRun, other: ComparedRun) -> str | None:
    if first.log.val_metric == other.log.val_metric:
        return None
    return say("One log gives losses per token, the other bits per byte.")


def stated_vocab_size(history: RunLog) -> int | None:
    said = history.setup.settings.get("vocab_size") or history.setup.data.get("vocab_size")
    return said if isinstance(said, int) and 1 < said < 10**15 else None


def _tokenizer_difference(first: ComparedRun, other: ComparedRun) -> str | None:
    sizes = [stated_vocab_size(side.log) for side in (first, other)]
    # GPT-2's 50257 ids are often padded to 50304: the same tokens.
    padded = {min(size, 50_257) if size and 50_257 <= size <= 50_432 else size for size in sizes}
    if all(sizes) and len(padded) > 1:
        return say(
            "The vocabularies differ: {a} has {a_size} tokens, {b} has {b_size}.",
            a=first.label,
            b=other.label,
            a_size=format_integer(sizes[0] or 0),
            b_size=format_integer(sizes[1] or 0),
        )
    names = [side.log.setup.data.get("tokenizer") for side in (first, other)]
    if all(names) and names[0] != names[1]:
        return say(
            "The tokenizers differ: {a} uses {a_name}, {b} uses {b_name}.",
            a=first.label,
            b=other.label,
            a_name=names[0],
            b_name=names[1],
        )
    return None


def _unsaid(first: ComparedRun, other: ComparedRun) -> list[str]:
    histories = (first.log, other.log)
    if all(history.setup.data.get("hash") for history in histories):
        return []
    reasons = []
    if not all(dataset_name(history) for history in histories):
        reasons.append(say("Not every log says what data it is about: assumed to be the same."))
    tokenized = [stated_vocab_size(history) or history.setup.data.get("tokenizer") for history in histories]
    named = {dataset_name(history) for history in histories}
    if not all(tokenized) and (len(named) > 1 or None in named):
        reasons.append(say("Not every log says what its vocabulary is: assumed to be the same."))
    return reasons


def _initial_loss_doubt(first: ComparedRun, other: ComparedRun) -> str | None:
    """An untrained model's loss is about ln V, so starts far apart come from different vocabularies."""
    if all(stated_vocab_size(side.log) for side in (first, other)):
        return None
    starts = [_untrained_loss(side) for side in (first, other)]
    if starts[0] is None or starts[1] is None or abs(starts[0] - starts[1]) < _MAX_INITIAL_LOSS_GAP:
        return None
    return say(
        "They begin at {a_loss} and {b_loss}, as models with different vocabularies do. If it is the same, "
        "--{a}.vocab_size and --{b}.vocab_size say so.",
        a=first.label.lower(),
        b=other.label.lower(),
        a_loss=format_loss(starts[0]),
        b_loss=format_loss(starts[1]),
    )


def _untrained_loss(side: ComparedRun) -> float | None:
    """The loss before or in the first iteration; None where the run goes on from what another learned."""
    if side.log.val_metric != "loss" or side.log.setup.settings.get("init_from", "scratch") != "scratch":
        return None
    done: Sequence[int] = side.curve.iterations.tolist() if len(side.curve) else []
    if done and done[0] == 0:
        return float(side.curve.losses[0])
    started = side.facts.first_iteration in (0, 1)
    value = side.facts.loss_first
    return value if started and value is not None and math.isfinite(value) else None
