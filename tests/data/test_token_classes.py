"""Classes of tokens: each token in exactly one of every partition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from glassgpt.data.token_classes import FREQUENCIES, KINDS, TokenClasses, token_classes
from glassgpt.data.tokenizers import ByteTokenizer, CharTokenizer, IdsTokenizer


def kinds_of(classes: TokenClasses, tokens: list[int]) -> list[str]:
    """The kind of every token of a text but the first."""
    assert classes.kinds is not None
    assert classes.ends_in_letter is not None
    return [
        KINDS[classes.kinds[int(classes.ends_in_letter[before])][token]] for before, token in pairwise(tokens)
    ]


def test_kinds_of_characters_in_three_scripts() -> None:
    text = "A cat, 42 किताब; بيت\n"
    tokenizer = CharTokenizer("".join(sorted(set(text))))
    classes = token_classes(tokenizer, tokenizer.encode(text))
    kinds = kinds_of(classes, tokenizer.encode(text).tolist())
    assert kinds == [
        "space", "word_start", "word_inside", "word_inside", "punctuation",
        "space", "digit", "digit",
        "space", "word_start", "word_inside", "word_inside", "word_inside", "word_inside", "punctuation",
        "space", "word_start", "word_inside", "word_inside", "line_end",
    ]  # fmt: skip
    assert classes.script is not None
    scripts = {char: classes.scripts[classes.script[tokenizer.encode(char)[0]]] for char in "aकب4,"}
    assert scripts == {"a": "latin", "क": "devanagari", "ب": "arabic", "4": "common", ",": "common"}


def test_a_token_with_a_space_begins_a_word_after_a_letter_too() -> None:
    class Words(IdsTokenizer):
        def token_bytes(self, id: int) -> bytes:
            return (b"a", b" the", b"ing", b" ", b"\xe0\xa4", b"\n\n", b"3x", b"...")[id]

    tokenizer: object = Words(8, name="words")
    # Not an unknown tokenizer: only IdsTokenizer itself is.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glassgpt.data.token_classes.IdsTokenizer", type("Unknown", (), {}))
        classes = token_classes(tokenizer, np.arange(8))  # type: ignore[arg-type]
    assert kinds_of(classes, [0, 1, 2, 3, 2, 4, 5, 6, 7]) == [
        "word_start", "word_inside", "space", "word_start", "other", "line_end", "digit", "punctuation",
    ]  # fmt: skip


def test_frequencies_split_the_training_text() -> None:
    counts = [500, 300, 110, 50, 30, 9, 1, 0]
    train = np.repeat(np.arange(8), counts)
    classes = token_classes(IdsTokenizer(8), train)
    names = [FREQUENCIES[one] for one in classes.frequency]
    assert names == ["half", "to_90", "to_90", "to_99", "to_99", "rare", "rare", "unseen"]
    assert classes.kinds is None


def test_parts_of_characters_are_other() -> None:
    tokenizer = ByteTokenizer()
    classes = token_classes(tokenizer, np.frombuffer("नमस्ते".encode(), dtype=np.uint8))
    assert set(kinds_of(classes, tokenizer.encode("नमस्ते").tolist())) == {"other"}
