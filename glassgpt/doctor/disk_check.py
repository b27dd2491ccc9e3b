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
from glassgpt.doctor.check import CheckContext, DiagnosticLine, ReportValue
from glassgpt.doctor.host_checks import GPT2_CHECKPOINT_BYTES, GPT2_NAME
from glassgpt.files import nearest_existing_folder
from glassgpt.training.checkpoint.tensor_file import PackedTensors, pack_tensors, write_packed

Clock = Callable[[], float]
WriteFile = Callable[[Path, PackedTensors], object]  # a file of these bytes, on the disk when it returns

_TEST_FILE_BYTES = (2**22, 2**25, 2**27)  # 4, 32 and 128 MiB
_BUDGET_S = 1.0
_CHECKPOINTS_ON_DISK = 3  # the last checkpoint, the best one, and the one that is being written
_SLOW_CHECKPOINT_S, _VERY_SLOW_CHECKPOINT_S = 30.0, 300.0
_OTHER_OUT_DIR_FIX = "choose another place by --out_dir"


def check_disk(context: CheckContext) -> list[DiagnosticLine]:
    place = nearest_existing_folder(context.out_dir)
    free = shutil.disk_usage(place).free
    room = free_space_line(f"{context.out_dir}", free, exists=place == context.out_dir)
    sizes = [size for size in _TEST_FILE_BYTES if size <= free / 4]
    if not sizes:  # a full disk; the line above says so
        return [room]
    try:
        speed = measure_write_speed(place, sizes)
    except OSError as error:
        return [room, unwritable_line(error)]
    return [room, checkpoint_line(speed, free)]


def free_space_line(place: str, free: int, exists: bool) -> DiagnosticLine:
    says = f"{format.format_bytes(free)} free at {place}" + ("" if exists else " (to be made)")
    numbers: dict[str, ReportValue] = {"free": free, "out_dir": place}
    need = f"{_CHECKPOINTS_ON_DISK} checkpoints of {GPT2_NAME}, which is what a run may need at once, are "
    need += format.format_bytes(_CHECKPOINTS_ON_DISK * GPT2_CHECKPOINT_BYTES)
    if free < GPT2_CHECKPOINT_BYTES:
        return DiagnosticLine(
            "disk", f"{says}; {need}", "problem", f"make room, or {_OTHER_OUT_DIR_FIX}", numbers
        )
    if free < _CHECKPOINTS_ON_DISK * GPT2_CHECKPOINT_BYTES:
        return DiagnosticLine(
            "disk", f"{says}; {need}", "note", f"make room, or {_OTHER_OUT_DIR_FIX}", numbers
        )
    return DiagnosticLine("disk", says, numbers=numbers)


def unwritable_line(error: OSError) -> DiagnosticLine:
    reasons = {
        errno.EROFS: "it is read-only",
        errno.EACCES: "it belongs to somebody else",
        errno.ENOSPC: "it is full, or your share of it is",
        errno.EDQUOT: "your share of it is full",
    }
    why = reasons.get(error.errno or 0, str(error.strerror or error))
    return DiagnosticLine("disk speed", f"nothing can be written there: {why}", "problem", _OTHER_OUT_DIR_FIX)


# --- speed ---


def measure_write_speed(
    folder: Path,
    sizes: Sequence[int] = _TEST_FILE_BYTES,
    budget_s: float = _BUDGET_S,
    clock: Clock = time.perf_counter,
    write: WriteFile | None = None,
) -> float:
    """Bytes per second of the largest file that is on the disk in about `budget_s`."""
    deadline = clock() + budget_s
    speed = 0.0
    with tempfile.TemporaryDirectory(prefix=".glass-doctor-", dir=folder) as work:
        for size in sizes:
            if speed and clock() + size / speed > deadline:
                break
            packed = random_payload(size)
            started = clock()
            (write or write_packed)(Path(work) / "file", packed)
            speed = size / max(clock() - started, 1e-9)
    return speed


def random_payload(size: int) -> PackedTensors:
    """Not zeros, which some disks do not store."""
    some = torch.randint(0, 256, (min(size, 2**20),), dtype=torch.uint8)
    content = some.repeat(-(-size // len(some)))[:size]
    return pack_tensors({"content": content}, content.device)


def checkpoint_line(write: float, free: int) -> DiagnosticLine:
    """`write`: bytes per second of what a checkpoint is written by."""
    size = GPT2_CHECKPOINT_BYTES
    seconds = size / write
    took, checkpoint = format.format_duration(seconds), format.format_bytes(size)
    says = (
        f"{format.format_bytes(write)}/s, hashed and with fsync. A checkpoint of {GPT2_NAME} (weights and "
        f"AdamW's state, {checkpoint}) takes about {took}, in the background; "
        f"{format.format_integer(free // size)} would fit"
    )
    numbers: dict[str, ReportValue] = {
        "write_bytes_per_s": write,
        "checkpoint_bytes": size,
        "checkpoint_s": seconds,
        "checkpoints_that_fit": free // size,
    }
    if seconds < _SLOW_CHECKPOINT_S:
        return DiagnosticLine("disk speed", says, numbers=numbers)
    verdict = "note" if seconds < _VERY_SLOW_CHECKPOINT_S else "problem"
    fix = f"save less often by --checkpoint_interval, or {_OTHER_OUT_DIR_FIX}"
    return DiagnosticLine("disk speed", says, verdict, fix, numbers)  # type: ignore[arg-type]
