"""The disk that runs are written to: free space, write speed, time and size of a checkpoint."""

from __future__ import annotations

import errno
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from glassgpt.doctor.diagnosis import CheckContext, DiagnosticLine, ReportValue
from glassgpt.doctor.host_checks import GPT2_CHECKPOINT_BYTES, GPT2_NAME
from glassgpt.files import nearest_existing_folder
from glassgpt.format import format_bytes, format_duration, format_integer
from glassgpt.training.checkpoint.tensor_file import PackedTensors, pack_tensors, write_packed

Clock = Callable[[], float]
WriteFile = Callable[[Path, PackedTensors], object]  # writes and syncs a file

_TEST_FILE_BYTES = (2**22, 2**25, 2**27)  # 4, 32 and 128 MiB
_BUDGET_S = 1.0
_CHECKPOINTS_ON_DISK = 3  # the last checkpoint, the best one, and the one being written
_SLOW_CHECKPOINT_S, _VERY_SLOW_CHECKPOINT_S = 30.0, 300.0
_OTHER_OUT_DIR_FIX = "choose another folder with --out_dir"


def check_disk(context: CheckContext) -> list[DiagnosticLine]:
    folder = nearest_existing_folder(context.out_dir)
    free = shutil.disk_usage(folder).free
    space = free_space_line(f"{context.out_dir}", free, exists=folder == context.out_dir)
    sizes = [size for size in _TEST_FILE_BYTES if size <= free / 4]
    if not sizes:  # a full disk; the line above says so
        return [space]
    try:
        speed = measure_write_speed(folder, sizes)
    except OSError as error:
        return [space, unwritable_line(error)]
    return [space, checkpoint_line(speed, free)]


def free_space_line(out_dir: str, free: int, exists: bool) -> DiagnosticLine:
    message = f"{format_bytes(free)} free at {out_dir}" + ("" if exists else " (will be created)")
    line = DiagnosticLine("disk", message, values={"free": free, "out_dir": out_dir})
    needed_bytes = _CHECKPOINTS_ON_DISK * GPT2_CHECKPOINT_BYTES
    if free >= needed_bytes:
        return line
    remark = f"; a run may hold {_CHECKPOINTS_ON_DISK} checkpoints, which for {GPT2_NAME} are "
    remark += format_bytes(needed_bytes)
    report = line.problem if free < GPT2_CHECKPOINT_BYTES else line.note
    return report(remark, f"make room, or {_OTHER_OUT_DIR_FIX}")


def unwritable_line(error: OSError) -> DiagnosticLine:
    reasons = {
        errno.EROFS: "it is read-only",
        errno.EACCES: "permission denied",
        errno.ENOSPC: "it is full, or your quota is",
        errno.EDQUOT: "your disk quota is full",
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
    """Bytes per second, of the largest file that can be written in about `budget_s`."""
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
    """Random bytes: some file systems do not store zeros."""
    block = torch.randint(0, 256, (min(size, 2**20),), dtype=torch.uint8)
    content = block.repeat(-(-size // len(block)))[:size]
    return pack_tensors({"content": content}, content.device)


def checkpoint_line(write_speed: float, free: int) -> DiagnosticLine:
    """`write_speed`: bytes per second."""
    size = GPT2_CHECKPOINT_BYTES
    seconds = size / write_speed
    took, checkpoint = format_duration(seconds), format_bytes(size)
    message = (
        f"{format_bytes(write_speed)}/s, with SHA-256 and fsync. A checkpoint of {GPT2_NAME} "
        f"(weights and AdamW's state, {checkpoint}) takes about {took}, in the background; "
        f"{format_integer(free // size)} would fit"
    )
    values: dict[str, ReportValue] = {
        "write_bytes_per_s": write_speed,
        "checkpoint_bytes": size,
        "checkpoint_s": seconds,
        "checkpoints_that_fit": free // size,
    }
    line = DiagnosticLine("disk speed", message, values=values)
    if seconds < _SLOW_CHECKPOINT_S:
        return line
    report = line.note if seconds < _VERY_SLOW_CHECKPOINT_S else line.problem
    return report("", f"save less often with --checkpoint_interval, or {_OTHER_OUT_DIR_FIX}")
