"""A disk that is full, in the words of whoever writes tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from safetensors import SafetensorError

from glassgpt.errors import error_type_and_message


@contextlib.contextmanager
def disk_errors_as_os_error() -> Iterator[None]:
    """An OSError if it fails: safetensors and torch have exceptions of their own for that."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        raise OSError(f"the disk may be full; {error_type_and_message(error)}") from error
