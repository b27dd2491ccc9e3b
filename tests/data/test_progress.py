"""Progress says little and says it right: checked with a clock that is not one."""

from __future__ import annotations

import io
import sys

import pytest

from glassgpt.data.progress import show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_are_rare_and_their_numbers_true() -> None:
    now = 0.0
    said: list[str] = []
    with show_progress("reading", 100_000_000, said.append, True, clock=lambda: now) as advance:
        for _ in range(50):
            now += 1.0
            advance(2_000_000)
    assert said == [
        "reading: 20%, 20 of 100 MB, 2.0 MB/s, 40 s left",
        "reading: 40%, 40 of 100 MB, 2.0 MB/s, 30 s left",
        "reading: 60%, 60 of 100 MB, 2.0 MB/s, 20 s left",
        "reading: 80%, 80 of 100 MB, 2.0 MB/s, 10 s left",
        "reading: 100%, 100 of 100 MB, 2.0 MB/s, 0 ms left",
    ]


def test_silence_when_not_asked() -> None:
    said: list[str] = []
    with show_progress(
        "reading", 100, said.append, False, clock=iter(range(0, 9000, 60)).__next__
    ) as advance:
        advance(50)
        advance(50)
    assert said == []


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    said: list[str] = []
    with show_progress("encoding", 2_000_000, said.append, True) as advance:
        advance(2_000_000)
    assert said == []
    assert "encoding" in terminal.getvalue()
    assert "2 of 2 MB" in terminal.getvalue()


def test_tokens_per_second_and_the_time_left_are_true() -> None:
    now = 0.0
    said: list[str] = []
    with show_progress("encoding", 100_000_000, said.append, True, clock=lambda: now) as advance:
        for _ in range(40):
            now += 1.0
            advance(2_000_000, 500_000)
    assert said == [
        "encoding: 20%, 5M tokens, 500k tokens/s, 40 s left",
        "encoding: 40%, 10M tokens, 500k tokens/s, 30 s left",
        "encoding: 60%, 15M tokens, 500k tokens/s, 20 s left",
        "encoding: 80%, 20M tokens, 500k tokens/s, 10 s left",
    ]
    with show_progress("encoding", 100, said.append, False) as advance:
        advance(1, 1)
    assert len(said) == 4


def test_a_terminal_sees_tokens_in_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    now = 0.0
    with show_progress("encoding", 1000, print, True, clock=lambda: now) as advance:
        now = 2.0
        advance(500, 3000)
    assert "50%" in terminal.getvalue()
    assert "3k tokens, 1.5k tokens/s" in terminal.getvalue()
