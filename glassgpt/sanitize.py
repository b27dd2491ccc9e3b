"""Text that cannot harm a terminal."""

from __future__ import annotations

import unicodedata
from typing import Any

# What isolates a number or a name in a text that is written from right to left.
_DIRECTIONS = (
    "\N{LEFT-TO-RIGHT ISOLATE}\N{FIRST STRONG ISOLATE}\N{POP DIRECTIONAL ISOLATE}\N{RIGHT-TO-LEFT MARK}"
)


def harmless(text: str) -> str:
    """Without control characters, so that text from a file cannot move the cursor or hide anything."""
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_harmful(char) else char for char in text)


def harmless_words(text: str) -> str:
    """The same for what the program says itself, whose marks of direction stay."""
    return "".join(char if char in _DIRECTIONS else harmless(char) for char in text)


def harmless_name(text: str) -> str:
    """A name on one line: a file can be called anything."""
    return harmless(" ".join(text.split("\n")))


def harmless_record(value: Any) -> Any:
    """All texts in a record that comes from a file."""
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, dict):
        return {harmless(str(name)): harmless_record(item) for name, item in value.items()}
    return [harmless_record(item) for item in value] if isinstance(value, list) else value


# What draws our bars and tables, for terminals that know only ASCII.
_ASCII = {"░": ".", "■": "*", "±": "+-", "×": "x", "…": "...", "→": "->", "–": "-", "─": "-", "│": "|"}
_ASCII |= dict(zip("▁▂▃▄▅▆▇█", "_.,-=+*#", strict=True)) | dict.fromkeys("▏▎▍▌▋▊▉", "|")


def in_ascii(error: UnicodeError) -> tuple[str, int]:
    """For codecs: what an encoding has not got is drawn with what it has, or is a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ASCII.get(char, "?") for char in missing), error.end


def _is_harmful(char: str) -> bool:
    if char in "\n\t\u200c\u200d":  # the last two join or part letters, in Hindi and Persian for example
        return False
    is_nothing = ord(char) & 0xFFFE == 0xFFFE  # no character at all, and forbidden in XML
    return is_nothing or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co")
