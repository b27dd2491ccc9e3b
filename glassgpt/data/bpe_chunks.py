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
_BLANK = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_UP_TO_LAST_CUT = re.compile(rf".*(?=[{_BLANK}][^{_BLANK}])", re.DOTALL)
# The look-behind keeps this linear: without it a long run would be tried again from each of its blanks.
_LONG_BLANK = re.compile(rf"(?<![{_BLANK}])[{_BLANK}]{{10000,}}(?=[{_BLANK}][^{_BLANK}])")
_LONGEST_UNCUT = 2**24
# Learning takes the square of a word's length: a genome, or an image in base64, would never end.
_LONGEST_LEARNED = 1000
_LONG_WORD = re.compile(rf"[^{_BLANK}]{{{_LONGEST_LEARNED + 1},}}|[{_BLANK}]{{{_LONGEST_LEARNED + 1},}}")
# The tokenizers library gathers 256 pieces before it counts words: small pieces keep its memory small.
_LEARNED_PIECE = 2**16


def cut_safely(chunks: Iterable[str], longest_uncut: int = _LONGEST_UNCUT) -> Iterator[str]:
    """Re-cut a stream of text so that encoding the pieces one by one equals encoding it whole.

    Text without a seam for longer than `longest_uncut` is cut anywhere, rather than fill the memory.
    """
    pending = ""
    for chunk in chunks:
        pending += chunk
        match = _UP_TO_LAST_CUT.match(pending)
        cut = match.end() if match else 0
        if len(pending) - cut > longest_uncut:
            cut = len(pending)
        if cut:
            yield pending[:cut]
            pending = pending[cut:]
    if pending:
        yield pending


def cut_for_learning(chunks: Iterable[str]) -> Iterator[str]:
    """A text in small pieces to learn a vocabulary from: its words, the very long ones in parts."""
    small = (chunk[i : i + _LEARNED_PIECE] for chunk in chunks for i in range(0, len(chunk), _LEARNED_PIECE))
    for text in cut_safely(small, _LEARNED_PIECE):
        start = 0
        for match in _LONG_WORD.finditer(text):
            yield text[start : match.start()]
            for begin in range(match.start(), match.end(), _LONGEST_LEARNED):
                yield text[begin : min(begin + _LONGEST_LEARNED, match.end())]
            start = match.end()
        yield text[start:]


def without_long_blanks(text: str) -> Iterator[str]:
    """Cut after very long runs of blanks, where tiktoken's regular expression runs out of stack."""
    start = 0
    for match in _LONG_BLANK.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def has_long_blanks(text: str) -> bool:
    return _LONG_BLANK.search(text) is not None
