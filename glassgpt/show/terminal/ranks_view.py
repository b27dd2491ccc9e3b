"""How several processes shared a run, in a line."""

from __future__ import annotations

from glassgpt.record.journal import Record


def scaling_efficiency_line(ranks: Record) -> str:
    """Of an `end` record; empty where exchanging cannot be told from computing."""
    if ranks["efficiency"] is None:
        return ""
    count = len(ranks["work_s"])
    text = f"{count} at {ranks['efficiency']:.0%} of what each would do alone; "
    return text + (
        f"{ranks['exchanging']:.0%} went into exchanging gradients, {ranks['waiting']:.0%} into waiting for "
        f"the slowest, rank {ranks['slowest']}"
    )
