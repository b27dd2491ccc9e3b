"""In the worker process: model, data and device as in a run; one trial, timed after a warm-up; its memory."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from glassgpt.cgroup import usable_cores
from glassgpt.config import TrainConfig, dataset_folder, padded_vocab_size
from glassgpt.data.dataset import open_dataset
from glassgpt.data.manifest import TOKEN_DTYPES, DatasetInfo, dtype_for
from glassgpt.errors import UserError, raise_if_any
from glassgpt.estimate.batching import BatchPlan, eval_batch_rows
from glassgpt.estimate.decide import RunSpec
from glassgpt.estimate.machine_facts import MachineFacts, Origin
from glassgpt.estimate.peak import PeakFlops
from glassgpt.model.gpt import GPT, GPTConfig, make_gpt_config
from glassgpt.plan.dataset_info import find_dataset_info
from glassgpt.record.ledger import Ledger
from glassgpt.record.machine import (
    available_memory_bytes,
    cpu_model,
    load_average,
    peak_resident_bytes,
    reset_peak_resident,
)
from glassgpt.training.compute_plan import execution_config, measure_and_decide
from glassgpt.training.device import (
    ExecutionConfig,
    choose_device,
    configure_model,
    device_traits,
    set_allocator,
)
from glassgpt.training.learner import Learner
from glassgpt.training.loader import BatchLoader
from glassgpt.training.probe import machine_facts, memory_now
from glassgpt.training.run_request import request_from_config
from glassgpt.training.setup import too_few_tokens
from glassgpt.tune.results import Trial, UpdateMarks, update_seconds
from glassgpt.tune.speed_settings import SpeedSettings, TuneContext, apply_setting


@dataclass(frozen=True)
class TrialSetup:
    """What all trials have in common."""

    config: TrainConfig
    device: torch.device
    shape: GPTConfig
    tokens: np.ndarray
    data: DatasetInfo  # of these tokens
    origin: Origin


def prepare_trial_setup(config: TrainConfig, vocab_size: int | None) -> TrialSetup:
    """`vocab_size`: of the random tokens that replace a dataset that is not prepared."""
    origin = Origin()
    if config.init_from != "scratch":
        request = request_from_config(config)
        config = request.config
        if request.init_checkpoint:
            origin = Origin(request.init_checkpoint.model_config.vocab_size)
    tokens, data = _load_tokens(config, vocab_size)
    raise_if_any(too_few_tokens(config, len(tokens)))
    torch.set_float32_matmul_precision("high")  # as a run has it
    device, _ = choose_device(config.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    set_allocator(device, os.environ)
    shape = make_gpt_config(config, origin.vocab_size or padded_vocab_size(data.vocab_size))
    return TrialSetup(config, device, shape, tokens, data, origin)


_RANDOM_TOKENS = 2**21


def _load_tokens(config: TrainConfig, vocab_size: int | None) -> tuple[np.ndarray, DatasetInfo]:
    """The tokens to train on, and what a run would know of them."""
    folder = dataset_folder(config)
    if folder.exists() or config.data_dir:
        dataset = open_dataset(folder)
        return dataset.tokens("train"), dataset.manifest.info(f"{dataset.manifest.name}, in {folder}")
    info = find_dataset_info(config)
    size, count = vocab_size or info.vocab_size, max(_RANDOM_TOKENS, 4 * config.block_size)
    source = f"random tokens from a vocabulary of {size:,}: {config.dataset} is not prepared"
    info = dataclasses.replace(
        info, train_tokens=count, vocab_size=size, source=source, dtype=dtype_for(size)
    )
    tokens = np.random.default_rng(config.seed).integers(0, size, count, dtype=TOKEN_DTYPES[info.dtype])
    return tokens, info


# --- what a run would choose ---


def inspect_machine(setup: TrialSetup) -> TuneContext:
    """Measures the matmul peak and attention, as a run does before it chooses. Takes seconds."""
    config, device = setup.config, setup.device
    facts = machine_facts(device)
    free, name = facts.free_bytes, facts.device_name
    if free is None:  # on a CPU: available, or used by this process already
        free = available_memory_bytes() + memory_now("cpu")["rss"]
    if device.type == "cpu":
        name = cpu_model()
    spec, facts = measure_and_decide(config, facts, setup.data, setup.origin, device)
    peak = facts.peak or PeakFlops()
    return TuneContext(
        device_type=device.type,
        device=str(device),
        device_name=name,
        torch=str(torch.__version__),
        dtype=spec.workload.dtype,
        vocab_size=setup.shape.vocab_size,
        parameters=spec.parameters,
        n_layer=config.n_layer,
        block_size=config.block_size,
        sequences=spec.batch.sequences,
        updates=config.max_iters,
        flops_per_token=spec.flops_per_token,
        peak=peak.value,
        peak_source=peak.source,
        free_bytes=free,
        data=setup.data.source,
        data_bytes=int(setup.tokens.nbytes),
        usable_cores=usable_cores(),
        threads=torch.get_num_threads(),
        busy_cores=load_average(),
        automatic_batch=spec.batch.batch_size,
        automatic_settings=_find_automatic_settings(setup, spec, facts),
        dropout=config.dropout > 0,
        float8=spec.workload.config.fp8,
    )


def _find_automatic_settings(
    setup: TrialSetup, spec: RunSpec, facts: MachineFacts
) -> tuple[SpeedSettings, ...]:
    """For every micro-batch that divides the update. Attention is measured once."""
    sequences, settings = spec.batch.sequences, [setting_from_spec(spec)]
    pinned = dataclasses.replace(setup.config, attention=spec.workload.attention)  # type: ignore[arg-type]
    facts = dataclasses.replace(facts, kernels_built=None)  # depends on the micro-batch
    for size in range(1, sequences + 1):
        if sequences % size or size == spec.batch.batch_size:
            continue
        steps = None if pinned.batch_tokens else sequences // size
        config = dataclasses.replace(pinned, batch_size=size, gradient_accumulation_steps=steps)
        with contextlib.suppress(UserError):  # FP8 needs multiples of 16 tokens
            at_size, _ = measure_and_decide(config, facts, setup.data, setup.origin, setup.device)
            settings.append(setting_from_spec(at_size))
    return tuple(sorted(settings, key=lambda setting: setting.micro_batch))


def setting_from_spec(spec: RunSpec) -> SpeedSettings:
    work = spec.workload
    return SpeedSettings(
        micro_batch=work.batch_size,
        attention=work.attention,
        kernels=work.kernels,
        graph=work.graph,
        data_on_card=work.data_bytes > 0,
        checkpointing=work.config.activation_checkpointing,
        compile=work.compiled,
    )


# --- one trial ---


class PeakMemory:
    """Peak memory since it was created."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self._idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        else:
            reset_peak_resident()

    def peak_bytes(self) -> int:
        """On a GPU the peak that PyTorch allocated, or what stays reserved (CUDA graphs) if that is more."""
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
            torch.cuda.empty_cache()
            return max(peak, torch.cuda.memory_reserved(self._device) - self._idle)  # held before the trial
        if self._device.type == "mps":
            return memory_now("mps")["reserved"]
        return peak_resident_bytes()


Clock = Callable[[], float]
RunUpdates = Callable[[int], list[UpdateMarks]]  # does so many updates


def run_trial(
    setup: TrialSetup, setting: SpeedSettings, sequences: int, micro_steps: int, seconds: float
) -> Trial:
    """About `seconds` of updates after half as many to warm up. `micro_steps`: to do of each update."""
    try:
        execution = _execution_config(setup, setting, sequences)
    except UserError as error:
        return Trial(outcome="impossible", why=error.problems[0])
    peak = PeakMemory(setup.device)
    updates = TrialUpdates(setup, execution, setting, micro_steps)
    first_s, usual_s = updates.warm_up(seconds / 2)
    if setting.compile:
        first_s += updates.evaluate()[1]
    marks = time_updates(updates.run, seconds, usual_s)
    fallbacks, peak_bytes = dict(updates.learner.fallbacks), peak.peak_bytes()
    del updates
    release_device_memory()
    if fallbacks:
        what, why = next(iter(fallbacks.items()))
        return Trial(outcome="impossible", why=f"{what} failed: {why}"[:200])
    return Trial(
        outcome="ran",
        update_s=tuple(update_seconds(marks, sequences // setting.micro_batch)),
        micro_steps=micro_steps,
        first_s=first_s,
        peak_bytes=peak_bytes,
    )


def _execution_config(setup: TrialSetup, setting: SpeedSettings, sequences: int) -> ExecutionConfig:
    """What a run with this setting executes; raises if a run would not use it."""
    device = setup.device
    config = apply_setting(setup.config, setting, sequences, setting.micro_batch, device.type)
    facts = MachineFacts(device_traits(device), peak=PeakFlops(), kernels_built=False, attention_s={})
    spec, _ = measure_and_decide(config, facts, setup.data, setup.origin, device)
    decided = dataclasses.replace(setting_from_spec(spec), threads=setting.threads)
    different = next(decided.differences(setting), None)
    if different is not None:
        reason = next(
            (choice.reason for choice in spec.choices if choice.name == different), "a run would not"
        )
        raise UserError(reason)
    return execution_config(spec, device)


def release_device_memory() -> None:
    """Frees what a trial leaves behind, so that the next starts with the same free memory."""
    if "torch._dynamo" in sys.modules:  # torch.compile was used
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        # cuBLAS keeps a workspace for every stream, and each trial has one. No CUDA graph uses them now.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


# --- updates ---


class TrialUpdates:
    """Real updates, with a time mark where each update and each of its micro-batches begins."""

    def __init__(
        self, setup: TrialSetup, execution: ExecutionConfig, setting: SpeedSettings, micro_steps: int
    ) -> None:
        config, size = setup.config, setting.micro_batch
        config = apply_setting(config, setting, size * micro_steps, size, setup.device.type)
        self._plan = BatchPlan(size, micro_steps, size * micro_steps, size * micro_steps * config.block_size)
        self._timer: MarkTimer = CudaEventTimer() if setup.device.type == "cuda" else HostTimer(execution)
        self._loader = MarkedLoader(
            self._timer.mark,
            setup.tokens,
            config.block_size,
            self._plan,
            config.seed,
            setup.device,
            execution.data_on_card,
        )
        torch.manual_seed(config.seed)
        with setup.device:  # initialised there: the values of the weights do not change the speed
            model = GPT(setup.shape)
        configure_model(model, execution, setting.checkpointing)
        self.learner = Learner(model, config, execution, self._plan, self._loader, Ledger())
        self._setting, self._done = setting, 0

    def warm_up(self, seconds: float) -> tuple[float, float]:
        # A CUDA graph is captured at the fourth update; torch.compile may compile again in the second.
        fewest = 5 if self._setting.graph else 1 if self._setting.compile else 0
        return warm_up(self.run, seconds, fewest)

    def run(self, count: int) -> list[UpdateMarks]:
        """Runs `count` updates and returns their marks. Synchronises only at the end, as a run does."""
        for _ in range(count):
            self._timer.mark()
            self.learner.update(self._done, self._done * self._plan.sequences)
            self._done += 1
        self._timer.mark()
        self.learner.take_losses_and_norms()
        self._loader.take_data_wait_s()  # else its events would pile up
        stamps, each = self._timer.take_marks_s(), self._plan.micro_steps + 1
        return [stamps[at : at + each + 1] for at in range(0, count * each, each)]

    def evaluate(self, batches: int = 1) -> tuple[int, float]:
        """Tokens and seconds of some evaluation batches. For the first one torch.compile compiles again."""
        config, device = self.learner.config, self.learner.execution.device
        rows = eval_batch_rows(config, device.type)
        tokens = torch.zeros(rows, config.block_size, dtype=torch.int64, device=device)
        begin = time.perf_counter()
        for _ in range(batches):
            self.learner.token_losses(tokens, tokens)
        self.learner.execution.synchronize()
        return batches * tokens.numel(), time.perf_counter() - begin


class MarkedLoader(BatchLoader):
    """Marks the start of each micro-batch, which is when its data is fetched."""

    def __init__(self, mark: Callable[[], None], *rest: Any) -> None:
        super().__init__(*rest)
        self._mark = mark

    def micro_batch(self, first: int, next_first: int) -> tuple[Tensor, Tensor]:
        self._mark()
        return super().micro_batch(first, next_first)


class MarkTimer(Protocol):
    def mark(self) -> None: ...

    def take_marks_s(self) -> list[float]:
        """Times of all marks since the last call; synchronises with the device."""


class HostTimer:
    def __init__(self, execution: ExecutionConfig) -> None:
        self._execution = execution
        self._stamps: list[float] = []

    def mark(self) -> None:
        self._execution.synchronize()
        self._stamps.append(time.perf_counter())

    def take_marks_s(self) -> list[float]:
        stamps, self._stamps = self._stamps, []
        return stamps


class CudaEventTimer:
    """CUDA events: the host runs ahead of the GPU."""

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


# --- how many updates ---

_SYNC_INTERVAL_S = 0.2  # between two waits for the device
_MAX_UPDATES_PER_SYNC = 50
_MIN_TIMED_UPDATES = 3
_SLOW_FIRST_UPDATE_FACTOR = 8


def warm_up(
    run_updates: RunUpdates, seconds: float, fewest: int, clock: Clock = time.perf_counter
) -> tuple[float, float]:
    """Seconds of the first update, which builds and compiles, and about how long the others take.

    Runs at least `fewest` others, for about `seconds`. If the first takes many times as long, and no other is
    required, it runs none.
    """
    begin = clock()
    run_updates(1)
    first_s = clock() - begin
    if not fewest and first_s > _SLOW_FIRST_UPDATE_FACTOR * seconds:
        return first_s, first_s
    begin, done, usual_s = clock(), 0, first_s
    while done < fewest or clock() - begin < seconds:
        count = 1 if not done else _updates_per_sync(usual_s)
        run_updates(count)
        done += count
        usual_s = (clock() - begin) / done
    return first_s, usual_s


def time_updates(
    run_updates: RunUpdates, seconds: float, usual_s: float, clock: Clock = time.perf_counter
) -> list[UpdateMarks]:
    """At least three updates, two if each takes longer than `seconds`."""
    fewest = _MIN_TIMED_UPDATES if usual_s < seconds else 2
    begin = clock()
    marks: list[UpdateMarks] = []
    while len(marks) < fewest or clock() - begin < seconds:
        marks += run_updates(_updates_per_sync(usual_s))
    return marks


def _updates_per_sync(usual_s: float) -> int:
    return max(1, min(_MAX_UPDATES_PER_SYNC, int(_SYNC_INTERVAL_S / usual_s))) if usual_s > 0 else 1
