"""What a file that is not a log looks like, by its first bytes or lines, and what would work instead.

    binary_kind(b"PK\\x03\\x04…ckpt/data.pkl…")     # "a PyTorch checkpoint: …"
    text_kind("import torch\\n…")                   # "Python source code"

For refusals. Nothing is loaded, decompressed or executed for it.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence

from glassgpt.runs.log_numbers import parse_cell
from glassgpt.sanitize import sanitize_line

_LOG_WANTED = "explain reads what training printed or logged"
_CHECKPOINT_ADVICE = f"{_LOG_WANTED}, not weights; `glass import nanogpt DIR` imports nanoGPT's ckpt.pt"
_DECOMPRESS = "decompress it first (gzip is read directly)"

# Of the first bytes; the first match counts.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\xfd7zXZ\x00", f"an xz file: {_DECOMPRESS}"),
    (b"BZh", f"a bzip2 file: {_DECOMPRESS}"),
    (b"\x28\xb5\x2f\xfd", f"a zstd file: {_DECOMPRESS}"),
    (b"7z\xbc\xaf\x27\x1c", f"a 7z file: {_DECOMPRESS}"),
    (b"Rar!\x1a\x07", f"a RAR file: {_DECOMPRESS}"),
    (b"\x89PNG\r\n\x1a\n", f"a PNG image: {_LOG_WANTED}, not a picture of it"),
    (b"\xff\xd8\xff", f"a JPEG image: {_LOG_WANTED}, not a picture of it"),
    (b"GIF8", f"a GIF image: {_LOG_WANTED}, not a picture of it"),
    (b"%PDF-", f"a PDF document: {_LOG_WANTED}; save it as text"),
    (b"PAR1", "a Parquet file: export its step and loss columns as CSV"),
    (b"ARROW1", "an Arrow file: export its step and loss columns as CSV"),
    (b"Obj\x01", "an Avro file: export its step and loss columns as CSV"),
    (b"SQLite format 3\x00", "an SQLite database: export its table of steps and losses as CSV"),
    (b"\x89HDF\r\n\x1a\n", f"an HDF5 file, such as Keras's weights: {_LOG_WANTED}, not weights"),
    (b"\x93NUMPY", "a NumPy array: save steps and losses as CSV with a header"),
    (b"GGUF", f"a GGUF model: {_LOG_WANTED}, not weights"),
    (b"\x7fELF", f"a program: {_LOG_WANTED}; run it and give what it prints"),
    (b"MZ", f"a Windows program: {_LOG_WANTED}; run it and give what it prints"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself: `git lfs pull` fetches that"),
    (b":W&B", "wandb's own record of a run: export it from its page as CSV, or give files/output.log"),
)
# A zip file is many things. Its first entries have their names in the first bytes.
_ZIP_MAGIC = b"PK\x03\x04"
_ZIP_ENTRIES: tuple[tuple[bytes, str], ...] = (
    (b"data.pkl", f"a PyTorch checkpoint: {_CHECKPOINT_ADVICE}"),
    (b".npy", "an archive of NumPy arrays: save steps and losses as CSV with a header"),
    (b"[Content_Types].xml", "an Office document: save its table as CSV"),
    (b"mimetype", "an OpenDocument file: save its table as CSV"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05](?:[\x95}](?s:.){0,8}|c|\]|\x8a)")
_SAFETENSORS = re.compile(rb"(?s).{8}\{\"")
_MAX_SAMPLE = 1 << 16

_PYTHON = re.compile(
    r"^(?:import \w[\w., ]{0,99}|from [\w.]{1,99} import .{0,99}|def \w{1,99}\(.{0,99}|class \w.{0,99}:)$",
    re.M,
)
_CONFIG_LINE = re.compile(r"^\s{0,40}(?:[#;-]|\[[^\]]{0,80}\]{0,2}\s*$|[\w.-]{1,60}\s{0,40}[:=])")
_SHELL = re.compile(r"\A#!.{0,100}\b(?:ba|z|da)?sh\b")
_UNPRINTABLE = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
_NUMBERS = re.compile(r"\d\.\d|\b\d+\b")
_ANY_NUMBER = re.compile(r"\d[\d.]*(?:e[-+]?\d+)?")
_MIN_REPEATS = 4  # of one line
_MAX_SHOWN_CHARS = 100
_ESCAPE = re.compile(r"\x1b\[[0-?]{0,20}[ -/]{0,20}[@-~]")
# With the comma of Python's logging, as in 12:03:59,360.
_STAMP = re.compile(r"^\s{0,20}\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d,\d{1,6}\b[\]:\s-]{0,20}")
_TWO_NUMBERS = re.compile(r"\d{1,12}(?:[_:;|]| {1,20})\s{0,20}-?\d{1,12}\.\d{1,20}(?:e[-+]?\d{1,3})?")
_NAMES_ADVICE = "if they are steps and losses, save them as CSV with step,loss as the first line"
_MIN_TABLE_ROWS, _TABLE_LINES = 3, 10  # with the header; that are looked at


def binary_kind(start: bytes) -> str | None:
    """What the file is, a colon, and what to do. None for text, and for what has no known first bytes."""
    for magic, kind in _MAGIC:
        if start.startswith(magic):
            return kind
    sample = start[:_MAX_SAMPLE]
    if sample.startswith(_ZIP_MAGIC):
        found = (kind for entry, kind in _ZIP_ENTRIES if entry in sample)
        return next(found, f"a zip file: {_DECOMPRESS}")
    if _PICKLE.match(sample):
        return f"a Python pickle, such as an old PyTorch checkpoint: {_CHECKPOINT_ADVICE}"
    header_bytes = int.from_bytes(sample[:8], "little")
    if _SAFETENSORS.match(sample) and 2 <= header_bytes < 100 << 20:
        return f"a safetensors file: {_CHECKPOINT_ADVICE}"
    if sample[257:262] == b"ustar":
        return "a tar archive: unpack it, and give the log in it"
    return None


def text_kind(head: str) -> str | None:
    """What the text looks like: a noun, or None."""
    if len(_UNPRINTABLE.findall(head[:4096])) > 0.1 * len(head[:4096]):
        return "a binary file"
    lines = [line for line in head.splitlines()[:200] if line.strip()]
    first = lines[0].strip() if lines else ""
    if len(_PYTHON.findall(head[:_MAX_SAMPLE])) >= 2:
        return "Python source code; give what it prints when it runs"
    if _SHELL.search(head):
        return "a shell script; give what it prints when it runs"
    if first.lower().startswith(("<!doctype html", "<html")):
        return "an HTML page; save its log as text"
    if first.startswith(("<?xml", "<svg")):
        return "an XML document"
    is_json = first == "[" or first.startswith(("{", "[{", "[["))
    if is_json and (head.rstrip()[-1:] in ("}", "]") or '":' in head[:1000]):
        return "JSON in which no step has a loss"
    plain = [_without_stamp(line) for line in lines[:_TABLE_LINES]]
    for delimiter, name in ((",", "CSV"), ("\t", "tab-separated")):
        try:
            rows = list(csv.reader(plain, delimiter=delimiter))
        except csv.Error:
            continue
        if _is_table(rows) and all(parse_cell(cell.strip()) is not None for cell in rows[0]):
            return f"a {name} table without names of columns: {_NAMES_ADVICE}"
        if _is_table(rows):
            columns = ", ".join(sanitize_line(column.strip())[:30] for column in rows[0][:8])
            return f"a {name} table without a step and a loss column; its columns are {columns}"
    if len(plain) >= _MIN_TABLE_ROWS and all(map(_TWO_NUMBERS.fullmatch, plain)):
        return f"two numbers a line without names: {_NAMES_ADVICE}"
    if len(lines) > 1 and all(map(_CONFIG_LINE.match, lines)) and not _repeats_itself(lines):
        return "a configuration; give the log of the run"
    return None


def _repeats_itself(lines: Sequence[str]) -> bool:
    """Whether one line comes again and again with other numbers, as no configuration has it."""
    shapes = Counter(_ANY_NUMBER.sub("0", line) for line in lines if len(_NUMBERS.findall(line)) > 1)
    return max(shapes.values(), default=0) >= max(_MIN_REPEATS, len(lines) // 5)


def _without_stamp(line: str) -> str:
    """The line without what a terminal and Python's logging put around it, which makes no table."""
    return _STAMP.sub("", _ESCAPE.sub("", line)).strip()


def _is_table(rows: Sequence[Sequence[str]]) -> bool:
    """A header, and rows of as many cells, with a column of numbers."""
    if len(rows) < _MIN_TABLE_ROWS or len(rows[0]) < 2 or {len(row) for row in rows} != {len(rows[0])}:
        return False
    columns = zip(*rows[1:], strict=True)
    return any(all(parse_cell(cell.strip()) is not None for cell in column) for column in columns)


def looks_like(head: str) -> str:
    """For a refusal: what the text looks like, and the first line of it that might have been a log's."""
    kind = text_kind(head)
    clause = f"; it looks like {kind}" if kind else ""
    if kind is None and (line := _first_line_with_numbers(head)):
        clause = f'; its first line with numbers is "{line}"'
    return clause


def _first_line_with_numbers(head: str) -> str | None:
    for line in head.splitlines()[:10_000]:
        if len(_NUMBERS.findall(_without_stamp(line[:1000]))) >= 2:
            return sanitize_line(line.strip()[:_MAX_SHOWN_CHARS])
    return None
