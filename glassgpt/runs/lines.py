"""Bytes from anywhere as clean lines: decoded, unpacked, without escapes, in bounded memory.

What consoles, pipes and editors do to a log: UTF-16 (PowerShell's `>`), gzip, CRLF, colours, progress bars
that go back with a carriage return. A bar is one line per state, as it was on the screen. What follows the
last line end is still a line, marked as torn: it may be cut off, or being written just now.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from glassgpt.errors import UserError

CHUNK_BYTES = 1 << 20
MAX_LINE_CHARS = 1 << 16  # of a longer one the rest is dropped
MAX_PLAIN_LINE_CHARS = 1 << 12
MAX_DROPPED_CHARS = 1 << 30  # and one of more is no line of anything
MAX_DECOMPRESSED_BYTES = 16 << 30
_BOMB_RATIO = 300  # text with the same line a million times packs to about a hundredth
_BOMB_MIN_BYTES = 64 << 20

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[PX^_][^\x1b]*\x1b\\"
    r"|\x1b[@-Z\\-_a-z0-9=>]?"
)
# Also marks that turn the direction of writing, with which a text can show something that it does not say.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_UNSUPPORTED_ARCHIVES = {
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
}


class LogLine(NamedTuple):
    text: str
    is_incomplete: bool = False  # no line end after it


def read_lines(file: BinaryIO) -> Iterator[LogLine]:
    """The file's lines, as they come."""
    chunks = _chunks(file)
    first = next(chunks, b"")
    if first.startswith(b"\x1f\x8b"):
        chunks = _decompress_gzip(_prepend(first, chunks))
        first = next(chunks, b"")
    for magic, name in _UNSUPPORTED_ARCHIVES.items():
        if first.startswith(magic):
            raise UserError(f"that is packed with {name}: unpack it first (gzip is read as it is)")
    decoder = codecs.getincrementaldecoder(_encoding(first))(errors="replace")
    return _split_lines(decoder.decode(chunk) for chunk in _prepend(first, chunks))


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    # read1: of a pipe, what is there now; a reader that follows must not wait for a full chunk.
    read = getattr(file, "read1", file.read)
    while chunk := read(CHUNK_BYTES):
        yield chunk


def _prepend(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _decompress_gzip(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """gzip, all members. A damaged or cut end gives what came before it, as a cut log does."""
    unpack = zlib.decompressobj(wbits=31)
    read = made = 0
    for chunk in chunks:
        read += len(chunk)
        left = chunk
        while left:
            try:
                out = unpack.decompress(left, CHUNK_BYTES)
            except zlib.error:
                return
            made += len(out)
            if made > MAX_DECOMPRESSED_BYTES or (made > _BOMB_MIN_BYTES and made > _BOMB_RATIO * read):
                raise UserError(
                    f"this gzip file unpacks to more than {made >> 20} MiB from {read >> 10} KiB: "
                    "that is no log; if it is one, unpack it yourself"
                )
            if out:
                yield out
            left = unpack.unconsumed_tail
            if unpack.eof:
                left = unpack.unused_data
                if not left.startswith(b"\x1f\x8b"):
                    return
                unpack = zlib.decompressobj(wbits=31)


def _encoding(start: bytes) -> str:
    """UTF-8 unless a byte order mark, or zeros in every other byte, say UTF-16."""
    if start.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        return "utf-32"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    sample = start[:4096]
    if len(sample) >= 4:
        for offset, name in ((1, "utf-16-le"), (0, "utf-16-be")):
            if sample[offset::2].count(0) > 0.6 * (len(sample) / 2) and sample[1 - offset :: 2].count(0) == 0:
                return name
    return "utf-8"


def _split_lines(texts: Iterable[str]) -> Iterator[LogLine]:
    rest = ""  # the beginning of a line that goes on in the next chunk
    dropping = False  # the rest of a line that is too long
    dropped = 0
    for text in texts:
        text = rest + text
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        whole, rest = text[:end], text[end:]
        if whole:
            lines = _strip_controls(whole)[:-1].split("\n")
            if dropping:
                lines, dropping = lines[1:], False
            yield from _limit_length(lines)
        dropped = dropped + len(text) if dropping else 0
        if dropped > MAX_DROPPED_CHARS:
            raise UserError(f"that has a line of more than {MAX_DROPPED_CHARS >> 20} MiB: it is no log")
        if len(rest) > MAX_LINE_CHARS:
            if not dropping:
                yield from _limit_length([_strip_controls(rest[:MAX_LINE_CHARS])])
            rest, dropping = "", True
    if rest and not dropping:
        *whole_lines, last = _limit_length([_strip_controls(rest)])
        yield from whole_lines
        yield LogLine(last.text, is_incomplete=True)


def _limit_length(lines: list[str]) -> Iterator[LogLine]:
    """A very long line is a notebook's output in one JSON string, or nothing that a trainer wrote."""
    for line in lines:
        if len(line) <= MAX_PLAIN_LINE_CHARS or (line.startswith('{"') and len(line) <= MAX_LINE_CHARS):
            yield LogLine(line)  # the latter is a record of a journal
        else:
            for part in line[:MAX_LINE_CHARS].split("\\n"):
                yield LogLine(part[:MAX_PLAIN_LINE_CHARS])


def _strip_controls(text: str) -> str:
    """Without escapes and control characters; every kind of line end is one newline."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROLS.sub("", text)
