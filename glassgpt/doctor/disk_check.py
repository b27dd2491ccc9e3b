"""The disk that runs are written to: room, speed, and what a checkpoint costs there."""

from __future__ import annotations

import errno
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from glassgpt import format
from glassgpt.doctor import gpt2
from glassgpt.doctor.check import Line, Number, Visit
from glassgpt.paths import nearest_folder
from glassgpt.training.checkpoint.tensor_file import Packed, pack, write_packed

Clock = Callable[[], float]
Write = Callable[[Path, Packed], object]  # a file of these bytes, on the disk when it returns

_SIZES = (2**22, 2**25, 2**27)  # 4, 32 and 128 MiB
_BUDGET_S = 1.0
_KEPT = 3  # the last checkpoint, the best one, and the one that is being written
_LONG_S, _TOO_LONG_S = 30.0, 300.0
_ELSEWHERE = "choose another place by --out_dir"


def look_at_disk(visit: Visit) -> list[Line]:
    place = nearest_folder(visit.out_dir)
    free = shutil.disk_usage(place).free
    room = room_line(f"{visit.out_dir}", free, exists=place == visit.out_dir)
    sizes = [size for size in _SIZES if size <= free / 4]
    if not sizes:  # a full disk; the line above says so
        return [room]
    try:
        speed = write_speed(place, sizes)
    except OSError as error:
        return [room, unwritable_line(error)]
    return [room, checkpoint_line(speed, free)]


def room_line(place: str, free: int, exists: bool) -> Line:
    says = f"{format.size(free)} free at {place}" + ("" if exists else " (to be made)")
    numbers: dict[str, Number] = {"free": free, "out_dir": place}
    need = f"{_KEPT} checkpoints of {gpt2.NAME}, which is what a run may need at once, are "
    need += format.size(_KEPT * gpt2.CHECKPOINT_BYTES)
    if free < gpt2.CHECKPOINT_BYTES:
        return Line("disk", f"{says}; {need}", "problem", f"make room, or {_ELSEWHERE}", numbers)
    if free < _KEPT * gpt2.CHECKPOINT_BYTES:
        return Line("disk", f"{says}; {need}", "note", f"make room, or {_ELSEWHERE}", numbers)
    return Line("disk", says, numbers=numbers)


def unwritable_line(error: OSError) -> Line:
    reasons = {
        errno.EROFS: "it is read-only",
        errno.EACCES: "it belongs to somebody else",
        errno.ENOSPC: "it is full, or your share of it is",
        errno.EDQUOT: "your share of it is full",
    }
    why = reasons.get(error.errno or 0, str(error.strerror or error))
    return Line("disk speed", f"nothing can be written there: {why}", "problem", _ELSEWHERE)


# --- speed ---


def write_speed(
    folder: Path,
    sizes: Sequence[int] = _SIZES,
    budget_s: float = _BUDGET_S,
    clock: Clock = time.perf_counter,
    write: Write | None = None,
) -> float:
    """Bytes per second of the largest file that is on the disk in about `budget_s`."""
    deadline = clock() + budget_s
    speed = 0.0
    with tempfile.TemporaryDirectory(prefix=".glass-doctor-", dir=folder) as work:
        for size in sizes:
            if speed and clock() + size / speed > deadline:
                break
            packed = some_bytes(size)
            started = clock()
            (write or write_packed)(Path(work) / "file", packed)
            speed = size / max(clock() - started, 1e-9)
    return speed


def some_bytes(size: int) -> Packed:
    """Not zeros, which some disks do not store."""
    some = torch.randint(0, 256, (min(size, 2**20),), dtype=torch.uint8)
    content = some.repeat(-(-size // len(some)))[:size]
    return pack({"content": content}, content.device)


def checkpoint_line(write: float, free: int) -> Line:
    """`write`: bytes per second of what a checkpoint is written by."""
    size = gpt2.CHECKPOINT_BYTES
    seconds = size / write
    says = (
        f"{format.size(write)}/s, hashed and with fsync. A checkpoint of {gpt2.NAME} (weights and AdamW's "
        f"state, {format.size(size)}) takes about {format.duration(seconds)}, in the background; "
        f"{format.whole(free // size)} would fit"
    )
    numbers: dict[str, Number] = {
        "write_bytes_per_s": write,
        "checkpoint_bytes": size,
        "checkpoint_s": seconds,
        "checkpoints_that_fit": free // size,
    }
    if seconds < _LONG_S:
        return Line("disk speed", says, numbers=numbers)
    verdict = "note" if seconds < _TOO_LONG_S else "problem"
    fix = f"save less often by --checkpoint_interval, or {_ELSEWHERE}"
    return Line("disk speed", says, verdict, fix, numbers)  # type: ignore[arg-type]
