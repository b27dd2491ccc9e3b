"""Records of looks into some updates: whether one that comes from a file is what it should be."""

from __future__ import annotations

import math

from glassgpt.record.journal import Record


def is_valid_profile(record: Record) -> bool:
    """Whether all that is shown of it is there, and of the right kind."""
    pieces = record.get("top")
    return (
        _has(record, ("from_iter", "updates", "wall_ms", "busy"), ("trace", "of"))
        and isinstance(pieces, list)
        and all(
            isinstance(piece, dict) and _has(piece, ("ms", "share", "calls"), ("name",)) for piece in pieces
        )
    )


def _has(record: object, numbers: tuple[str, ...], texts: tuple[str, ...]) -> bool:
    if not isinstance(record, dict):
        return False
    return all(_is_number(record.get(name)) for name in numbers) and all(
        isinstance(record.get(name), str) for name in texts
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
