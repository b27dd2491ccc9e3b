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

MAX_PICKLE_BYTES = 64_000_000
# Seven are needed per character of a vocabulary: this is four times the largest that fits 16 bits.
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
# What both readers raise for bytes that make no sense.
_PARSE_ERRORS = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError),
    *(AttributeError, OverflowError, MemoryError),
)


class UnsafePickleError(Exception):
    """Why a pickle is refused: the end of a sentence that begins with the name of the file."""


def load_safe_pickle(content: bytes) -> Any:
    """What a pickle holds, if that is dicts, lists, text, bytes and numbers; else NotPlainError."""
    if len(content) > MAX_PICKLE_BYTES:
        raise UnsafePickleError(f"has more than {MAX_PICKLE_BYTES:,} bytes")
    try:
        _check_instructions(content)
        return _SafeUnpickler(io.BytesIO(content)).load()
    except _PARSE_ERRORS as error:
        raise UnsafePickleError(f"is not a whole pickle ({type(error).__name__})") from error


def _check_instructions(content: bytes) -> None:
    recent: deque[str] = deque(maxlen=2)
    memoized = byte = 0
    for count, (opcode, argument, position) in enumerate(pickletools.genops(content)):
        byte = position or 0
        if opcode.name not in _ALLOWED_OPCODES:
            raise UnsafePickleError(f"{_wish(opcode.name, argument, recent)} at byte {byte:,}")
        if count >= MAX_INSTRUCTIONS:
            raise UnsafePickleError(f"has more than {MAX_INSTRUCTIONS:,} instructions")
        # Python hashes larger numbers to equal values on demand, which makes a dict of them very slow.
        if isinstance(argument, int) and not -(2**63) <= argument < 2**63:
            raise UnsafePickleError(f"has an absurdly large number at byte {byte:,}")
        if opcode.name in _MEMOIZE_OPCODES:
            # The unpickler makes room up to the number given, so a few bytes could ask for gigabytes.
            if argument is not None and argument > memoized + 1:
                raise UnsafePickleError(f"numbers its values absurdly at byte {byte:,}")
            memoized += 1
        if opcode.name in _TEXT_OPCODES:
            recent.append(str(argument))
    if byte + 1 != len(content):
        raise UnsafePickleError(f"goes on after its end at byte {byte:,}")


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


class _SafeUnpickler(pickle.Unpickler):
    """Should an instruction get past the check after all, it finds nothing to call."""

    def find_class(self, module: str, name: str) -> Never:
        raise UnsafePickleError(f"wants to call {_printable(f'{module}.{name}')}")

    def persistent_load(self, pid: Any) -> Never:
        raise UnsafePickleError("wants to load something from elsewhere")
