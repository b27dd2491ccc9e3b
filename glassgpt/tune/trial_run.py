"""In the worker: one trial, which is real updates of the run's own learner, timed after warming up."""

from __future__ import annotations

import dataclasses
import gc
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from glassgpt.errors import UserError
from glassgpt.estimate.batching import BatchPlan, eval_batch_rows
from glassgpt.model.gpt import GPT
from glassgpt.record.clock import Ledger
from glassgpt.training.compute_plan import SpeedupInputs, choose_speedups
from glassgpt.training.device import ExecutionConfig, configure_model
from glassgpt.training.learner import Learner
from glassgpt.training.loader import BatchLoader
from glassgpt.tune.peak_memory import PeakMemory
from glassgpt.tune.setting import SpeedSettings, apply_setting
from glassgpt.tune.trial import Trial, UpdateMarks, update_seconds
from glassgpt.tune.trial_setup import TrialSetup, setting_from_placement

Clock = Callable[[], float]
RunUpdates = Callable[[int], list[UpdateMarks]]  # does so many updates


def run_trial(
    stage: TrialSetup, setting: SpeedSettings, sequences: int, micro_steps: int, seconds: float
) -> Trial:
    """About `seconds` of updates after half as many to warm up. `micro_steps`: to do of each update."""
    try:
        placement = _placement(stage, setting, sequences)
    except UserError as error:
        return Trial(outcome="impossible", why=error.problems[0])
    peak = PeakMemory(stage.device)
    updates = TrialUpdates(stage, placement, setting, micro_steps)
    # A recording is made at the fourth update; compiling may go on in the second.
    fewest = 5 if setting.graph else 1 if setting.compile else 0
    first_s, usual_s = warm_up(updates.run, seconds / 2, fewest)
    if setting.compile:
        first_s += updates.time_first_evaluation()
    marks = time_updates(updates.run, seconds, usual_s)
    setbacks, peak_bytes = dict(updates.learner.fallbacks), peak.peak_bytes()
    del updates
    release_device_memory()
    if setbacks:
        what, why = next(iter(setbacks.items()))
        return Trial(outcome="impossible", why=f"{what} failed: {why}"[:200])
    return Trial(
        outcome="ran",
        update_s=tuple(update_seconds(marks, sequences // setting.micro_batch)),
        micro_steps=micro_steps,
        first_s=first_s,
        peak_bytes=peak_bytes,
    )


def _placement(stage: TrialSetup, setting: SpeedSettings, sequences: int) -> ExecutionConfig:
    """As a run decides with all of the setting said; complains if that would not be the setting."""
    size, kind = setting.micro_batch, stage.device.type
    config = apply_setting(stage.config, setting, sequences, size, kind)
    plan = BatchPlan(size, sequences // size, sequences, sequences * config.block_size)
    load = SpeedupInputs(plan, stage.shape.vocab_size, stage.flops_per_token, int(stage.tokens.nbytes))
    placement, choices = choose_speedups(config, stage.device, stage.dtype, load)
    there = dataclasses.replace(setting_from_placement(config, placement, size), threads=setting.threads)
    different = next(there.differences(setting), None)
    if different is not None:
        reason = next((choice.reason for choice in choices if choice.name == different), "a run would not")
        raise UserError(reason)
    return placement


def release_device_memory() -> None:
    """What a trial leaves behind, so that the next finds the device as this one did."""
    if "torch._dynamo" in sys.modules:  # the compiler was there
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        # Of every stream that ever was, 66 MiB on some cards: trials have a stream each. No recording that
        # uses it is left.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


# --- updates ---


class TrialUpdates:
    """The run's own updates, one after the other, marked where each begins and each of its micro-batches."""

    def __init__(
        self, stage: TrialSetup, placement: ExecutionConfig, setting: SpeedSettings, micro_steps: int
    ) -> None:
        config, size = stage.config, setting.micro_batch
        config = apply_setting(config, setting, size * micro_steps, size, stage.device.type)
        self._plan = BatchPlan(size, micro_steps, size * micro_steps, size * micro_steps * config.block_size)
        self._timer: MarkTimer = CudaEventTimer() if stage.device.type == "cuda" else HostTimer(placement)
        self._stream = MarkedLoader(
            self._timer.mark,
            stage.tokens,
            config.block_size,
            self._plan,
            config.seed,
            stage.device,
            placement.data_on_card,
        )
        model = build_model(stage, placement, setting)
        self.learner = Learner(model, config, placement, self._plan, self._stream, Ledger())
        self._done = 0

    def run(self, count: int) -> list[UpdateMarks]:
        """So many updates, and their marks. Waits for the device only at the end, as a run does."""
        for _ in range(count):
            self._timer.mark()
            self.learner.update(self._done, self._done * self._plan.sequences)
            self._done += 1
        self._timer.mark()
        self.learner.take_results()
        self._stream.take_data_wait_s()  # whose events would pile up
        stamps, each = self._timer.take_marks_s(), self._plan.micro_steps + 1
        return [stamps[at : at + each + 1] for at in range(0, count * each, each)]

    def time_first_evaluation(self) -> float:
        """Seconds of the first batch of an evaluation, which compiled code is compiled for once more."""
        config, device = self.learner.config, self.learner.execution.device
        rows = eval_batch_rows(config, device.type)
        tokens = torch.zeros(rows, config.block_size, dtype=torch.int64, device=device)
        begin = time.perf_counter()
        self.learner.score(tokens, tokens)
        self.learner.execution.synchronize()
        return time.perf_counter() - begin


class MarkedLoader(BatchLoader):
    """Marks when a micro-batch begins: with fetching its data."""

    def __init__(self, mark: Callable[[], None], *rest: Any) -> None:
        super().__init__(*rest)
        self._mark = mark

    def micro_batch(self, first: int, following: int) -> tuple[Tensor, Tensor]:
        self._mark()
        return super().micro_batch(first, following)


def build_model(stage: TrialSetup, placement: ExecutionConfig, setting: SpeedSettings) -> GPT:
    """As a run has it, but made on the device: which weights they are does not matter for speed."""
    torch.manual_seed(stage.config.seed)
    with stage.device:
        model = GPT(stage.shape)
    configure_model(model, placement, setting.checkpointing)
    return model


class MarkTimer(Protocol):
    def mark(self) -> None: ...

    def take_marks_s(self) -> list[float]:
        """Of every mark since last asked; the device has passed them all."""


class HostTimer:
    def __init__(self, placement: ExecutionConfig, clock: Clock = time.perf_counter) -> None:
        self._placement, self._clock = placement, clock
        self._stamps: list[float] = []

    def mark(self) -> None:
        self._placement.synchronize()
        self._stamps.append(self._clock())

    def take_marks_s(self) -> list[float]:
        stamps, self._stamps = self._stamps, []
        return stamps


class CudaEventTimer:
    """Events in the card's own queue: the host runs ahead of it."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def take_marks_s(self) -> list[float]:
        events, self._events = self._events, []
        events[-1].synchronize()
        return [events[0].elapsed_time(event) / 1000 for event in events]


# --- pace ---

_SYNC_INTERVAL_S = 0.2  # between two waits for the device
_MAX_UPDATES_PER_SYNC = 50
_MIN_TIMED_UPDATES = 3
_SLOW_FIRST_UPDATE_FACTOR = 8


def warm_up(
    block: RunUpdates, seconds: float, fewest: int, clock: Clock = time.perf_counter
) -> tuple[float, float]:
    """The first update, which builds and compiles, and about how long the others take.

    At least `fewest` others, and about `seconds` of them. Where one takes many times as long, and none is
    needed, the first has to do.
    """
    begin = clock()
    block(1)
    first_s = clock() - begin
    if not fewest and first_s > _SLOW_FIRST_UPDATE_FACTOR * seconds:
        return first_s, first_s
    begin, done, usual_s = clock(), 0, first_s
    while done < fewest or clock() - begin < seconds:
        count = 1 if not done else _updates_per_sync(usual_s)
        block(count)
        done += count
        usual_s = (clock() - begin) / done
    return first_s, usual_s


def time_updates(
    block: RunUpdates, seconds: float, usual_s: float, clock: Clock = time.perf_counter
) -> list[UpdateMarks]:
    """At least three updates, two if each takes longer than `seconds`."""
    fewest = _MIN_TIMED_UPDATES if usual_s < seconds else 2
    begin = clock()
    found: list[UpdateMarks] = []
    while len(found) < fewest or clock() - begin < seconds:
        found += block(_updates_per_sync(usual_s))
    return found


def _updates_per_sync(usual_s: float) -> int:
    return max(1, min(_MAX_UPDATES_PER_SYNC, int(_SYNC_INTERVAL_S / usual_s))) if usual_s > 0 else 1
