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


def cut_safely(chunks: Iterable[str]) -> Iterator[str]:
    """Re-cut a stream of text so that encoding the pieces one by one equals encoding it whole.

    Text without a seam for 16 million characters is cut anywhere, rather than fill the memory.
    """
    pending = ""
    for chunk in chunks:
        pending += chunk
        match = _UP_TO_LAST_CUT.match(pending)
        cut = match.end() if match else 0
        if len(pending) - cut > _LONGEST_UNCUT:
            cut = len(pending)
        if cut:
            yield pending[:cut]
            pending = pending[cut:]
    if pending:
        yield pending


def without_long_blanks(text: str) -> Iterator[str]:
    """Cut after very long runs of blanks, where tiktoken's regular expression runs out of stack."""
    start = 0
    for match in _LONG_BLANK.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def has_long_blanks(text: str) -> bool:
    return _LONG_BLANK.search(text) is not None
