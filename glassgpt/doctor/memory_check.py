"""Main memory."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped]

from glassgpt import format
from glassgpt.cgroup import ROOT, memory_room, own_groups
from glassgpt.doctor import gpt2
from glassgpt.doctor.check import Line, Visit

_LITTLE, _TOO_LITTLE = 4 * 2**30, 2**30


def look_at_memory(visit: Visit) -> list[Line]:
    memory = psutil.virtual_memory()
    room = memory_room(own_groups(), ROOT)
    return [memory_line(memory.available, memory.total, room)]


def memory_line(available: int, total: int, room: tuple[int, int] | None) -> Line:
    """`room`: what a container may use, and what is left of that."""
    limited = room is not None and room[0] < total
    if room is not None and limited:
        total, available = room[0], min(available, room[1])
    says = f"{format.size(available)} of {format.size(total)} free"
    says += ", a container's limit" if limited else ""
    numbers = {"available": available, "total": total, "limited": limited}
    if available < _TOO_LITTLE:
        return Line(
            "memory",
            f"{says}: too little for anything but tiny models",
            "problem",
            "end other programs, or raise the limit",
            numbers,
        )
    if available < _LITTLE:
        return Line(
            "memory",
            f"{says}; of {gpt2.NAME}, weights, gradients and AdamW's state alone take "
            f"{format.size(gpt2.STATE_BYTES)}",
            "note",
            "end other programs, or train smaller models",
            numbers,
        )
    return Line("memory", says, numbers=numbers)
