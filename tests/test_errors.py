"""Anybody's exception in one line."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from glassgpt.errors import describe_os_error, error_type_and_message, first_message_line


def test_the_first_line_with_or_without_its_kind(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("one", "one"),
        ("\n one \ntwo", "one"),
        ("one\r\n\r\ntwo", "one"),
        ("", ""),
        (" \n", ""),
    ]
    for message, said in cases:
        with subtests.test(message):
            assert first_message_line(ValueError(message)) == (said or "ValueError")
            assert error_type_and_message(ValueError(message)) == (
                f"ValueError: {said}" if said else "ValueError"
            )


def test_a_long_line_is_cut() -> None:
    endless = ValueError("x" * 10_000)
    assert len(first_message_line(endless)) == len(error_type_and_message(endless)) == 300
    assert error_type_and_message(endless).startswith("ValueError: xxx")


def test_a_refusal_of_the_system_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        (tmp_path / "nothing").read_bytes()
    assert describe_os_error(caught.value) == f"No such file or directory: {tmp_path / 'nothing'}"

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")  # as read and write do, which know no name

    with pytest.raises(OSError, match="Input") as caught:
        fail(tmp_path / "file")
    assert describe_os_error(caught.value) == f"Input/output error: {tmp_path / 'file'}"
