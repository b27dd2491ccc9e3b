"""The one exception for mistakes a user can fix; and what messages are made of.

It carries every problem found, each a sentence that names the flag and the fix. The command line prints
them one per line and exits with code 2; nothing has been written by then. Bugs raise anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


class UserError(Exception):
    """One or more problems the user can fix."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


_OUT_OF_MEMORY_PHRASES = (
    "MemoryError",
    "can't allocate memory",
    "not enough memory",
    "ALLOC_FAILED",
    "out of memory",
    "failed to map segment",  # of a library that is being imported
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out."""
    kinds = MemoryError | RuntimeError | ImportError
    return isinstance(error, kinds) and mentions_out_of_memory(error_type_and_message(error))


def mentions_out_of_memory(error: str) -> bool:
    """Torch has a name for it on cards; its CPU allocator and CUDA's libraries only have words."""
    return any(word in error for word in _OUT_OF_MEMORY_PHRASES)


def is_thread_start_failure(error: BaseException) -> bool:
    """Whether the system refused a thread; Python has only words for it."""
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def describe_os_error(error: OSError) -> str:
    """What the system refused, and of which file. It names none when reading, writing or closing fails: then
    that is the path which the innermost function on the way there works with."""
    what, where, trace = error.strerror or first_message_line(error), error.filename, error.__traceback__
    while error.errno is not None and error.filename is None and trace is not None:
        paths = [value for value in trace.tb_frame.f_locals.values() if isinstance(value, Path)]
        where, trace = paths[-1] if paths else where, trace.tb_next
    return what if where is None else f"{what}: {str(where)[:200]}"


THREAD_START_FAILURE = (
    "the system refused to start a thread: allow more processes (ulimit -u) or more memory (ulimit -v), "
    "or end other programs"
)


_MAX_MESSAGE_CHARS = 300  # characters of somebody else's message


def first_message_line(error: BaseException) -> str:
    """How its message begins; its kind, if it has none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip()[:_MAX_MESSAGE_CHARS]


def error_type_and_message(error: BaseException) -> str:
    """Its kind, and how its message begins."""
    kind = type(error).__name__
    return f"{kind}: {first_message_line(error)}"[:_MAX_MESSAGE_CHARS] if str(error).strip() else kind


def join_first(names: Iterable[str], most: int = 10) -> str:
    """a, b, c, ..."""
    shown = list(names)
    return ", ".join(shown[:most]) + (", ..." if len(shown) > most else "")


def user_error_for_files(problems: Sequence[str], most: int = 10) -> UserError:
    """One problem a file, of a folder that may have thousands."""
    more = len(problems) - most
    return UserError([*problems[:most], *([f"... and {more} more files like these"] if more > 0 else [])])
