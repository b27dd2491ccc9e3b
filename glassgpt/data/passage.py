"""The passage of a run: a piece of its validation text whose losses are kept, token by token.

    window = passage_window(val_tokens, evaluation_window_starts(...), tokenizer)
    piece_texts(tokenizer, tokens)        # the text of each token

It is the beginning of a window that every evaluation computes anyway, so its losses cost nothing. It is the
same at every evaluation of a run.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.shards import TokenArray
from glassgpt.data.tokenizers import Tokenizer

PASSAGE_TOKENS = 128  # or as many as the context has room for
PASSAGE_AT = 0.1  # of the validation split: not its first lines, which may be a title or a licence


def passage_window(tokens: TokenArray, starts: NDArray[np.int64], tokenizer: Tokenizer) -> int:
    """Index into `starts`: the first window past a tenth of them that follows a line end, else a blank."""
    first = int(PASSAGE_AT * len(starts))
    # The last one may be short. Those before the tenth come last.
    order = [*range(first, len(starts) - 1), *range(first)]
    before = [tokenizer.token_bytes(int(tokens[starts[index] : starts[index] + 1][0])) for index in order]
    line_ends = [index for index, content in zip(order, before, strict=True) if b"\n" in content]
    blanks = [index for index, content in zip(order, before, strict=True) if content.isspace()]
    return next(iter(line_ends + blanks), first)


def piece_texts(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """The text of each token. A character in several tokens is shown with the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    last = len(tokens) - 1
    return [
        decoder.decode(tokenizer.token_bytes(token), final=index == last)
        for index, token in enumerate(tokens)
    ]
