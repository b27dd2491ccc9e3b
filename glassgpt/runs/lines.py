"""Bytes as clean lines: decompressed, decoded, without escape sequences, in bounded memory.

    with open("train.log.gz", "rb") as file:
        for line in read_lines(file):
            print(line.text)

`read_blocks` has the same lines, many at a time: most of a long log is lines of one form, which one search
over a block finds much faster than a call per line.

Handles what consoles, pipes and editors do to a log: UTF-16 (PowerShell's `>`), gzip, CRLF, colours, progress
bars that use a carriage return (each state is a part of one line), and the outputs of a Jupyter notebook.
Text after the last line end is a line marked `is_incomplete`: it may be cut off, or still being written.
"""

from __future__ import annotations

import codecs
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from glassgpt.errors import UserError
from glassgpt.runs.file_kinds import binary_kind

CHUNK_BYTES = 1 << 20
MAX_LINE_CHARS = 1 << 16  # the rest of a longer line is dropped
MAX_PLAIN_LINE_CHARS = 1 << 13  # of a line that is not JSON: a dict with 100 rewards is shorter
MAX_DROPPED_CHARS = 1 << 30  # a file with a longer line is not a log
MAX_NOTEBOOK_BYTES = 256 << 20  # it has to be read whole
MAX_DECOMPRESSED_BYTES = 16 << 30
_BOMB_RATIO = 300  # the same line a million times compresses to about a hundredth
_BOMB_MIN_BYTES = 64 << 20

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[PX^_][^\x1b]*\x1b\\"
    r"|\x1b[@-Z\\-_a-z0-9=>]?"
)
# Also marks that change the writing direction: with them a text can look different from what it is.
_SHOWN_RETURN = re.compile(r"(?<![\w)}])\^M")  # a carriage return, as some editors show and copy it
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_ASCII_CONTROLS = bytes(code for code in range(128) if _CONTROLS.match(chr(code)))
_NO_LETTERS = bytes(code for code in range(128) if not chr(code).isalpha() and chr(code) != "\n")


class LogLine(NamedTuple):
    text: str
    is_incomplete: bool = False  # no line end after it
    rank: int | None = None  # that printed it, where a prefix named it (see prefixes.py)
    continues_line: bool = False  # a further part of the same line of the file
    clock: str = ""  # the time that a prefix says
    begins_cell: bool = False  # of a notebook


def read_lines(file: BinaryIO) -> Iterator[LogLine]:
    for block in read_blocks(file):
        yield from split_block(block)


def read_blocks(file: BinaryIO) -> Iterator[str | LogLine]:
    return whole_lines(read_texts(file))


def read_texts(file: BinaryIO) -> Iterator[str]:
    """The file as pieces of text of any length, decompressed and decoded. UserError for a binary file."""
    # read1 returns what a pipe has now: a reader that follows a log must not wait for a full chunk.
    read = getattr(file, "read1", file.read)
    chunks: Iterator[bytes] = iter(lambda: read(CHUNK_BYTES), b"")
    first = next(chunks, b"")
    if first.startswith(b"\x1f\x8b"):
        chunks = _decompress_gzip(itertools.chain((first,), chunks))
        first = next(chunks, b"")
    if problem := binary_kind(first):
        raise UserError(f"this is {problem}")
    decoder = codecs.getincrementaldecoder(_detect_encoding(first))(errors="replace")
    return (decoder.decode(chunk) for chunk in itertools.chain((first,), chunks))


def letters_of(text: str) -> bytes:
    """A text without blanks, digits and punctuation: those of a part of the text are in it, too."""
    return text.encode("utf-8", "surrogatepass").translate(None, _NO_LETTERS)


def distinct_letters(block: str) -> bytes:
    """The letters of its lines, of equal ones once. Mostly lines have few forms, so that a search for many
    substrings takes almost no time."""
    return b"\n".join(set(letters_of(block).split(b"\n")))


def split_block(block: str | LogLine) -> Iterator[LogLine]:
    """A very long line is split at `\\n`: it may be a notebook's output in one JSON string."""
    if isinstance(block, LogLine):
        yield block
        return
    for line in block.split("\n"):
        if len(line) <= MAX_PLAIN_LINE_CHARS or (line.startswith('{"') and len(line) <= MAX_LINE_CHARS):
            yield LogLine(line)  # the second is a record of a journal
        else:
            for number, part in enumerate(line[:MAX_LINE_CHARS].split("\\n")):
                yield LogLine(part[:MAX_PLAIN_LINE_CHARS], continues_line=number > 0)


def _decompress_gzip(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """All gzip members. Of a damaged or truncated file, what comes before the damage."""
    decompressor = zlib.decompressobj(wbits=31)
    bytes_in = bytes_out = 0
    for chunk in chunks:
        bytes_in += len(chunk)
        rest = chunk
        while rest:
            try:
                out = decompressor.decompress(rest, CHUNK_BYTES)
            except zlib.error:
                return
            bytes_out += len(out)
            is_bomb = bytes_out > _BOMB_MIN_BYTES and bytes_out > _BOMB_RATIO * bytes_in
            if is_bomb or bytes_out > MAX_DECOMPRESSED_BYTES:
                raise UserError(
                    f"this gzip file decompresses to more than {bytes_out >> 20} MiB "
                    f"from {bytes_in >> 10} KiB: that is not a log; if it is one, decompress it yourself"
                )
            if out:
                yield out
            rest = decompressor.unconsumed_tail
            if decompressor.eof:
                rest = decompressor.unused_data
                if not rest.startswith(b"\x1f\x8b"):
                    return
                decompressor = zlib.decompressobj(wbits=31)


def _detect_encoding(start: bytes) -> str:
    """UTF-8, unless there is a byte order mark, or every other byte is zero."""
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


def whole_lines(texts: Iterable[str]) -> Iterator[str | LogLine]:
    """A text is whole lines, without the last line end; at the end of the file there may be a line without
    one."""
    splitter = LineSplitter()
    for text in texts:
        yield from splitter.feed(text)
    yield from splitter.close()


class LineSplitter:
    """Pieces of text to whole lines: what comes after the last line end waits for the next piece."""

    def __init__(self) -> None:
        self._rest = ""  # the beginning of a line that continues in the next piece
        self._dropping = False  # inside a line that is too long
        self._dropped = 0
        self._in_line = False  # the last part ended with a carriage return

    def feed(self, text: str) -> Iterator[str | LogLine]:
        text = self._rest + text
        if "^M" in text:
            text = _SHOWN_RETURN.sub("\r", text)
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        whole, self._rest = text[:end], text[end:]
        if whole and self._dropping:
            line_end = re.search("[\r\n]", whole)
            if line_end is not None:
                self._in_line, self._dropping = line_end[0] == "\r", False
                whole = whole[line_end.end() :]
        if whole:
            if "\r" in whole:
                whole = whole.replace("\r\n", "\n")
            if self._in_line or "\r" in whole:
                yield from _parts_of_lines(whole, self._in_line)
            else:
                yield _strip_controls(whole)[:-1]
            self._in_line = whole.endswith("\r")
        self._dropped = self._dropped + len(text) if self._dropping else 0
        if self._dropped > MAX_DROPPED_CHARS:
            raise UserError(f"a line is longer than {MAX_DROPPED_CHARS >> 20} MiB: this is not a log")
        if len(self._rest) > MAX_LINE_CHARS:
            if not self._dropping:
                for line in split_block(_strip_controls(self._rest[:MAX_LINE_CHARS])):
                    yield line._replace(continues_line=line.continues_line or self._in_line)
            self._rest, self._dropping = "", True

    def close(self) -> Iterator[LogLine]:
        """The line without an end, if there is one."""
        if self._rest and not self._dropping:
            *whole_lines, last = (
                line._replace(continues_line=line.continues_line or self._in_line)
                for line in split_block(_strip_controls(self._rest))
            )
            yield from whole_lines
            yield last._replace(is_incomplete=True)


def _parts_of_lines(whole: str, in_line: bool) -> Iterator[str | LogLine]:
    """Whole lines, some of which have carriage returns: these in their parts, the others together.

    `in_line`: the first one is a further part of the line before."""
    plain: list[str] = []
    for line in whole[:-1].split("\n"):
        if not in_line and "\r" not in line:
            plain.append(line)
            continue
        if plain:
            yield _strip_controls("\n".join(plain))
            plain = []
        for part in line.split("\r"):
            for text in split_block(_strip_controls(part)):
                yield text._replace(continues_line=text.continues_line or in_line)
                in_line = True
        in_line = False
    if plain:
        yield _strip_controls("\n".join(plain))


def _strip_controls(text: str) -> str:
    """Without escape sequences and control characters; every kind of line end becomes a newline."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if text.isascii():  # nearly every log; a table is much faster than a search
        return text.encode().translate(None, _ASCII_CONTROLS).decode()
    return _CONTROLS.sub("", text)


# --- Jupyter notebooks ---

# A trainer shows a table instead of lines: in a notebook it is HTML.
_ROW_ENDS = re.compile(r"</(?:tr|p|div|thead)>|<br ?/?>")
_CELL_ENDS = re.compile(r"</t[hd]>\s*(?=<t[hd])")
_SHELL_COMMAND = re.compile(r"^[ \t]*!\s?(.{0,2000}?\.py\b.{0,2000})$", re.MULTILINE)
_TAGS = re.compile(r"<[^<>]{1,2000}>")


def is_notebook(start: bytes) -> bool:
    return start.lstrip()[:1] == b"{" and (b'"cells"' in start or b'"nbformat"' in start)


def read_notebook(content: bytes, name: str) -> Iterator[LogLine] | None:
    """The outputs of its cells, not their source: code that prints a log line is not one. Only a cell's
    commands come before its output, after a prompt: their settings are of its run. None where the file is not
    a notebook after all."""
    if len(content) > MAX_NOTEBOOK_BYTES:
        raise UserError(
            f"{name} is a notebook of more than {MAX_NOTEBOOK_BYTES >> 20} MiB: save its output as text"
        )
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        return None
    cells: list[str] = []
    for cell in document["cells"]:
        texts: list[str] = []
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        if outputs:
            source = _joined(cell.get("source")).replace("\\\n", " ")
            texts += [f"$ {command}" for command in _SHELL_COMMAND.findall(source)]
        for output in outputs if isinstance(outputs, list) else []:
            if not isinstance(output, dict):
                continue
            data = output.get("data")
            plain, html = (
                (data.get("text/plain"), data.get("text/html")) if isinstance(data, dict) else (None, None)
            )
            for text in (output.get("text"), plain, output.get("traceback")):
                if text := _joined(text):
                    texts.append(text)
            if "Training Loss" in (table := _joined(html)):
                texts.append(_TAGS.sub("", _CELL_ENDS.sub("\t", _ROW_ENDS.sub("\n", table))))
        if texts:
            cells.append("\n".join(texts).encode("utf-8", "replace").decode())
    return _lines_of_cells(cells)


def _lines_of_cells(cells: Sequence[str]) -> Iterator[LogLine]:
    for cell in cells:
        is_first = True
        for block in whole_lines([f"{cell}\n"]):
            for line in split_block(block):
                yield line._replace(begins_cell=is_first)
                is_first = False


def _joined(text: object) -> str:
    """A notebook stores a text as one string, or as its lines."""
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""
