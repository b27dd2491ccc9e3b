"""Whether two losses mean the same: the same text, cut into the same tokens, in the same measure.

Across tokenizers a loss per token says nothing, but one per byte of text does, where the logs say how many
bytes a token stands for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from glassgpt.compare.compared_run import Side
from glassgpt.compare.differences import dataset_name
from glassgpt.format import loss, whole
from glassgpt.i18n import say
from glassgpt.runs.run_log import History

_UNLIKE_STARTS = 1.5  # a vocabulary 4.5 times as large

How = Literal["same", "assumed", "bytes", "refused"]


@dataclass(frozen=True)
class Comparability:
    how: How
    reasons: tuple[str, ...]


def comparable(first: Side, other: Side) -> Comparability:
    """`bytes`: only as bits per byte. `assumed`: the logs do not say enough. `refused`: not at all."""
    text = _other_text(first, other)
    if text:
        return Comparability("refused", (text,))
    unlike = [reason for reason in (_other_metric(first, other), _other_tokens(first, other)) if reason]
    if unlike and all(bits_per_byte(side, 1.0) is not None for side in (first, other)):
        return Comparability("bytes", tuple(unlike))
    if unlike:
        missing = say(
            "A loss per byte would compare, but not every log says how many bytes a token stands for."
        )
        return Comparability("refused", (*unlike, missing))
    doubt = _unlike_starts(first, other)
    if doubt:
        return Comparability("refused", (doubt,))
    unsaid = _unsaid(first, other)
    return Comparability("assumed", tuple(unsaid)) if unsaid else Comparability("same", ())


def bits_per_byte(side: Side, value: float) -> float | None:
    """A validation loss of this run, per byte of text; None where the log does not say enough."""
    if side.history.val_metric == "bits_per_byte":
        return value
    length = side.history.setup.bytes_per_token
    return value / math.log(2) / length if length and length > 0 else None


def perplexity(side: Side, value: float) -> float | None:
    if side.history.val_metric != "loss" or value > 700:
        return None
    return math.exp(value)


def _other_text(first: Side, other: Side) -> str | None:
    left, right = first.history, other.history
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
    if all(hashes) and not _other_tokens(first, other):
        return say(
            "The data differs: the datasets of {a} and {b} have other contents.", a=first.label, b=other.label
        )
    return None


def _other_metric(first: Side, other: Side) -> str | None:
    if first.history.val_metric == other.history.val_metric:
        return None
    return say("One log gives losses per token, the other bits per byte.")


def vocabulary(history: History) -> int | None:
    said = history.setup.settings.get("vocab_size") or history.setup.data.get("vocab_size")
    return said if isinstance(said, int) and 1 < said < 10**15 else None


def _other_tokens(first: Side, other: Side) -> str | None:
    sizes = [vocabulary(side.history) for side in (first, other)]
    # GPT-2's 50257 ids are often padded to 50304: the same tokens.
    padded = {min(size, 50_257) if size and 50_257 <= size <= 50_432 else size for size in sizes}
    if all(sizes) and len(padded) > 1:
        return say(
            "The vocabularies differ: {a} has {a_size} tokens, {b} has {b_size}.",
            a=first.label,
            b=other.label,
            a_size=whole(sizes[0] or 0),
            b_size=whole(sizes[1] or 0),
        )
    names = [side.history.setup.data.get("tokenizer") for side in (first, other)]
    if all(names) and names[0] != names[1]:
        return say(
            "The tokenizers differ: {a} uses {a_name}, {b} uses {b_name}.",
            a=first.label,
            b=other.label,
            a_name=names[0],
            b_name=names[1],
        )
    return None


def _unsaid(first: Side, other: Side) -> list[str]:
    histories = (first.history, other.history)
    if all(history.setup.data.get("hash") for history in histories):
        return []
    reasons = []
    if not all(dataset_name(history) for history in histories):
        reasons.append(say("Not every log says what data it is about: assumed to be the same."))
    tokenized = [vocabulary(history) or history.setup.data.get("tokenizer") for history in histories]
    named = {dataset_name(history) for history in histories}
    if not all(tokenized) and (len(named) > 1 or None in named):
        reasons.append(say("Not every log says what its vocabulary is: assumed to be the same."))
    return reasons


def _unlike_starts(first: Side, other: Side) -> str | None:
    """An untrained model's loss is about ln V, so starts far apart come from different vocabularies."""
    if all(vocabulary(side.history) for side in (first, other)):
        return None
    starts = [_untrained_loss(side) for side in (first, other)]
    if starts[0] is None or starts[1] is None or abs(starts[0] - starts[1]) < _UNLIKE_STARTS:
        return None
    return say(
        "They begin at {a_loss} and {b_loss}, as models with different vocabularies do. If it is the same, "
        "--{a}.vocab_size and --{b}.vocab_size say so.",
        a=first.label.lower(),
        b=other.label.lower(),
        a_loss=loss(starts[0]),
        b_loss=loss(starts[1]),
    )


def _untrained_loss(side: Side) -> float | None:
    """The loss before or in the first iteration; None where the run goes on from what another learned."""
    if (
        side.history.val_metric != "loss"
        or side.history.setup.settings.get("init_from", "scratch") != "scratch"
    ):
        return None
    done: Sequence[int] = side.progress.iterations.tolist() if len(side.progress) else []
    if done and done[0] == 0:
        return float(side.progress.losses[0])
    started = side.facts.first_iteration in (0, 1)
    value = side.facts.loss_first
    return value if started and value is not None and math.isfinite(value) else None
