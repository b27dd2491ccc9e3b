r"""From the bytes of a file to text: compression, byte order marks and line ends.

    with DecompressedFile(Path("crawl.jsonl.zst")) as file:     # gzip, xz, Zstandard, or not compressed
        block = file.read(2**20)
    normalize_to_utf8(b"\xff\xfea\x00\r\x00\n\x00")             # b"a\n"

Python's text mode, with which nanoGPT reads, handles marks and line ends in the same way, so a char
vocabulary is the same in both.
"""

from __future__ import annotations

import codecs
import io
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from glassgpt.errors import UserError, first_message_line

COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst")
_SUFFIX_BY_MAGIC = {
    b"\x1f\x8b\x08": ".gz",
    b"\xfd7zXZ\0": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    **{bytes([0x50 + i]) + b"\x2a\x4d\x18": ".zst" for i in range(16)},  # a skippable frame may come first
}
INSTALL_DATA_EXTRA_HINT = 'install it with  pip install "glassgpt[data]"'

_BOM_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
MAX_BOM_BYTES = max(map(len, _BOM_ENCODINGS))


# --- encodings ---


def detect_encoding(beginning: bytes) -> str:
    """The encoding of a byte order mark; UTF-8 if there is none."""
    return next(
        (encoding for mark, encoding in _BOM_ENCODINGS.items() if beginning.startswith(mark)), "utf-8"
    )


def is_binary(beginning: bytes) -> bool:
    """Git's test: text has no NUL byte near its beginning. UTF-16 has, but also a byte order mark."""
    return b"\0" in beginning and detect_encoding(beginning) == "utf-8"


def newline_decoder(encoding: str) -> io.IncrementalNewlineDecoder:
    return io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)


def describe_conversions(decoder: io.IncrementalNewlineDecoder, encoding: str) -> list[str]:
    """How a text that was not UTF-8 with plain line ends was converted."""
    changes = []
    if encoding == "utf-8-sig":
        changes.append("the byte order mark was left out")
    elif encoding != "utf-8":
        changes.append(f"{encoding.upper()} was read as text")
    newlines = decoder.newlines or ()
    if set((newlines,) if isinstance(newlines, str) else newlines) - {"\n"}:
        changes.append("\\r\\n and \\r line ends became \\n")
    return changes


def normalize_to_utf8(content: bytes) -> bytes:
    """A whole file as UTF-8 without a byte order mark and with \\n line ends."""
    encoding = detect_encoding(content)
    if encoding == "utf-8" and b"\r" not in content:
        return content
    return newline_decoder(encoding).decode(content, final=True).encode()


# --- compression ---


class DecompressedFile:
    """A file that is decompressed while it is read, depending on its suffix. Damage and truncation raise."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        self._new_decompressor: Callable[[], Any] | None
        self._new_decompressor, errors = _decompressor_factory(path)
        self._errors: tuple[type[BaseException], ...] = (EOFError, *errors)
        self._decompressor: Any = None  # of the current member
        self._compressed = self._ready = b""

    def __enter__(self) -> DecompressedFile:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def disk_bytes(self) -> int:
        """How much of the file was read."""
        return self._file.tell()

    def read(self, size: int) -> bytes:
        try:
            return self._file.read(size) if self._new_decompressor is None else self._decompress(size)
        except self._errors as error:
            message = _misnamed_message(self._path) or damaged_file_message(self._path, error)
            raise UserError(message) from error
        except OSError as error:
            raise UserError(f"{self._path} cannot be read: {error.strerror}") from error

    def _decompress(self, size: int) -> bytes:
        """Member after member: a compressed file may hold several in a row."""
        assert self._new_decompressor is not None
        pieces, length = [self._ready], len(self._ready)
        while length < size:
            # Small blocks: one that expands a thousandfold must not fill the memory.
            compressed = self._compressed or self._file.read(2**14)
            self._compressed = b""
            if not compressed and self._decompressor is not None:
                raise EOFError("it ends too early")
            if not compressed:
                break
            if self._decompressor is None:
                compressed = compressed.lstrip(b"\0")  # members may be padded
                if not compressed:
                    continue
                self._decompressor = self._new_decompressor()
            pieces.append(self._decompressor.decompress(compressed))
            length += len(pieces[-1])
            if self._decompressor.eof:
                self._compressed, self._decompressor = self._decompressor.unused_data, None
        ready = b"".join(pieces)
        self._ready = ready[size:]
        return ready[:size]


def _decompressor_factory(path: Path) -> tuple[Callable[[], Any] | None, tuple[type[BaseException], ...]]:
    """A function that makes a decompressor for the file's suffix, and what that raises for damage."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return partial(zlib.decompressobj, zlib.MAX_WBITS | 16), (zlib.error,)
    if suffix == ".xz":
        return lzma.LZMADecompressor, (lzma.LZMAError,)
    if suffix != ".zst":
        return None, ()
    try:
        import zstandard
    except ImportError as error:
        raise UserError(
            f"{path} is compressed by Zstandard, which needs zstandard: {INSTALL_DATA_EXTRA_HINT}"
        ) from error
    return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj, (zstandard.ZstdError,)


def compression_suffix(beginning: bytes) -> str | None:
    """The suffix for a file with these first bytes, if it is compressed."""
    return next((suffix for magic, suffix in _SUFFIX_BY_MAGIC.items() if beginning.startswith(magic)), None)


def _misnamed_message(path: Path) -> str | None:
    """The problem with a file whose suffix is not its compression, or None.

    Browsers, for one, decompress a download and keep its name.
    """
    with path.open("rb") as file:
        beginning = file.read(2**12)
    suffix = path.suffix
    if actual_suffix := compression_suffix(beginning):
        if actual_suffix == suffix.lower():
            return None
        return f"{path} is compressed as {actual_suffix}, not {suffix}: rename it to end in {actual_suffix}"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return None
    return f"{path} is plain text and not compressed: remove {suffix} from its name"


def damaged_file_message(path: Path, error: BaseException) -> str:
    return f"{path} is damaged ({first_message_line(error)}): get it again"
