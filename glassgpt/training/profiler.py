"""Some updates under PyTorch's profiler: a trace for Perfetto, and a table of the slowest kernels.

    glass train --profile=10:20

On a GPU the table has kernels, as CUPTI sees them, also in CUDA graphs and compiled code. Elsewhere it has
operators, by self time. Profiling slows an update, so profiled updates do not count for the step time
(estimate/step_timing.py). If the profiler fails, the run continues without it.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile, record_function

from glassgpt.errors import error_type_and_message
from glassgpt.i18n import say, verbatim
from glassgpt.record.finding import finding_record
from glassgpt.record.journal import Record

PROFILE_FOLDER = "profile"
TABLE_ROWS = 20
_UPDATE_SPAN_NAME = "glass: update"  # in the trace; the table has only what lies inside such a span
_MAX_NAME_LENGTH = 300  # of a kernel: template arguments may fill a page


@dataclass(frozen=True)
class ProfileRow:
    """A kernel or operator: its time in all profiled updates."""

    name: str
    ms: float
    share: float  # of the time of all rows
    calls: int


class UpdateProfiler:
    """Profiles the updates `window[0]` to `window[1]`, counted by updates done before.

    Rank 0 profiles. The other ranks call the same methods, and measure nothing.
    """

    def __init__(
        self,
        window: tuple[int, int] | None,
        run_dir: Path,
        device: torch.device,
        is_profiling_rank: bool = True,
    ) -> None:
        self._window, self._device, self._is_profiling_rank = window, device, is_profiling_rank
        self._folder = run_dir / PROFILE_FOLDER
        self._profiler: profile | None = None
        self._first = 0  # updates done when profiling started; after a resume it may start inside the window
        self._failure: Exception | None = None
        self._is_reported = False  # the profile or the failure

    def covers(self, done: int) -> bool:
        """Whether the update after `done` is to be profiled."""
        return self._window is not None and self._window[0] <= done < self._window[1]

    @contextlib.contextmanager
    def profile_update(self, done: int) -> Iterator[None]:
        if self._is_profiling_rank and self._profiler is None and self._failure is None:
            self._start(done)
        with record_function(_UPDATE_SPAN_NAME):
            yield

    def _start(self, done: int) -> None:
        gpu = [ProfilerActivity.CUDA] if self._device.type == "cuda" else []
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it prints between our lines
        profiler = profile(activities=[ProfilerActivity.CPU, *gpu])
        try:
            profiler.start()
        except Exception as error:  # noqa: BLE001 - a failing profiler must not end the run
            self._failure = error
        else:
            self._profiler, self._first = profiler, done

    def stop_if_due(self, done: int, at_the_end: bool = False) -> Record | None:
        """Stops profiling and writes the trace, once the last update of the window or of the run is done.
        Returns the profile, or a finding if it failed."""
        if self._failure is not None and not self._is_reported:
            self._is_reported = True
            return _failure_finding(self._failure, done)
        if self._profiler is None or (self.covers(done) and not at_the_end):
            return None
        profiler, self._profiler, self._is_reported = self._profiler, None, True
        try:
            profiler.stop()
            events = list(profiler.events() or ())  # type: ignore[no-untyped-call]
            trace = self._folder / f"trace-{self._first}-{done}.json.gz"
            self._folder.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(trace))
            return _profile_record(events, self._first, done, trace)
        except Exception as error:  # noqa: BLE001 - as above; a full disk is one of them
            return _failure_finding(error, done)

    def close(self) -> None:
        """For a run that ended inside the window: no trace is written."""
        if self._profiler is not None:
            with contextlib.suppress(RuntimeError):
                self._profiler.stop()
            self._profiler = None


def _profile_record(events: Sequence[Any], first: int, done: int, trace: Path) -> Record:
    spans = sorted(
        _span(event)
        for event in events
        if event.name == _UPDATE_SPAN_NAME and event.device_type == DeviceType.CPU
    )

    def is_in_update(moment: float) -> bool:
        last_started = bisect.bisect_right(spans, (moment, math.inf)) - 1
        return last_started >= 0 and moment <= spans[last_started][1]

    # User annotations, such as an optimizer's step, are not work themselves.
    inside = [
        event for event in events if not event.is_user_annotation and is_in_update(event.time_range.start)
    ]
    kernels = [event for event in inside if event.device_type == DeviceType.CUDA]  # also copies and fills
    operators = [event for event in inside if event.device_type == DeviceType.CPU]
    if kernels:
        table = build_table((event.name, event.time_range.elapsed_us()) for event in kernels)
    else:
        table = build_table((event.name, event.self_cpu_time_total) for event in operators)
    wall_us = covered_time(spans)
    return {
        "kind": "profile",
        "iter": done,
        "from_iter": first,
        "updates": len(spans),
        "trace": f"{PROFILE_FOLDER}/{trace.name}",
        "bytes": trace.stat().st_size,
        "wall_ms": wall_us / 1000,
        "of": "kernels" if kernels else "operators",
        "busy": covered_time(map(_span, kernels or operators)) / wall_us,
        "top": [asdict(row) for row in table[:TABLE_ROWS]],
    }


def _span(event: Any) -> tuple[float, float]:
    return event.time_range.start, event.time_range.end


def build_table(times: Iterable[tuple[str, float]]) -> list[ProfileRow]:
    """From names and microseconds; the slowest first."""
    us_by_name: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for name, us in times:
        us_by_name[name] += us
        calls[name] += 1
    total_us = sum(us_by_name.values()) or 1.0
    rows = [
        ProfileRow(name[:_MAX_NAME_LENGTH], us / 1000, us / total_us, calls[name])
        for name, us in us_by_name.items()
    ]
    return sorted(rows, key=lambda row: -row.ms)


def covered_time(spans: Iterable[tuple[float, float]]) -> float:
    """The time that lies in at least one of the spans: kernels may run in parallel."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _failure_finding(error: Exception, done: int) -> Record:
    return finding_record(
        done,
        "profile-failed",
        "warning",
        title=say("profile-failed.title"),
        evidence=verbatim(error_type_and_message(error)),
        explanation=say("profile-failed.explanation"),
        advice=say("profile-failed.advice"),
    )
