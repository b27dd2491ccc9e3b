"""The output of a Jupyter notebook, without its source: code that prints a line is no line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

from glassgpt.errors import UserError
from glassgpt.runs.lines import LogLine, read_lines

MAX_NOTEBOOK_BYTES = 256 << 20  # bytes; it has to be read whole


def is_notebook(start: bytes) -> bool:
    """By its first bytes."""
    return start.lstrip()[:1] == b"{" and (b'"cells"' in start or b'"nbformat"' in start)


def read_notebook(content: bytes, name: str) -> Iterator[LogLine] | None:
    """Its output line by line; None where it is no notebook after all."""
    if len(content) > MAX_NOTEBOOK_BYTES:
        raise UserError(
            f"{name} is a notebook of more than {MAX_NOTEBOOK_BYTES >> 20} MiB: save its output as text"
        )
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        return None
    printed = "\n".join(text for cell in document["cells"] for text in _outputs(cell))
    return read_lines(io.BytesIO(printed.encode("utf-8", "replace") + b"\n"))


def _outputs(cell: Any) -> Iterator[str]:
    outputs = cell.get("outputs") if isinstance(cell, dict) else None
    for output in outputs if isinstance(outputs, list) else []:
        if not isinstance(output, dict):
            continue
        data = output.get("data")
        plain = data.get("text/plain") if isinstance(data, dict) else None
        for text in (output.get("text"), plain, output.get("traceback")):
            if isinstance(text, str):
                yield text
            elif isinstance(text, list):
                yield "".join(part for part in text if isinstance(part, str))
