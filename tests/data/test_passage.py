"""The passage of a run: which window it begins, and its pieces."""

from __future__ import annotations

import numpy as np

from glassgpt.data.passage import passage_window, piece_texts
from glassgpt.data.tokenizers import ByteTokenizer


def test_it_follows_a_line_end_past_a_tenth_of_the_windows() -> None:
    text = np.frombuffer((b"x" * 9 + b"\n") * 20, dtype=np.uint8)
    starts = np.arange(0, 190, 7)  # 9, 19, … are line ends: 49 is the first that is a start
    assert starts[passage_window(text, starts, ByteTokenizer())] == 49
    # Else one before the tenth; else one that follows a blank; else the one at a tenth.
    assert passage_window(text, np.array([9, *range(0, 190, 10)]), ByteTokenizer()) == 0
    blank = np.frombuffer(b"x" * 55 + b" " + b"x" * 60, dtype=np.uint8)
    assert passage_window(blank, np.arange(0, 100, 5), ByteTokenizer()) == 11
    assert passage_window(text, np.arange(0, 200, 10), ByteTokenizer()) == 2
    assert passage_window(text, np.array([0]), ByteTokenizer()) == 0


def test_a_character_of_several_tokens_stands_with_the_last() -> None:
    tokens = list("aक!".encode())
    assert piece_texts(ByteTokenizer(), tokens) == ["a", "", "", "क", "!"]
    assert piece_texts(ByteTokenizer(), tokens[:2]) == ["a", "�"]
