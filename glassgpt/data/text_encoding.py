r"""Text as it lies in a file: a byte order mark tells how it is encoded, and every line ends with \n.

So does Python's text mode, with which nanoGPT reads: a vocabulary of characters is the same here and there.
"""

from __future__ import annotations

import codecs
import io

_BOM_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
MAX_BOM_BYTES = max(map(len, _BOM_ENCODINGS))


def detect_encoding(beginning: bytes) -> str:
    return next(
        (encoding for mark, encoding in _BOM_ENCODINGS.items() if beginning.startswith(mark)), "utf-8"
    )


def is_binary(beginning: bytes) -> bool:
    """Git's test: text has no NUL byte near its beginning. UTF-16 has, and says what it is."""
    return b"\0" in beginning and detect_encoding(beginning) == "utf-8"


def newline_decoder(encoding: str) -> io.IncrementalNewlineDecoder:
    return io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)


def describe_conversions(decoder: io.IncrementalNewlineDecoder, encoding: str) -> list[str]:
    """What became of a text that was not UTF-8 with plain line ends."""
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
    """A whole file with its mark and line ends resolved; the very same bytes if it has neither."""
    encoding = detect_encoding(content)
    if encoding == "utf-8" and b"\r" not in content:
        return content
    return newline_decoder(encoding).decode(content, final=True).encode()
