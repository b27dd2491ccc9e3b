"""A file that may be compressed, read as if it were not: gzip, xz and Zstandard, going by its name."""

from __future__ import annotations

import codecs
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
    **{bytes([0x50 + i]) + b"\x2a\x4d\x18": ".zst" for i in range(16)},  # a frame to skip may come first
}
INSTALL_DATA_EXTRA_HINT = 'install it with  pip install "glassgpt[data]"'


class DecompressedFile:
    """A file as if it were not compressed. Damage in it is told, and so is an end that came too early."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        self._new, errors = _decompressor_factory(path)
        self._errors: tuple[type[BaseException], ...] = (EOFError, *errors)
        self._member: Any = None  # the decompressor of where we are
        self._packed = self._ready = b""
        self._given = 0  # unpacked bytes
        self._size, self._declared = path.stat().st_size, _declared_bytes(path) if self._new else 0

    def __enter__(self) -> DecompressedFile:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def disk_bytes(self) -> int:
        """How much of the file was read; of a compressed one, its size times the share of the text.

        The beginning of a file compresses worse than the rest, so what was read of it is no measure.
        """
        read_bytes = self._file.tell()
        if self._new is None or not self._given:
            return read_bytes
        so_far = (self._given + len(self._ready)) * self._size / read_bytes
        return round(self._size * self._given / max(self._declared, so_far))

    def read(self, size: int) -> bytes:
        try:
            content = self._file.read(size) if self._new is None else self._decompress(size, self._new)
            self._given += len(content)
            return content
        except self._errors as error:
            raise UserError(
                _misnamed_message(self._path) or damaged_file_message(self._path, error)
            ) from error
        except OSError as error:
            raise UserError(f"{self._path} cannot be read: {error.strerror}") from error

    def _decompress(self, size: int, new: Callable[[], Any]) -> bytes:
        """Member after member: a compressed file may be several, one after the other."""
        pieces, length = [self._ready], len(self._ready)
        while length < size:
            # Small bites: what shrank a thousandfold must not fill the memory.
            packed = self._packed or self._file.read(2**14)
            self._packed = b""
            if not packed and self._member is not None:
                raise EOFError("it ends too early")
            if not packed:
                break
            if self._member is None:
                packed = packed.lstrip(b"\0")  # members may be padded
                if not packed:
                    continue
                self._member = new()
            pieces.append(self._member.decompress(packed))
            length += len(pieces[-1])
            if self._member.eof:
                self._packed, self._member = self._member.unused_data, None
        ready = b"".join(pieces)
        self._ready = ready[size:]
        return ready[:size]


def _decompressor_factory(path: Path) -> tuple[Callable[[], Any] | None, tuple[type[BaseException], ...]]:
    """What makes a decompressor for a file, going by its name, and what that raises for damage."""
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


def _declared_bytes(path: Path) -> int:
    """How long the text is as the file says, or less: it may be of one part of several. 0: it says nothing.

    xz has it in the index at the end of its last stream, gzip at the end of its last member (modulo 2^32),
    and Zstandard in the header of its first frame.
    """
    suffix, size = path.suffix.lower(), path.stat().st_size
    with path.open("rb") as file:
        head = file.read(18)
        file.seek(max(0, size - 12))
        tail = file.read()
        if suffix == ".zst" and compression_suffix(head) == suffix:
            import zstandard

            return max(0, zstandard.frame_content_size(head))
        if suffix == ".gz":
            return int.from_bytes(tail[-4:], "little")
        length = (int.from_bytes(tail[4:8], "little") + 1) * 4
        if tail[-2:] != b"YZ" or length > size - 24:
            return 0
        file.seek(size - 12 - length)
        numbers = _xz_numbers(file.read(length)[1:])
    return sum(numbers[2 : 2 + 2 * numbers[0] : 2]) if numbers else 0


def _xz_numbers(index: bytes) -> list[int]:
    """Seven bits a byte, low ones first: the number of blocks; then of each its size packed and unpacked."""
    numbers, value, shift = [], 0, 0
    for byte in index:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    return numbers


def compression_suffix(beginning: bytes) -> str | None:
    """How a file should be called that begins so, if it is compressed."""
    return next((suffix for magic, suffix in _SUFFIX_BY_MAGIC.items() if beginning.startswith(magic)), None)


def _misnamed_message(path: Path) -> str | None:
    """What is wrong with the name of a file that is not compressed as it says, or None.

    Browsers, for one, unpack what they download and leave it its name.
    """
    with path.open("rb") as file:
        beginning = file.read(2**12)
    suffix = path.suffix
    if found := compression_suffix(beginning):
        if found == suffix.lower():
            return None
        return f"{path} is not compressed as {suffix} but as {found}: end its name so"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return None
    return f"{path} is plain text and not compressed: take {suffix} from its name"


def damaged_file_message(path: Path, error: BaseException) -> str:
    return f"{path} is damaged ({first_message_line(error)}): get it again"
