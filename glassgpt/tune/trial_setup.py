"""In the worker process: model, data and device as in a run, and what a run would choose by itself."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from glassgpt.cgroup import usable_cores
from glassgpt.config import TrainConfig, dataset_folder, padded_vocab_size
from glassgpt.data.dataset import open_dataset
from glassgpt.data.manifest import TOKEN_DTYPES, DatasetInfo, dtype_for
from glassgpt.errors import UserError
from glassgpt.estimate import flops
from glassgpt.estimate.decide import RunSpec
from glassgpt.estimate.machine_facts import MachineFacts, Origin
from glassgpt.estimate.peak import PeakFlops
from glassgpt.files import read_text_or_empty
from glassgpt.model.gpt import GPTConfig, make_gpt_config
from glassgpt.plan.dataset_info import find_dataset_info
from glassgpt.record.machine import available_memory_bytes, cpu_model, load_average
from glassgpt.training import device as devices
from glassgpt.training.compute_plan import measure_and_decide
from glassgpt.training.probe import machine_facts, memory_now
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
    data: DatasetInfo  # of these tokens
    origin: Origin

    @property
    def flops_per_token(self) -> int:
        return flops.model_flops_per_token(self.shape, self.shape.vocab_size)


def prepare_trial_setup(config: TrainConfig, vocab_size: int | None) -> TrialSetup:
    """`vocab_size`: of the random tokens that replace a dataset that is not prepared."""
    origin = Origin()
    if config.init_from != "scratch":
        request = request_from_config(config)
        config = request.config
        if request.init_checkpoint:
            origin = Origin(request.init_checkpoint.model_config.vocab_size)
    tokens, data = _load_tokens(config, vocab_size)
    if problems := too_few_tokens(config, len(tokens)):
        raise UserError(problems)
    torch.set_float32_matmul_precision("high")  # as a run has it
    device, _ = devices.choose_device(config.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    dtype = str(devices.choose_dtype(config.dtype, device, config.n_embd).value)
    shape = make_gpt_config(config, origin.vocab_size or padded_vocab_size(data.vocab_size))
    return TrialSetup(config, device, dtype, shape, tokens, data, origin)


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
        name = cpu_model(read_text_or_empty(Path("/proc/cpuinfo")))
    spec, facts = measure_and_decide(config, facts, setup.data, setup.origin, device)
    peak = facts.peak or PeakFlops()
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
        sequences=spec.batch.sequences,
        updates=config.max_iters,
        flops_per_token=setup.flops_per_token,
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
        float8=config.fp8,
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
        with suppress(UserError):  # FP8 needs multiples of 16 tokens
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
