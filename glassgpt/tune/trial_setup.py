"""In the worker process: model, data and device as in a run, and what a run would choose by itself."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from glassgpt.cgroup import usable_cores
from glassgpt.config import TrainConfig, dataset_folder, padded_vocab_size
from glassgpt.data.dataset import open_dataset
from glassgpt.errors import UserError
from glassgpt.estimate import flops
from glassgpt.estimate.batching import BatchPlan, plan_batch
from glassgpt.files import read_text_or_empty
from glassgpt.model.gpt import GPTConfig, make_gpt_config
from glassgpt.plan.dataset_info import find_dataset_info
from glassgpt.record.machine import available_memory_bytes, cpu_model, load_average
from glassgpt.training import device as devices
from glassgpt.training.compute_plan import SpeedupInputs, choose_speedups
from glassgpt.training.device import ExecutionConfig
from glassgpt.training.probe import find_peak, memory_now
from glassgpt.training.run_request import request_from_config
from glassgpt.training.setup import too_few_tokens
from glassgpt.tune.speed_settings import SpeedSettings, TuneContext


@dataclass(frozen=True)
class TrialSetup:
    """What all trials have in common."""

    config: TrainConfig
    device: torch.device
    dtype: str
    shape: GPTConfig
    tokens: np.ndarray
    data_description: str

    @property
    def flops_per_token(self) -> int:
        return flops.model_flops_per_token(self.shape, self.shape.vocab_size)


def prepare_trial_setup(config: TrainConfig, vocab_size: int | None) -> TrialSetup:
    """`vocab_size`: of the random tokens that replace a dataset that is not prepared."""
    checkpoint_vocab_size = None
    if config.init_from != "scratch":
        request = request_from_config(config)
        config = request.config
        if request.init_checkpoint:
            checkpoint_vocab_size = request.init_checkpoint.model_config.vocab_size
    tokens, size, data = _load_tokens(config, vocab_size)
    if problems := too_few_tokens(config, len(tokens)):
        raise UserError(problems)
    torch.set_float32_matmul_precision("high")  # as a run has it
    device, _ = devices.choose_device(config.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    dtype = str(devices.choose_dtype(config.dtype, device, config.n_embd).value)
    shape = make_gpt_config(config, checkpoint_vocab_size or padded_vocab_size(size))
    return TrialSetup(config, device, dtype, shape, tokens, data)


_RANDOM_TOKENS = 2**21


def _load_tokens(config: TrainConfig, vocab_size: int | None) -> tuple[np.ndarray, int, str]:
    """The tokens to train on, their vocabulary size, and a description."""
    folder = dataset_folder(config)
    if folder.exists() or config.data_dir:
        dataset = open_dataset(folder)
        return dataset.tokens("train"), dataset.manifest.vocab_size, f"{dataset.manifest.name}, in {folder}"
    size = vocab_size or find_dataset_info(config).vocab_size
    count = max(_RANDOM_TOKENS, 4 * config.block_size)
    dtype = np.uint16 if size <= 2**16 else np.uint32
    tokens = np.random.default_rng(config.seed).integers(0, size, count, dtype=dtype)
    return tokens, size, f"random tokens from a vocabulary of {size:,}: {config.dataset} is not prepared"


# --- what a run would choose ---


def inspect_machine(setup: TrialSetup) -> TuneContext:
    """Measures the matmul peak and attention, as a run does before it chooses. Takes seconds."""
    config, device = setup.config, setup.device
    free, total = devices.free_and_total_bytes(device)
    if free is None:  # on a CPU: available, or used by this process already
        free, total = available_memory_bytes() + memory_now("cpu")["rss"], None
    name = devices.device_name(device)
    if device.type == "cpu":
        name = cpu_model(read_text_or_empty(Path("/proc/cpuinfo")))
    on_card = free if device.type == "cuda" else None
    fits = devices.estimate_max_batch_size(config, setup.shape.vocab_size, on_card)
    plan, _ = plan_batch(config, device.type, fits)
    peak = find_peak(device.type, devices.device_name(device), setup.dtype, total, config.probe_seconds)
    rate = peak.measured or peak.value
    execution = _execution_for(setup, config, plan, rate, free)
    return TuneContext(
        device_type=device.type,
        device=str(device),
        device_name=name,
        torch=str(torch.__version__),
        dtype=setup.dtype,
        vocab_size=setup.shape.vocab_size,
        parameters=flops.model_parameters(setup.shape, setup.shape.vocab_size),
        n_layer=config.n_layer,
        block_size=config.block_size,
        sequences=plan.sequences,
        updates=config.max_iters,
        flops_per_token=setup.flops_per_token,
        peak=peak.value,
        peak_source=peak.source,
        free_bytes=free,
        data=setup.data_description,
        data_bytes=int(setup.tokens.nbytes),
        usable_cores=usable_cores(),
        threads=torch.get_num_threads(),
        busy_cores=load_average(),
        automatic_batch=plan.batch_size,
        automatic_settings=_find_automatic_settings(setup, plan, execution, rate, free),
        dropout=config.dropout > 0,
        float8=config.fp8,
    )


def _execution_for(
    setup: TrialSetup, config: TrainConfig, plan: BatchPlan, rate: float | None, free: int | None
) -> ExecutionConfig:
    data_bytes = int(setup.tokens.nbytes)
    graph_fits = setup.device.type != "cuda" or devices.cuda_graph_fits(
        config, setup.shape.vocab_size, plan, free
    )
    inputs = SpeedupInputs(
        plan, setup.shape.vocab_size, setup.flops_per_token, data_bytes, rate, free, graph_fits
    )
    return choose_speedups(config, setup.device, setup.dtype, inputs)[0]


def _find_automatic_settings(
    setup: TrialSetup, plan: BatchPlan, execution: ExecutionConfig, rate: float | None, free: int
) -> tuple[SpeedSettings, ...]:
    """For every micro-batch that divides the update. Attention is measured once."""
    automatic_settings = [setting_from_execution(setup.config, execution, plan.batch_size)]
    config = dataclasses.replace(setup.config, attention=execution.attention)  # type: ignore[arg-type]
    for size in range(1, plan.sequences + 1):
        if plan.sequences % size or size == plan.batch_size:
            continue
        same_update = BatchPlan(size, plan.sequences // size, plan.sequences, plan.tokens)
        try:
            execution_at_size = _execution_for(setup, config, same_update, rate, free)
        except UserError:  # FP8 needs multiples of 16 tokens
            continue
        automatic_settings.append(setting_from_execution(config, execution_at_size, size))
    return tuple(sorted(automatic_settings, key=lambda setting: setting.micro_batch))


def setting_from_execution(
    config: TrainConfig, execution: ExecutionConfig, micro_batch: int
) -> SpeedSettings:
    return SpeedSettings(
        micro_batch=micro_batch,
        attention=execution.attention,
        kernels=execution.kernels,
        graph=execution.graph,
        data_on_card=execution.data_on_card,
        checkpointing=config.activation_checkpointing,
        compile=execution.compile,
    )
