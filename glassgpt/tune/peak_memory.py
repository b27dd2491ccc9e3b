"""In the worker: the most memory that a trial took."""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path

import torch

from glassgpt.cgroup import read_text_or_empty
from glassgpt.training.probe import memory_now

_PROC_STATUS, _PROC_CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """From when it is made until asked."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self._idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        elif sys.platform == "linux":
            _forget_resident_peak()

    def peak_bytes(self) -> int:
        """Of a card, what PyTorch gave out. Where more is held for good, as recordings do, that."""
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
            torch.cuda.empty_cache()
            return max(peak, torch.cuda.memory_reserved(self._device) - self._idle)  # held since before
        if self._device.type == "mps":
            return memory_now("mps")["reserved"]
        return _resident_peak()


def _forget_resident_peak() -> None:
    """The kernel starts counting anew. Where it may not, the peak is of all trials so far: no less."""
    try:
        _PROC_CLEAR_REFS.write_text("5")
    except OSError:
        return


def _resident_peak() -> int:
    kilobytes = re.search(r"^VmHWM:\s*(\d+) kB$", read_text_or_empty(_PROC_STATUS), re.MULTILINE)
    if kilobytes:
        return int(kilobytes[1]) * 1024
    if sys.platform == "win32":
        return memory_now("cpu")["rss"]
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
