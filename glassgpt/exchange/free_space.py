"""A disk that is full, in the words of whoever writes tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from safetensors import SafetensorError

from glassgpt.errors import first_line


@contextlib.contextmanager
def written_to_disk() -> Iterator[None]:
    """An OSError if it fails: safetensors and torch have exceptions of their own for that."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        raise OSError(f"the disk may be full; {first_line(error)}") from error
