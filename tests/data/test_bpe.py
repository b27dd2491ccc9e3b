"""A text cut at BPE boundaries has the same words, and so the same ids, as the text in one piece."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_gpt2 import small_bpe, small_hf_tokenizer
from tokenizers import Tokenizer as Library

from glassgpt.data.bpe import (
    BytePairTokenizer,
    gpt2_tokenizer,
    split_at_bpe_boundaries,
    split_for_bpe_training,
    train_bpe,
)
from glassgpt.data.bpe_table import COMBINING_MARKS_PATTERN, GPT2_PATTERN

# Blanks of every kind that a word pattern may see differently, beside letters, digits and marks.
# And the marks and joiners that learned tokenizers keep in a word.
boundary_texts = st.text(
    "aZ1'.sé字अ\u093f\u094d\u0301\ufe0f\u200d🦊 \n\t\r\x0b\x1c\x1f\x85\xa0\u3000\u2028\u200b\ufeff\u180e",
    max_size=40,
)


@functools.cache
def pair_bpe(pattern: str) -> BytePairTokenizer:
    """Every two bytes are a token, so that nearly any change of a word's ends shows in the ids."""
    singles = [bytes([b]) for b in range(256)]
    tokens = singles + [first + second for first in singles for second in singles]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    return replace(gpt2_tokenizer(ranks), pattern=pattern)


@settings(max_examples=250, deadline=None)
@given(st.lists(boundary_texts, max_size=6))
@example(["a\n", "\nb", " ", "\n \n", "c  ", "d\n\n\n"])
@example(["a \x1c", "b"])
@example(["a\n \x85b"])
@example(["it", "'s ", "'s"])
def test_encoding_the_pieces_equals_encoding_the_whole(chunks: list[str]) -> None:
    pieces = list(split_at_bpe_boundaries(chunks))
    whole = "".join(chunks)
    assert "".join(pieces) == whole
    for pattern in (GPT2_PATTERN, COMBINING_MARKS_PATTERN):
        encode = pair_bpe(pattern).encode
        encoded = [encode(piece).tolist() for piece in pieces]
        assert list(itertools.chain(*encoded)) == encode(whole).tolist()
    # The library that learns a BPE must see the same words, too.
    assert list(itertools.chain(*map(words, pieces))) == words(whole)


@functools.cache
def learned() -> Library:
    return Library.from_str(train_bpe(["a"], 257).files["tokenizer.json"].decode())


def words(text: str) -> list[str]:
    splitter = learned().pre_tokenizer
    assert splitter is not None
    return [word for word, _ in splitter.pre_tokenize_str(text)]


def test_pieces_follow_the_stream_and_do_not_pile_up() -> None:
    chunks = ["word " * 200] * 50
    assert max(map(len, split_at_bpe_boundaries(chunks))) < 1100


def test_text_without_blanks_is_cut_all_the_same() -> None:
    pieces = list(split_at_bpe_boundaries(["x" * 30] * 20, longest_uncut=100))
    assert "".join(pieces) == "x" * 600
    assert max(map(len, pieces)) < 131


@pytest.mark.parametrize("blank", [" ", "\n", "\u3000"])
def test_a_million_blanks_are_encoded(blank: str) -> None:
    # tiktoken's own regular expression gives up on this text.
    text = "a" + blank * 1_000_000 + "b"
    ids = small_bpe().encode(text)
    assert small_bpe().decode(ids) == text
    # What a cut does to a long run is what the library does to it whole.
    shorter = "a" + blank * 20_000 + "b c"
    assert small_bpe().encode(shorter).tolist() == small_hf_tokenizer().encode(shorter).ids


@settings(max_examples=100, deadline=None)
@given(st.lists(boundary_texts, max_size=6))
def test_what_is_learned_from_has_the_same_words(chunks: list[str]) -> None:
    pieces = list(split_for_bpe_training(chunks))
    assert list(itertools.chain(*map(words, pieces))) == words("".join(chunks))


@pytest.mark.parametrize("filler", ["x", " ", "字"])
def test_no_piece_to_learn_from_has_an_endless_word(filler: str) -> None:
    # Learning takes the square of a word's length, and memory for the whole of a piece.
    text = "a b " + filler * 300_000 + " c d" + " word" * 100_000
    pieces = list(split_for_bpe_training([text]))
    assert "".join(pieces) == text
    assert max(len(word) for piece in pieces for word in words(piece)) <= 3 * 1001  # three bytes a letter
    assert max(map(len, pieces)) <= 2**17
