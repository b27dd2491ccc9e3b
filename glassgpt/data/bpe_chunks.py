"""Where a stream of text may be cut so that a byte-pair tokenizer does not notice.

GPT-2's word pattern always ends a word before a blank that is followed by a non-blank: that blank either
begins the next word (" the") or stands alone ("\\n"), and blanks before it are a word of their own.
A cut just after a newline, which looks safer, is not: "\\n\\n" is one word at the end of a text, and two
before a letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# Rust's whitespace, which the BPE word pattern sees: Python's \s has four control characters more.
_WHITESPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_UP_TO_LAST_BOUNDARY = re.compile(rf".*(?=[{_WHITESPACE}][^{_WHITESPACE}])", re.DOTALL)
# The look-behind keeps this linear: without it a long run would be tried again from each of its blanks.
_LONG_WHITESPACE = re.compile(
    rf"(?<![{_WHITESPACE}])[{_WHITESPACE}]{{10000,}}(?=[{_WHITESPACE}][^{_WHITESPACE}])"
)
_MAX_UNSPLIT_CHARS = 2**24
# Learning takes the square of a word's length: a genome, or an image in base64, would never end.
_MAX_TRAINING_WORD_CHARS = 1000
_LONG_WORD = re.compile(
    rf"[^{_WHITESPACE}]{{{_MAX_TRAINING_WORD_CHARS + 1},}}|[{_WHITESPACE}]{{{_MAX_TRAINING_WORD_CHARS + 1},}}"
)
# The tokenizers library gathers 256 pieces before it counts words: small pieces keep its memory small.
_TRAINING_CHUNK_CHARS = 2**16


def split_at_bpe_boundaries(chunks: Iterable[str], longest_uncut: int = _MAX_UNSPLIT_CHARS) -> Iterator[str]:
    """Re-cut a stream of text so that encoding the pieces one by one equals encoding it whole.

    Text without a seam for longer than `longest_uncut` is cut anywhere, rather than fill the memory.
    """
    pending = ""
    for chunk in chunks:
        pending += chunk
        match = _UP_TO_LAST_BOUNDARY.match(pending)
        cut = match.end() if match else 0
        if len(pending) - cut > longest_uncut:
            cut = len(pending)
        if cut:
            yield pending[:cut]
            pending = pending[cut:]
    if pending:
        yield pending


def split_for_bpe_training(chunks: Iterable[str]) -> Iterator[str]:
    """A text in small pieces to learn a vocabulary from: its words, the very long ones in parts."""
    small = (
        chunk[i : i + _TRAINING_CHUNK_CHARS]
        for chunk in chunks
        for i in range(0, len(chunk), _TRAINING_CHUNK_CHARS)
    )
    for text in split_at_bpe_boundaries(small, _TRAINING_CHUNK_CHARS):
        start = 0
        for match in _LONG_WORD.finditer(text):
            yield text[start : match.start()]
            for begin in range(match.start(), match.end(), _MAX_TRAINING_WORD_CHARS):
                yield text[begin : min(begin + _MAX_TRAINING_WORD_CHARS, match.end())]
            start = match.end()
        yield text[start:]


def split_after_long_whitespace(text: str) -> Iterator[str]:
    """Cut after very long runs of blanks, where tiktoken's regular expression runs out of stack."""
    start = 0
    for match in _LONG_WHITESPACE.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def has_long_whitespace(text: str) -> bool:
    return _LONG_WHITESPACE.search(text) is not None
