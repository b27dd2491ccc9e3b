"""Classes of tokens, to see what kind of text a model has learned: by kind, by frequency, by script.

    classes = token_classes(tokenizer, train_tokens)
    classes.kinds[False][token]      # index into KINDS: its kind where no letter stands before it

The kind of a token depends on the one before it for words only: a word begins after white space, punctuation
or a digit, and continues after a letter. Where the tokenizer is unknown there are frequencies alone.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.ngram_baselines import sample_blocks
from glassgpt.data.shards import TokenArray
from glassgpt.data.tokenizers import IdsTokenizer, Tokenizer

Classes = NDArray[np.int64]  # by token id

KINDS = ("line_end", "space", "digit", "punctuation", "word_start", "word_inside", "other")
# By training counts: tokens that make up the first half of the text, then up to 90%, 99%, and the rest.
FREQUENCIES = ("half", "to_90", "to_99", "rare", "unseen")
_FREQUENCY_BOUNDS = (0.5, 0.9, 0.99)
_COUNTED_TOKENS = 4_000_000  # evenly spaced ones of a longer split
_MAX_SCRIPTS = 6  # the others are `other`
_NO_SCRIPT, _OTHER_SCRIPT = "common", "other"


@dataclass(frozen=True)
class TokenClasses:
    frequency: Classes  # index into FREQUENCIES
    kinds: tuple[Classes, Classes] | None = None  # index into KINDS: without and with a letter before it
    ends_in_letter: NDArray[np.bool_] | None = None
    script: Classes | None = None  # index into `scripts`
    scripts: tuple[str, ...] = ()


def token_classes(tokenizer: Tokenizer, train: TokenArray) -> TokenClasses:
    vocab_size = tokenizer.vocab_size
    counts = np.bincount(np.concatenate(sample_blocks(train, _COUNTED_TOKENS)), minlength=vocab_size)
    frequency = _frequency_classes(counts)
    if isinstance(tokenizer, IdsTokenizer):
        return TokenClasses(frequency)
    texts = [_decode_whole(tokenizer.token_bytes(token)) for token in range(vocab_size)]
    if tokenizer.eot is not None:
        texts[tokenizer.eot] = None
    kinds = np.array([_kinds(text) for text in texts], dtype=np.int64).T
    names = [_script(text) for text in texts]
    weights: dict[str, int] = {}
    for name, count in zip(names, counts.tolist(), strict=False):  # a dataset may have fewer ids
        weights[name] = weights.get(name, 0) + count
    weights.pop(_OTHER_SCRIPT, None)
    common = sorted((name for name in weights if weights[name]), key=lambda name: -weights[name])
    scripts = (*common[:_MAX_SCRIPTS], _OTHER_SCRIPT)
    index = {name: number for number, name in enumerate(scripts)}
    return TokenClasses(
        frequency,
        kinds=(kinds[0], kinds[1]),
        ends_in_letter=np.array([text is not None and _is_letter(text[-1:] or " ") for text in texts]),
        script=np.array([index.get(name, len(scripts) - 1) for name in names], dtype=np.int64),
        scripts=scripts,
    )


def _decode_whole(content: bytes) -> str | None:
    """The text of a token; None: it is a part of a character."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_letter(char: str) -> bool:
    return unicodedata.category(char)[0] in "LM"  # vowel signs of Hindi and Arabic are marks


def _kinds(text: str | None) -> tuple[int, int]:
    """The kind where no letter stands before it, and where one does."""
    if not text:
        return KINDS.index("other"), KINDS.index("other")
    if "\n" in text or "\r" in text:
        kind = "line_end"
    elif text.isspace():
        kind = "space"
    elif any(unicodedata.category(char) == "Nd" for char in text):
        kind = "digit"
    elif any(map(_is_letter, text)):
        inside = "word_start" if text[0].isspace() else "word_inside"
        return KINDS.index("word_start"), KINDS.index(inside)
    elif all(char.isspace() or unicodedata.category(char)[0] in "PS" for char in text):
        kind = "punctuation"
    else:
        kind = "other"
    return KINDS.index(kind), KINDS.index(kind)


def _script(text: str | None) -> str:
    """The first word of the Unicode name of its first letter: latin, devanagari, arabic, cjk, …"""
    if not text:
        return _OTHER_SCRIPT
    letter = next(filter(_is_letter, text), None)
    if letter is None:
        return _NO_SCRIPT
    return unicodedata.name(letter, _OTHER_SCRIPT).split()[0].lower()


def _frequency_classes(counts: NDArray[np.int64]) -> Classes:
    order = np.argsort(-counts, kind="stable")
    share_before = np.cumsum(counts[order]) - counts[order]
    classes = np.empty(len(counts), dtype=np.int64)
    bounds = np.array(_FREQUENCY_BOUNDS) * counts.sum()
    classes[order] = np.searchsorted(bounds, share_before, side="right")
    return np.where(counts == 0, FREQUENCIES.index("unseen"), classes)
