"""Reads a pickle of plain data (nanoGPT's meta.pkl) without executing any code.

A pickle is a program, and `pickle.load` runs it: a file can start any other program that way. Dicts, lists,
text and numbers need only a few opcodes, none of which imports or calls anything. So all opcodes are checked
first, and the pickle is loaded only if it has no others.

Tuples are not allowed: as keys of a dict, a few nested ones can take years to hash.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import deque
from typing import Any, Never

MAX_PICKLE_BYTES = 64_000_000
# Seven per character of a vocabulary: this is four times what the largest 16-bit vocabulary needs.
MAX_INSTRUCTIONS = 2_000_000

_TEXT_OPCODES = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_MEMOIZE_OPCODES = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_ALLOWED_OPCODES = frozenset(
    {
        *_TEXT_OPCODES,
        *_MEMOIZE_OPCODES,
        *("GET", "BINGET", "LONG_BINGET"),
        *("PROTO", "FRAME", "MARK", "STOP"),
        *("NONE", "NEWTRUE", "NEWFALSE"),
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
        *("EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    }
)
# What pickletools and the unpickler raise for damaged files.
_PARSE_ERRORS = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError),
    *(AttributeError, OverflowError, MemoryError),
)


class UnsafePickleError(Exception):
    """Why a pickle is refused; the message follows the name of the file."""


def load_safe_pickle(content: bytes) -> Any:
    """The content of a pickle of dicts, lists, text, bytes and numbers; UnsafePickleError for any other."""
    if len(content) > MAX_PICKLE_BYTES:
        raise UnsafePickleError(f"has more than {MAX_PICKLE_BYTES:,} bytes")
    try:
        _check_opcodes(content)
        return _SafeUnpickler(io.BytesIO(content)).load()
    except _PARSE_ERRORS as error:
        raise UnsafePickleError(f"is not a whole pickle ({type(error).__name__})") from error


def _check_opcodes(content: bytes) -> None:
    last_texts: deque[str] = deque(maxlen=2)
    memoized = byte = 0
    for count, (opcode, argument, position) in enumerate(pickletools.genops(content)):
        byte = position or 0
        if opcode.name not in _ALLOWED_OPCODES:
            if opcode.name in ("GLOBAL", "INST"):
                action = f"wants to call {_printable(str(argument).replace(' ', '.'))}"
            elif opcode.name == "STACK_GLOBAL":  # its names are on the stack, usually the last two texts
                action = f"wants to call {_printable('.'.join(last_texts))}"
            else:
                action = f"has the instruction {opcode.name}"
            raise UnsafePickleError(f"{action} at byte {byte:,}")
        if count >= MAX_INSTRUCTIONS:
            raise UnsafePickleError(f"has more than {MAX_INSTRUCTIONS:,} instructions")
        # Larger numbers can be chosen to have equal hashes, which makes a dict of them very slow.
        if isinstance(argument, int) and not -(2**63) <= argument < 2**63:
            raise UnsafePickleError(f"has an absurdly large number at byte {byte:,}")
        if opcode.name in _MEMOIZE_OPCODES:
            # The unpickler allocates up to the number given, so a few bytes could allocate gigabytes.
            if argument is not None and argument > memoized + 1:
                raise UnsafePickleError(f"numbers its values absurdly at byte {byte:,}")
            memoized += 1
        if opcode.name in _TEXT_OPCODES:
            last_texts.append(str(argument))
    if byte + 1 != len(content):
        raise UnsafePickleError(f"goes on after its end at byte {byte:,}")


def _printable(text: str) -> str:
    """Text from the file without control characters, for the terminal."""
    return ascii(text[:100])[1:-1]


class _SafeUnpickler(pickle.Unpickler):
    """A second barrier, should an opcode get past the check: it can import nothing."""

    def find_class(self, module: str, name: str) -> Never:
        raise UnsafePickleError(f"wants to call {_printable(f'{module}.{name}')}")

    def persistent_load(self, pid: Any) -> Never:
        raise UnsafePickleError("wants to load something from elsewhere")
