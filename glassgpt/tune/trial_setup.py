"""In the worker: model, data and device as a run would have them, and what it would decide by itself."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from glassgpt import config as settings
from glassgpt.cgroup import read_text, usable_cores
from glassgpt.config import TrainConfig
from glassgpt.data.dataset import open_dataset
from glassgpt.errors import UserError
from glassgpt.estimate import flops
from glassgpt.estimate.batching import BatchPlan, plan_batch
from glassgpt.model.gpt import GPTConfig, shape_of
from glassgpt.plan.dataset_size import find_text
from glassgpt.record.machine import available_memory, cpu_model, load
from glassgpt.training import device as devices
from glassgpt.training.device import Placement
from glassgpt.training.kernel_choice import Load, choose_speedups
from glassgpt.training.probe import find_peak, memory_now
from glassgpt.training.setup import too_little_text
from glassgpt.training.task import task_of
from glassgpt.tune.setting import Setting
from glassgpt.tune.tune_facts import Ground


@dataclass(frozen=True)
class Stage:
    """What every trial of a run has in common."""

    config: TrainConfig
    device: torch.device
    dtype: str
    shape: GPTConfig
    tokens: np.ndarray
    data: str  # in words

    @property
    def flops_per_token(self) -> int:
        return flops.flops_of(self.shape, self.shape.vocab_size)


def set_stage(config: TrainConfig, vocab_size: int | None) -> Stage:
    """`vocab_size`: of the random tokens that stand in for a dataset which is not prepared."""
    given = None
    if config.init_from != "scratch":
        task = task_of(config)
        config, given = task.config, task.origin.shape.vocab_size if task.origin else None
    tokens, size, data = _text(config, vocab_size)
    if problems := too_little_text(config, len(tokens)):
        raise UserError(problems)
    torch.set_float32_matmul_precision("high")  # as a run has it
    device, _ = devices.choose_device(config.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    dtype = str(devices.choose_dtype(config.dtype, device, config.n_embd).value)
    shape = shape_of(config, given or settings.padded_vocabulary(size))
    return Stage(config, device, dtype, shape, tokens, data)


_RANDOM_TOKENS = 2**21


def _text(config: TrainConfig, vocab_size: int | None) -> tuple[np.ndarray, int, str]:
    """The tokens to train on, their vocabulary, and in words what they are."""
    folder = settings.data_dir(config)
    if folder.exists() or config.data_dir:
        dataset = open_dataset(folder)
        return dataset.tokens("train"), dataset.manifest.vocab_size, f"{dataset.manifest.name}, in {folder}"
    size = vocab_size or find_text(config).vocab_size
    count = max(_RANDOM_TOKENS, 4 * config.block_size)
    dtype = np.uint16 if size <= 2**16 else np.uint32
    tokens = np.random.default_rng(config.seed).integers(0, size, count, dtype=dtype)
    return tokens, size, f"random tokens, of {size:,} kinds: {config.dataset} is not prepared"


# --- what a run would decide ---


def look(stage: Stage) -> Ground:
    """Takes seconds where a run would measure before it decides: the matmul peak, attention."""
    config, device = stage.config, stage.device
    free, total = _memory(device)
    on_card = free if device.type == "cuda" else None
    fits = devices.sequences_that_fit(config, stage.shape.vocab_size, on_card)
    plan, _ = plan_batch(config, device.type, fits)
    peak = find_peak(device.type, devices.device_name(device), stage.dtype, total, config.probe_seconds)
    rate = peak.measured or peak.value
    placement = _decided(stage, config, plan, rate, free)
    return Ground(
        device_type=device.type,
        device=str(device),
        device_name=_name(device),
        torch=str(torch.__version__),
        dtype=stage.dtype,
        vocab_size=stage.shape.vocab_size,
        parameters=flops.parameters_of(stage.shape, stage.shape.vocab_size),
        n_layer=config.n_layer,
        block_size=config.block_size,
        sequences=plan.sequences,
        updates=config.max_iters,
        flops_per_token=stage.flops_per_token,
        peak=peak.value,
        peak_source=peak.source,
        free_bytes=free,
        data=stage.data,
        data_bytes=int(stage.tokens.nbytes),
        usable_cores=usable_cores(),
        threads=torch.get_num_threads(),
        busy_cores=load(),
        automatic_batch=plan.batch_size,
        automatics=_automatics(stage, plan, placement, rate, free),
        dropout=config.dropout > 0,
        float8=config.fp8,
    )


def _name(device: torch.device) -> str:
    return (
        cpu_model(read_text(Path("/proc/cpuinfo"))) if device.type == "cpu" else devices.device_name(device)
    )


def _memory(device: torch.device) -> tuple[int, int | None]:
    """Free and total; on a CPU what is available, and what this process has already."""
    free, total = devices.memory_bytes(device)
    if free is not None:
        return free, total
    return available_memory() + memory_now("cpu")["rss"], None


def _decided(
    stage: Stage, config: TrainConfig, plan: BatchPlan, rate: float | None, free: int | None
) -> Placement:
    size = int(stage.tokens.nbytes)
    room = stage.device.type != "cuda" or devices.recording_fits(config, stage.shape.vocab_size, plan, free)
    load = Load(plan, stage.shape.vocab_size, stage.flops_per_token, size, rate, free, room)
    return choose_speedups(config, stage.device, stage.dtype, load)[0]


def _automatics(
    stage: Stage, plan: BatchPlan, placement: Placement, rate: float | None, free: int
) -> tuple[Setting, ...]:
    """For every micro-batch that divides the update. Attention is measured once, and then as it was found."""
    found = [setting_of(stage.config, placement, plan.batch_size)]
    config = dataclasses.replace(stage.config, attention=placement.attention)  # type: ignore[arg-type]
    for size in range(1, plan.sequences + 1):
        if plan.sequences % size or size == plan.batch_size:
            continue
        try:
            there = _decided(stage, config, cut(plan, size), rate, free)
        except UserError:  # 8-bit floats want multiples of 16 tokens
            continue
        found.append(setting_of(config, there, size))
    return tuple(sorted(found, key=lambda setting: setting.micro_batch))


def cut(plan: BatchPlan, size: int) -> BatchPlan:
    """The same update in micro-batches of another size."""
    return BatchPlan(size, plan.sequences // size, plan.sequences, plan.tokens)


def setting_of(config: TrainConfig, placement: Placement, micro_batch: int) -> Setting:
    return Setting(
        micro_batch=micro_batch,
        attention=placement.attention,
        kernels=placement.kernels,
        graph=placement.graph,
        data_on_card=placement.data_on_card,
        checkpointing=config.activation_checkpointing,
        compile=placement.compile,
    )
