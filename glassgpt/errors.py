"""UserError, the one exception for problems that a user can fix; and helpers for error messages.

It carries all problems, each a sentence that names the flag and the fix. The command line prints
them one per line and exits with code 2. Bugs raise anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """One or more problems the user can fix."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


def raise_if_any(problems: Sequence[str]) -> None:
    """Raises one UserError with all problems, if there are any."""
    if problems:
        raise UserError(problems)


@contextmanager
def collect_problems(problems: list[str]) -> Iterator[None]:
    """The problems of a UserError that is raised inside are appended, to be reported with others."""
    try:
        yield
    except UserError as error:
        problems += error.problems


_OUT_OF_MEMORY_PHRASES = (
    "MemoryError",
    "can't allocate memory",
    "not enough memory",
    "ALLOC_FAILED",
    "out of memory",
    "failed to map segment",  # while a shared library is imported
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out."""
    kinds = MemoryError | RuntimeError | ImportError
    return isinstance(error, kinds) and mentions_out_of_memory(error_type_and_message(error))


def mentions_out_of_memory(error: str) -> bool:
    """Torch has an exception class for GPUs; its CPU allocator and CUDA's libraries only have messages."""
    return any(phrase in error for phrase in _OUT_OF_MEMORY_PHRASES)


def is_thread_start_failure(error: BaseException) -> bool:
    """Whether the system refused to start a thread; Python has no exception class for it."""
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def describe_os_error(error: OSError) -> str:
    """The message and the path of an OSError.

    A failed read, write or close names no file: then the path is that of the innermost function in the
    traceback that has one among its variables.
    """
    message, path, trace = error.strerror or first_message_line(error), error.filename, error.__traceback__
    while error.errno is not None and error.filename is None and trace is not None:
        paths = [value for value in trace.tb_frame.f_locals.values() if isinstance(value, Path)]
        path, trace = paths[-1] if paths else path, trace.tb_next
    return message if path is None else f"{message}: {str(path)[:200]}"


THREAD_START_FAILURE = (
    "the system refused to start a thread: allow more processes (ulimit -u) or more memory (ulimit -v), "
    "or end other programs"
)


_MAX_MESSAGE_CHARS = 300  # messages of libraries can be pages long


def first_message_line(error: BaseException) -> str:
    """The first line of its message; its type, if it has none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip()[:_MAX_MESSAGE_CHARS]


def error_type_and_message(error: BaseException) -> str:
    """Its type, and the first line of its message."""
    name = type(error).__name__
    return f"{name}: {first_message_line(error)}"[:_MAX_MESSAGE_CHARS] if str(error).strip() else name


def join_first(names: Iterable[str], limit: int = 10) -> str:
    """a, b, c, ..."""
    all_names = list(names)
    return ", ".join(all_names[:limit]) + (", ..." if len(all_names) > limit else "")


def user_error_for_files(problems: Sequence[str]) -> UserError:
    """One problem per file; only the first ten of a folder with thousands."""
    more = len(problems) - 10
    return UserError([*problems[:10], *([f"... and {more} more files like these"] if more > 0 else [])])
