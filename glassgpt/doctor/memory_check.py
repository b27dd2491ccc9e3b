"""Main memory."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped]

from glassgpt import format
from glassgpt.cgroup import CGROUP_ROOT
from glassgpt.cgroup import memory_limit_and_free_bytes
from glassgpt.cgroup import read_own_cgroups
from glassgpt.doctor import gpt2
from glassgpt.doctor.check import CheckContext
from glassgpt.doctor.check import DiagnosticLine

_LOW_MEMORY_BYTES, _TOO_LOW_MEMORY_BYTES = 4 * 2**30, 2**30


def check_memory(visit: CheckContext) -> list[DiagnosticLine]:
    memory = psutil.virtual_memory()
    room = memory_limit_and_free_bytes(read_own_cgroups(), CGROUP_ROOT)
    return [memory_line(memory.available, memory.total, room)]


def memory_line(available: int, total: int, room: tuple[int, int] | None) -> DiagnosticLine:
    """`room`: what a container may use, and what is left of that."""
    limited = room is not None and room[0] < total
    if room is not None and limited:
        total, available = room[0], min(available, room[1])
    says = f"{format.format_bytes(available)} of {format.format_bytes(total)} free"
    says += ", a container's limit" if limited else ""
    numbers = {"available": available, "total": total, "limited": limited}
    if available < _TOO_LOW_MEMORY_BYTES:
        return DiagnosticLine(
            "memory",
            f"{says}: too little for anything but tiny models",
            "problem",
            "end other programs, or raise the limit",
            numbers,
        )
    if available < _LOW_MEMORY_BYTES:
        return DiagnosticLine(
            "memory",
            f"{says}; of {gpt2.MODEL_NAME}, weights, gradients and AdamW's state alone take "
            f"{format.format_bytes(gpt2.TRAINING_STATE_BYTES)}",
            "note",
            "end other programs, or train smaller models",
            numbers,
        )
    return DiagnosticLine("memory", says, numbers=numbers)
