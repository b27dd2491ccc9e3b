"""Bytes into clean lines: encodings, compression, line ends, escapes, and limits to all of them."""

from __future__ import annotations

import gzip
import io
import re
import time
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.errors import UserError
from glassgpt.runs.lines import MAX_LINE_CHARS, LogLine, read_lines

PLAIN = "iter 0: loss 4.2, time 12.00ms\nзаметка ▁▂▄ 100%\nlast\n"


def texts(data: bytes) -> list[str]:
    return [line.text for line in read_lines(io.BytesIO(data))]


def test_encodings_are_told_by_the_bytes(subtests: pytest.Subtests) -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        with subtests.test(encoding):
            text = PLAIN if encoding not in ("utf-16-le", "utf-16-be") else "iter 0: loss 4.2\nlast\n"
            assert texts(text.encode(encoding)) == text.splitlines()


def test_bytes_that_are_no_text_do_not_stop_it() -> None:
    assert texts(b"iter 0: loss 4.2\n\xff\xfe\x80 caf\xe9\nlast\n")[::2] == ["iter 0: loss 4.2", "last"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(end: str) -> None:
    assert texts(f"one{end}two{end}".encode()) == ["one", "two"]


def test_each_state_of_a_progress_bar_is_a_line() -> None:
    assert texts(b"  0%| 0/3\r 33%| 1/3\r100%| 3/3\ndone\n") == [
        "  0%| 0/3",
        " 33%| 1/3",
        "100%| 3/3",
        "done",
    ]


@given(
    st.lists(st.lists(st.sampled_from(["a", "bb", "", "c" * 5000, "d\\ne" * 2000]), min_size=1), max_size=9),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 7000),
)
@settings(max_examples=60, deadline=None)
def test_lines_are_numbered_as_an_editor_numbers_them(lines: list[list[str]], end: str, chunk: int) -> None:
    """A state of a progress bar, or a part of a long line, is no line of the file; reads may end anywhere."""
    data = "".join("\r".join(states) + end for states in lines).encode()

    class Slow(io.RawIOBase):
        position = 0

        def read(self, size: int = -1) -> bytes:
            self.position += chunk
            return data[self.position - chunk : self.position]

    number, texts_by_number = 0, dict[int, set[str]]()
    for line in read_lines(Slow()):  # type: ignore[arg-type]
        number += not line.continues_line
        texts_by_number.setdefault(number, set()).add(line.text)
    assert number == len(lines)
    for at, states in enumerate(lines, start=1):
        assert {state for state in states if 0 < len(state) < 10} <= texts_by_number[at]


def test_a_line_end_between_two_reads_is_one_line_end() -> None:
    class Slow(io.RawIOBase):
        pieces = iter([b"one\r", b"\ntwo\r\n", b"thr", b"ee\n"])

        def read(self, size: int = -1) -> bytes:
            return next(self.pieces, b"")

    assert [line.text for line in read_lines(Slow()) if line.text] == ["one", "two", "three"]  # type: ignore[arg-type]


def test_what_follows_the_last_line_end_is_torn() -> None:
    lines = list(read_lines(io.BytesIO(b"whole\nhal")))
    assert lines == [LogLine("whole"), LogLine("hal", is_incomplete=True)]
    assert list(read_lines(io.BytesIO(b""))) == []


def test_escapes_and_control_characters_are_gone(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "\x1b[32mgreen\x1b[0m",
        "\x1b[1;38;5;208mgreen\x1b[m",
        "\x1b]0;title\x07green",
        "\x1b]8;;http://x\x1b\\green\x1b]8;;\x1b\\",
        "\x1b[Agreen\x1b[K",
        "\x1b(Bgreen",
        "gr\x00e\x08en\x7f",
        "\x9b31mgreen",
    ]
    for dirty in cases:
        with subtests.test(dirty):
            (line,) = texts(f"{dirty}\n".encode())
            assert "green" in line
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", line)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000))
def test_no_control_character_comes_through(data: bytes) -> None:
    try:
        lines = texts(data)
    except UserError:
        return
    assert not any(re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f]", line) for line in lines)


@settings(max_examples=30, deadline=None)
@given(st.text(alphabet=st.characters(blacklist_categories=["Cc", "Cs", "Cf"]), max_size=300))
def test_clean_text_comes_through_as_it_is(text: str) -> None:
    assert texts(b"first line of a log\n" + text.encode() + b"\n") == ["first line of a log", text]


# --- gzip ---


def test_gzip_with_several_members() -> None:
    assert texts(gzip.compress(b"one\n") + gzip.compress(b"two\n")) == ["one", "two"]


def test_a_cut_gzip_file_is_a_cut_log() -> None:
    whole = b"".join(b"iter %d: loss 4.2, time 12.00ms\n" % i for i in range(20_000))
    packed = gzip.compress(whole)
    lines = texts(packed[: len(packed) // 2])
    assert 100 < len(lines) < 20_000
    assert lines[:-1] == whole.decode().splitlines()[: len(lines) - 1]


def test_a_damaged_gzip_file_gives_what_came_before() -> None:
    packed = bytearray(gzip.compress(b"".join(b"line %d %d\n" % (i, i * i) for i in range(50_000))))
    packed[len(packed) // 2 :] = bytes(len(packed) - len(packed) // 2)
    assert texts(bytes(packed))[0] == "line 0 0"


def test_gzip_of_nothing_and_junk_behind_it() -> None:
    assert texts(gzip.compress(b"")) == []
    assert texts(gzip.compress(b"one\n") + b"junk") == ["one"]
    assert texts(b"\x1f\x8b") == []
    assert texts(b"\x1f\x8bnot gzip at all\n") == []


def test_a_gzip_bomb_is_refused() -> None:
    pack = zlib.compressobj(9, wbits=31)
    bomb = b"".join(pack.compress(bytes(1 << 24)) for _ in range(8)) + pack.flush()
    with pytest.raises(UserError, match="gzip"):
        for _ in read_lines(io.BytesIO(bomb)):
            pass


def test_a_repetitive_log_is_no_bomb() -> None:
    text = b"".join(
        b"iter %d: loss %.4f, time 12.00ms, mfu 28.00%%\n" % (i, 4 / (i + 1)) for i in range(60_000)
    )
    assert len(texts(gzip.compress(text))) == 60_000


@pytest.mark.parametrize(
    ("magic", "name"),
    [(b"PK\x03\x04", "zip"), (b"\xfd7zXZ\x00", "xz"), (b"BZh9", "bzip2"), (b"\x28\xb5\x2f\xfd", "zstd")],
)
def test_other_archives_are_named(magic: bytes, name: str) -> None:
    with pytest.raises(UserError, match=name):
        texts(magic + b"\x00\x01\x02")


# --- limits ---


class Endless(io.RawIOBase):
    """So many bytes, made as they are read."""

    def __init__(self, chunk: bytes, size: int) -> None:
        self._chunk, self._left = chunk, size

    def read(self, size: int = -1) -> bytes:
        piece = self._chunk[: self._left]
        self._left -= len(piece)
        return piece


def peak_of(lines: Iterator[LogLine]) -> tuple[int, int, float]:
    """Lines, the most bytes held, seconds."""
    tracemalloc.start()
    begun = time.perf_counter()
    try:
        count = sum(1 for _ in lines)
        return count, tracemalloc.get_traced_memory()[1], time.perf_counter() - begun
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "chunk", [b"x" * (1 << 20), b"\x1b[31m" * 200_000, b"\x1b]" * 500_000, "é".encode() * 500_000]
)
def test_a_line_of_100_megabytes_takes_little_memory_and_time(chunk: bytes) -> None:
    count, peak, seconds = peak_of(read_lines(Endless(chunk, 100 << 20)))  # type: ignore[arg-type]
    assert count <= 1 + MAX_LINE_CHARS // 4096
    assert peak < 40 << 20
    assert seconds < 60  # a tenth of a second here; read again for every line it would take hours


def test_after_a_line_that_is_too_long_the_next_one_is_read() -> None:
    data = b"first\n" + b"x" * (5 << 20) + b"\niter 1: loss 2\n"
    lines = texts(data)
    assert lines[0] == "first"
    assert lines[-1] == "iter 1: loss 2"
    assert max(map(len, lines)) <= 1 << 13


def test_a_notebook_in_one_line_of_json_is_taken_apart() -> None:
    cells = "\\n".join(f"iter {i}: loss 4.2, time 12.00ms" for i in range(400))
    assert sum("iter 399:" in line for line in texts(f'{{"text": "{cells}"}}\n'.encode())) == 1


def test_a_line_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.runs.lines.MAX_DROPPED_CHARS", 10 << 20)
    with pytest.raises(UserError, match="this is not a log"):
        list(read_lines(Endless(b"x" * (1 << 20), 1 << 40)))  # type: ignore[arg-type]


def test_carriage_returns_as_two_characters() -> None:
    """As some editors show and copy them."""
    bar = "^M  4%|4    | {at}/300 [11:37<10:26,  2.00it/s]^M          ^M{{'loss': 1.5545, 'epoch': 0.22}}\n"
    text = "".join(bar.format(at=at) for at in range(20, 26))
    assert texts(text.encode()) == texts(text.replace("^M", "\r").encode())
    assert texts(b"x^M\nf(e^M)\n") == ["x^M", "f(e^M)"]  # a power
