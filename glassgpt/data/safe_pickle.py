"""Read a pickle of plain data without executing anything.

A pickle is a program, and `pickle.load` runs it: any file can start any other program that way. Dicts,
lists, text and numbers need few of its instructions, and none that looks something up or calls it. So the
program is read first, from beginning to end, and run only if it has no other instruction than those.

Tuples are not among them: as the key of a dict, a few of them nested cleverly take years to hash.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import deque
from typing import Any, Never

MOST_BYTES = 64_000_000
# Seven are needed per character of a vocabulary: this is four times the largest that fits 16 bits.
MOST_INSTRUCTIONS = 2_000_000

_TEXT = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_MEMOIZE = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_ALLOWED = frozenset(
    {
        *_TEXT,
        *_MEMOIZE,
        *("GET", "BINGET", "LONG_BINGET"),
        *("PROTO", "FRAME", "MARK", "STOP"),
        *("NONE", "NEWTRUE", "NEWFALSE"),
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
        *("EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    }
)
# What both readers raise for bytes that make no sense.
_NONSENSE = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError),
    *(AttributeError, OverflowError, MemoryError),
)


class NotPlainError(Exception):
    """Why a pickle is refused: the end of a sentence that begins with the name of the file."""


def load_plain(content: bytes) -> Any:
    """What a pickle holds, if that is dicts, lists, text, bytes and numbers; else NotPlainError."""
    if len(content) > MOST_BYTES:
        raise NotPlainError(f"has more than {MOST_BYTES:,} bytes")
    try:
        _check_instructions(content)
        return _PlainUnpickler(io.BytesIO(content)).load()
    except _NONSENSE as error:
        raise NotPlainError(f"is not a whole pickle ({type(error).__name__})") from error


def _check_instructions(content: bytes) -> None:
    recent: deque[str] = deque(maxlen=2)
    memoized = byte = 0
    for count, (opcode, argument, position) in enumerate(pickletools.genops(content)):
        byte = position or 0
        if opcode.name not in _ALLOWED:
            raise NotPlainError(f"{_wish(opcode.name, argument, recent)} at byte {byte:,}")
        if count >= MOST_INSTRUCTIONS:
            raise NotPlainError(f"has more than {MOST_INSTRUCTIONS:,} instructions")
        # Python hashes larger numbers to equal values on demand, which makes a dict of them very slow.
        if isinstance(argument, int) and not -(2**63) <= argument < 2**63:
            raise NotPlainError(f"has an absurdly large number at byte {byte:,}")
        if opcode.name in _MEMOIZE:
            # The unpickler makes room up to the number given, so a few bytes could ask for gigabytes.
            if argument is not None and argument > memoized + 1:
                raise NotPlainError(f"numbers its values absurdly at byte {byte:,}")
            memoized += 1
        if opcode.name in _TEXT:
            recent.append(str(argument))
    if byte + 1 != len(content):
        raise NotPlainError(f"goes on after its end at byte {byte:,}")


def _wish(instruction: str, argument: Any, recent: deque[str]) -> str:
    """What an instruction that is not allowed would have done, in words."""
    if instruction in ("GLOBAL", "INST"):
        return f"wants to call {_printable(argument.replace(' ', '.'))}"
    if instruction == "STACK_GLOBAL":  # its names are on the stack, as a rule the last texts put there
        return f"wants to call {_printable('.'.join(recent))}"
    return f"has the instruction {instruction}"


def _printable(text: str) -> str:
    """Nothing from the file reaches a terminal as control characters."""
    return ascii(text[:100])[1:-1]


class _PlainUnpickler(pickle.Unpickler):
    """Should an instruction get past the check after all, it finds nothing to call."""

    def find_class(self, module: str, name: str) -> Never:
        raise NotPlainError(f"wants to call {_printable(f'{module}.{name}')}")

    def persistent_load(self, pid: Any) -> Never:
        raise NotPlainError("wants to load something from elsewhere")
