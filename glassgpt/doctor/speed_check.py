"""FLOP/s of matmuls and memory bandwidth of each device, measured and compared with the card table."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from glassgpt.doctor.diagnosis import CheckContext, DiagnosticLine, ReportValue
from glassgpt.doctor.gpu_checks import all_devices, device_label, dtypes_to_measure
from glassgpt.estimate.cards import Card, find_card
from glassgpt.estimate.peak import PeakFlops, RepeatOperation, measure_rate, mfu_note
from glassgpt.format import format_flops_per_s, format_percent
from glassgpt.record.machine import cpu_model
from glassgpt.training.probe import find_peak

if TYPE_CHECKING:
    import torch

_PROBE_S = 0.5  # for each dtype
_COPY_S = 0.3
_COPY_BYTES = {"cpu": 2**28, "cuda": 2**30, "mps": 2**28}  # at most; larger than any cache

# Shares of the table's figure. Matmuls reach about 80% at best; laptops and small data-centre cards are often
# held back by their power limit.
_GOOD_MATMUL_SHARE, _BAD_MATMUL_SHARE = 0.6, 0.3
_GOOD_BANDWIDTH_SHARE, _BAD_BANDWIDTH_SHARE = 0.7, 0.4


def _name_and_memory(device: torch.device) -> tuple[str, int | None]:
    from glassgpt.training.device import device_name, free_and_total_bytes

    if device.type == "cpu":
        return cpu_model(), None
    return device_name(device), free_and_total_bytes(device)[1]


# --- matmuls ---


def check_matmuls(context: CheckContext) -> list[DiagnosticLine]:
    import torch

    torch.set_float32_matmul_precision("high")  # as in a run: TF32 on cards that have it
    lines = []
    for device in all_devices():
        name, memory = _name_and_memory(device)
        for dtype in dtypes_to_measure(device):
            with _device_context(device):
                peak = find_peak(device.type, name, dtype, memory, _PROBE_S)
            lines.append(matmul_line(f"matmul {device_label(device)}", device.type, dtype, peak))
    return lines


def _device_context(device: torch.device) -> AbstractContextManager[object]:
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def matmul_line(name: str, device_type: str, dtype: str, peak: PeakFlops) -> DiagnosticLine:
    values: dict[str, ReportValue] = {
        "device": device_type,
        "dtype": dtype,
        "measured_flops_per_s": peak.measured,
        "table_flops_per_s": peak.table,
    }
    if peak.measured is None:
        message = f"{dtype}: {peak.measured_how or 'not measured'}"
        return DiagnosticLine(name, message, "problem", "another program may fill the memory", values)
    message = f"{dtype}: {format_flops_per_s(peak.measured)}"
    if peak.table is None:
        line = DiagnosticLine(name, message, values=values)
        remark = "; this card or dtype is not in the card table: MFU will be relative to this speed"
        return line if device_type == "cpu" else line.note(remark)
    share = peak.measured / peak.table
    message += f", {format_percent(share)} of the table's {format_flops_per_s(peak.table)}"
    if share > 1:
        message += f". {mfu_note(100 * share, peak)}"
    line = DiagnosticLine(name, message, values=values)
    return _rate_share(line, share, _GOOD_MATMUL_SHARE, _BAD_MATMUL_SHARE)


def _rate_share(line: DiagnosticLine, share: float, good: float, bad: float) -> DiagnosticLine:
    """`share`: of the figure in the card table."""
    if share >= good:
        return line
    fix = "see the clocks: heat, a power limit or another program can slow a card down"
    return line.note("", fix) if share >= bad else line.problem("", fix)


# --- memory ---


def check_bandwidth(context: CheckContext) -> list[DiagnosticLine]:
    import torch

    lines = []
    for device in all_devices():
        name, memory = _name_and_memory(device)
        with _device_context(device):
            on_gpu = device.type == "cuda"
            free = torch.cuda.mem_get_info(device)[0] if on_gpu else int(psutil.virtual_memory().available)
            size = copy_size_bytes(device.type, free)
            measured = measure_bandwidth(_make_copy(device, size), size)
        card = find_card(name, memory) if device.type != "cpu" else None
        lines.append(bandwidth_line(f"bandwidth {device_label(device)}", device.type, measured, card))
    return lines


def copy_size_bytes(device_type: str, free: int) -> int:
    """At most an eighth of the free memory, a multiple of 4 bytes."""
    return max(4, min(_COPY_BYTES[device_type], free // 8) // 4 * 4)


def measure_bandwidth(
    copy: RepeatOperation, size: int, seconds: float = _COPY_S, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Bytes per second; `copy(n)` copies `size` bytes n times. A copy counts twice: read and written."""
    return measure_rate(copy, 2 * size, seconds, clock)


def _make_copy(device: torch.device, size: int) -> RepeatOperation:
    import torch

    from glassgpt.training.device import ExecutionConfig

    source = torch.ones(size // 4, device=device)  # written to, because untouched pages are not in memory
    target = torch.zeros_like(source)
    synchronize = ExecutionConfig(device, "float32").synchronize

    def copy(count: int) -> None:
        for _ in range(count):
            target.copy_(source)
        synchronize()

    return copy


def bandwidth_line(name: str, device_type: str, measured: float, card: Card | None) -> DiagnosticLine:
    table = card.bandwidth_gb_s * 1e9 if card else None
    values: dict[str, ReportValue] = {
        "device": device_type,
        "measured_bytes_per_s": measured,
        "table_bytes_per_s": table,
    }
    message = f"{_gigabytes(measured)} read and written"
    if table is None:
        return DiagnosticLine(name, message, values=values)
    share = measured / table
    message += f", {format_percent(share)} of the table's {_gigabytes(table)}"
    line = DiagnosticLine(name, message, values=values)
    return _rate_share(line, share, _GOOD_BANDWIDTH_SHARE, _BAD_BANDWIDTH_SHARE)


def _gigabytes(per_second: float) -> str:
    gigabytes = per_second / 1e9
    return f"{gigabytes:,.0f} GB/s" if gigabytes >= 100 else f"{gigabytes:.1f} GB/s"
