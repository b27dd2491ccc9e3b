"""Anybody's exception in one line."""

from __future__ import annotations

import pytest

from glassgpt.errors import complaint, first_line


@pytest.mark.parametrize(
    ("message", "said"),
    [("one", "one"), ("\n one \ntwo", "one"), ("one\r\n\r\ntwo", "one"), ("", ""), (" \n", "")],
)
def test_the_first_line_with_or_without_its_kind(message: str, said: str) -> None:
    assert complaint(ValueError(message)) == (said or "ValueError")
    assert first_line(ValueError(message)) == (f"ValueError: {said}" if said else "ValueError")


def test_a_long_line_is_cut() -> None:
    endless = ValueError("x" * 10_000)
    assert len(complaint(endless)) == len(first_line(endless)) == 300
    assert first_line(endless).startswith("ValueError: xxx")
