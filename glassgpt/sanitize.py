"""Text from files made safe to print: control characters are replaced, so it cannot steer the terminal.

sanitize_text("loss \\x1b[2J 4.1")     # "loss �[2J 4.1"
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

# Direction marks that isolate a number or a name in right-to-left text.
_BIDI_CHARACTERS = (
    "\N{LEFT-TO-RIGHT ISOLATE}\N{FIRST STRONG ISOLATE}\N{POP DIRECTIONAL ISOLATE}\N{RIGHT-TO-LEFT MARK}"
)
_JOINERS = "\u200c\u200d"  # they join or separate letters, in Hindi and Persian for example
# What can need replacing. Printable ASCII, the bulk of a log, is skipped inside the regex engine.
_SUSPECT = re.compile(rf"[^\n\t -~{_JOINERS}]")
_SUSPECT_IN_OUR_TEXT = re.compile(rf"[^\n\t -~{_JOINERS}{_BIDI_CHARACTERS}]")


def sanitize_text(text: str) -> str:
    """Replaces control characters: text from a file cannot move the cursor or hide anything."""
    return text if text.isprintable() else _SUSPECT.sub(_replace_harmful, text)


def sanitize_keeping_bidi(text: str) -> str:
    """Like `sanitize_text`, for what the program itself prints: its direction marks stay."""
    return text if text.isprintable() else _SUSPECT_IN_OUR_TEXT.sub(_replace_harmful, text)


def _replace_harmful(match: re.Match[str]) -> str:
    char = match[0]
    is_noncharacter = ord(char) & 0xFFFE == 0xFFFE  # not a character, and forbidden in XML
    if is_noncharacter or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co"):
        return "\N{REPLACEMENT CHARACTER}"
    return char


def sanitize_line(text: str) -> str:
    """A name on one line: a file name may hold any character."""
    return sanitize_text(text.replace("\n", " "))


def sanitize_record(value: Any) -> Any:
    """All texts in a JSON value that comes from a file."""
    if isinstance(value, str):
        return sanitize_text(value)
    if isinstance(value, dict):
        return {sanitize_text(str(name)): sanitize_record(item) for name, item in value.items()}
    return [sanitize_record(item) for item in value] if isinstance(value, list) else value


# The characters of our bars and tables, for terminals that have only ASCII.
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
    """Error handler for codecs: a character that the encoding lacks becomes ASCII art or a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ASCII_FALLBACKS.get(char, "?") for char in missing), error.end
