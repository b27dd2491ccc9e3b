"""Text that cannot harm a terminal."""

from __future__ import annotations

import unicodedata
from typing import Any

# What isolates a number or a name in a text that is written from right to left.
_BIDI_CHARACTERS = (
    "\N{LEFT-TO-RIGHT ISOLATE}\N{FIRST STRONG ISOLATE}\N{POP DIRECTIONAL ISOLATE}\N{RIGHT-TO-LEFT MARK}"
)


def sanitize_text(text: str) -> str:
    """Without control characters, so that text from a file cannot move the cursor or hide anything."""
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_harmful(char) else char for char in text)


def sanitize_keeping_bidi(text: str) -> str:
    """The same for what the program says itself, whose marks of direction stay."""
    return "".join(char if char in _BIDI_CHARACTERS else sanitize_text(char) for char in text)


def sanitize_line(text: str) -> str:
    """A name on one line: a file can be called anything."""
    return sanitize_text(" ".join(text.split("\n")))


def sanitize_record(value: Any) -> Any:
    """All texts in a record that comes from a file."""
    if isinstance(value, str):
        return sanitize_text(value)
    if isinstance(value, dict):
        return {sanitize_text(str(name)): sanitize_record(item) for name, item in value.items()}
    return [sanitize_record(item) for item in value] if isinstance(value, list) else value


# What draws our bars and tables, for terminals that know only ASCII.
_ASCII_FALLBACKS = {
    "░": ".",
    "■": "*",
    "±": "+-",
    "×": "x",
    "…": "...",
    "→": "->",
    "–": "-",
    "─": "-",
    "│": "|",
}
_ASCII_FALLBACKS |= dict(zip("▁▂▃▄▅▆▇█", "_.,-=+*#", strict=True)) | dict.fromkeys("▏▎▍▌▋▊▉", "|")


def ascii_fallback(error: UnicodeError) -> tuple[str, int]:
    """For codecs: what an encoding has not got is drawn with what it has, or is a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ASCII_FALLBACKS.get(char, "?") for char in missing), error.end


def _is_harmful(char: str) -> bool:
    if char in "\n\t\u200c\u200d":  # the last two join or part letters, in Hindi and Persian for example
        return False
    is_nothing = ord(char) & 0xFFFE == 0xFFFE  # no character at all, and forbidden in XML
    return is_nothing or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co")
