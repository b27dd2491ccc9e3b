"""Text that cannot harm a terminal."""

from __future__ import annotations

import codecs
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.sanitize import ascii_fallback, sanitize_text

few = settings(max_examples=150, deadline=None)


@few
@given(st.text())
def test_harmless_leaves_no_control_character(text: str) -> None:
    safe = sanitize_text(text)
    assert len(safe) == len(text)
    for before, after in zip(text, safe, strict=True):
        control = (
            unicodedata.category(before) in ("Cc", "Cf", "Cs", "Co") and before not in "\n\t\u200c\u200d"
        )
        bad = control or ord(before) & 0xFFFE == 0xFFFE
        assert after == ("\N{REPLACEMENT CHARACTER}" if bad else before)
    assert sanitize_text(safe) == safe


def test_harmless_takes_every_control_character() -> None:
    controls = [chr(code) for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"]
    assert len(controls) == 63
    assert set(sanitize_text("".join(controls))) == {"\N{REPLACEMENT CHARACTER}"}
    # Overrides of direction hide what a line says.
    assert (
        sanitize_text("a\N{RIGHT-TO-LEFT OVERRIDE}b\N{ZERO WIDTH SPACE}")
        == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"
    )
    assert sanitize_text("Ünï\ncode\t\N{GRINNING FACE}") == "Ünï\ncode\t\N{GRINNING FACE}"


# --- charts


def test_a_bar_is_a_bar_in_ascii_too() -> None:
    codecs.register_error("in_ascii", ascii_fallback)
    assert "█▌░░ ■ ±3% نص".encode("ascii", "in_ascii") == b"#|.. * +-3% ??"
    assert "█░".encode("cp437", "in_ascii").decode("cp437") == "█░"  # it can draw them
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", "in_ascii")
