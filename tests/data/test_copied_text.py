"""The longest copied string against a brute-force search; words in several scripts."""

from __future__ import annotations

import numpy as np
import pytest

from glassgpt.data import copied_text
from glassgpt.data.copied_text import (
    collapse_spaces,
    count_closed_brackets,
    find_words,
    known_share,
    longest_copied,
)


def brute_force(sample: list[int], blocks: list[list[int]]) -> int:
    """The length of the longest common substring, by the textbook's table."""
    best = 0
    for block in blocks:
        above = [0] * (len(block) + 1)
        for token in sample:
            row = [0] * (len(block) + 1)
            for index, other in enumerate(block):
                if token == other:
                    row[index + 1] = above[index] + 1
            best, above = max(best, *row), row
    return best


@pytest.mark.parametrize("chunk_tokens", [1, 7, 1 << 17])
def test_the_longest_string_is_that_of_a_slow_search(
    monkeypatch: pytest.MonkeyPatch, chunk_tokens: int
) -> None:
    monkeypatch.setattr(copied_text, "_CHUNK_TOKENS", chunk_tokens)
    generator = np.random.default_rng(0)
    for vocab_size in (1, 2, 3, 40):
        for sample_length in (1, 2, 17, 40):
            blocks = [generator.integers(0, vocab_size, length) for length in (60, 1, 33)]
            sample = generator.integers(0, vocab_size, sample_length)
            copied = longest_copied(sample, blocks)
            assert copied.length == brute_force(sample.tolist(), [block.tolist() for block in blocks])
            string = sample[copied.start : copied.start + copied.length].tolist()
            starts = [(block, at) for block in blocks for at in range(len(block))]
            assert not string or any(block[at : at + len(string)].tolist() == string for block, at in starts)


def test_a_planted_string_is_found_where_it_stands() -> None:
    generator = np.random.default_rng(1)
    train, sample = generator.integers(0, 50_000, 300_000), generator.integers(50_000, 60_000, 500)
    assert longest_copied(sample, [train]) == copied_text.Copied(0, 0)
    sample[200:273] = train[131_000:131_073]  # across the end of the first chunk
    assert longest_copied(sample, [train]) == copied_text.Copied(200, 73)
    assert longest_copied(train[5000:5500], [train]) == copied_text.Copied(0, 500)
    assert longest_copied(sample, []).length == longest_copied(sample[:0], [train]).length == 0


def test_runs_of_white_space_count_once() -> None:
    is_space = np.array([True, False, True])
    assert collapse_spaces(np.array([0, 0, 1, 2, 0, 1, 1, 2]), is_space).tolist() == [0, 1, 2, 1, 1, 2]
    assert collapse_spaces(np.array([], dtype=np.int64), is_space).tolist() == []


def test_words_keep_their_vowel_signs() -> None:
    assert find_words("self._x1 = कांच का, زُجاج!") == ["self", "x", "कांच", "का", "زُجاج"]
    assert known_share(["a", "b", "a", "c"], {"a"}) == 0.5
    assert known_share([], {"a"}) is None


def test_brackets_and_quotes_that_close() -> None:
    for text, counts in {
        "": (0, 0),
        "f(x[1])": (2, 2),
        "(a [b)": (2, 0),  # in order only
        ") ]": (0, 0),
        'he said "no" and "yes': (2, 1),
        '"no\n"yes"': (2, 1),  # a quote closes in its line
        "“क” «ب» don't": (2, 2),
        '("a")': (2, 2),
    }.items():
        assert count_closed_brackets(text) == counts, text
