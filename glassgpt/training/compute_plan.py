"""The compute plan of a run: device, dtype, model shape, micro-batches, kernels; each with its reason.

decide() of estimate/decide.py chooses, as it does for `glass plan`. Here the device is set up, and what
decide() needs to know is measured: on rank 0, and all ranks use its facts.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from glassgpt.config import MACHINE_SPECIFIC_PATHS, Choice, TrainConfig
from glassgpt.data.dataset import Dataset
from glassgpt.data.manifest import DatasetInfo
from glassgpt.errors import UserError, raise_if_any
from glassgpt.estimate.cards import find_card
from glassgpt.estimate.cluster import Cluster, link_of_card
from glassgpt.estimate.cpu_update_time import REFERENCE_CORE, measure_core_speed
from glassgpt.estimate.decide import RunSpec, choose_threads, decide, float8_problems
from glassgpt.estimate.forecast import Hardware
from glassgpt.estimate.machine_facts import MachineFacts, Origin, facts_from_record, facts_record
from glassgpt.estimate.peak import PeakFlops
from glassgpt.model.gpt import GPTConfig, make_gpt_config
from glassgpt.model.kernel_build import KernelBuild
from glassgpt.record.machine import cpu_name, measure_busy_cores
from glassgpt.training import device as devices
from glassgpt.training import probe
from glassgpt.training.device import ExecutionConfig
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.run_request import RunRequest
from glassgpt.version import VERSION


@dataclass(frozen=True)
class ComputePlan:
    spec: RunSpec
    facts: MachineFacts
    facts_record: dict[str, Any]  # all that the choices depend on besides the config, for the journal
    execution: ExecutionConfig
    model_config: GPTConfig
    hardware: Hardware
    kernel_build: KernelBuild | None = None  # Triton kernels, which are built in threads meanwhile

    @property
    def device(self) -> torch.device:
        return self.execution.device

    @property
    def flops_per_token(self) -> int:
        return self.spec.flops_per_token

    @property
    def machine_name(self) -> str:
        """As `glass plan` names this machine: the card of the table, or the CPU with its cores."""
        if self.device.type == "cpu":
            return cpu_name()
        return self.facts.device_name if self.hardware.card is None else self.hardware.card.name

    @property
    def peak(self) -> PeakFlops:
        assert self.facts.peak is not None, "training measures it"
        return self.facts.peak


def plan_compute(
    request: RunRequest, dataset: Dataset, group: ProcessGroup
) -> tuple[ComputePlan, list[Choice]]:
    """The plan, and all choices. Connects the process group, which the facts are shared through."""
    config = request.config
    torch.set_float32_matmul_precision("high")  # TF32 on cards that have it, as nanoGPT
    device, _ = devices.choose_device(config.device)
    default_threads, busy_cores, origin = set_threads(config, device, _origin(request), bool(group.launch_id))
    setup_choices = devices.set_allocator(device, os.environ)
    device = devices.device_for_rank(device, config.device, group.local_rank, group.local_world_size)
    if device.index is not None:  # "cuda:1": streams, events and probes must use this card
        torch.cuda.set_device(device)
    setup_choices += _connect(request, dataset, device, group)

    facts = dataclasses.replace(
        probe.machine_facts(device, group.world_size, group.local_world_size),
        default_threads=default_threads,
        busy_cores=busy_cores,
        is_launched=bool(group.launch_id),
    )
    if facts.free_bytes is not None:
        free_bytes = int(min(row[0] for row in group.all_gather_rows([facts.free_bytes])))
        facts = dataclasses.replace(facts, free_bytes=free_bytes)
    data = dataset.manifest.info()

    builds: list[KernelBuild] = []

    def start_building(spec: RunSpec) -> None:
        if spec.workload.kernels and not builds:
            work, model_config = spec.workload, make_gpt_config(config, spec.workload.vocab_size)
            dtype = devices.TORCH_DTYPES[work.dtype]
            builds.append(KernelBuild(model_config, device, dtype, work.micro_batch_tokens, work.config.fp8))

    def measure() -> dict[str, Any]:
        _, measured = measure_and_decide(config, facts, data, origin, device, start_building)
        return facts_record(measured, data, origin)

    record = group.broadcast_from_rank_zero(measure)
    facts, data, origin = facts_from_record(record)
    spec = decide(config, facts, data, origin)
    start_building(spec)
    choices = list(spec.choices)
    after_device = 1 + next(index for index, choice in enumerate(choices) if choice.name == "device")
    choices[after_device:after_device] = setup_choices
    card = find_card(facts.device_name, facts.memory_bytes if device.type == "cuda" else None)
    link = link_of_card(card) if device.type == "cuda" else None
    cluster = Cluster(group.local_world_size, -(-group.world_size // group.local_world_size), link)
    core = measure_core_speed(torch.get_num_threads()) if device.type == "cpu" else REFERENCE_CORE
    hardware = Hardware(None if facts.peak is None else facts.peak.value, card, cluster, core=core)
    model_config = make_gpt_config(config, spec.workload.vocab_size)
    plan = ComputePlan(spec, facts, record, execution_config(spec, device), model_config, hardware, *builds)
    return plan, choices


def set_threads(
    config: TrainConfig, device: torch.device, origin: Origin, is_launched: bool = False
) -> tuple[int, float, Origin]:
    """Sets the CPU threads. Returns PyTorch's default, the cores that others keep busy, and the origin with
    its threads, if they count."""
    # OMP_NUM_THREADS is a choice of the user's; a launcher sets the threads of its processes.
    default_threads, busy_cores = torch.get_num_threads(), 0.0
    if config.threads is not None or is_launched or "OMP_NUM_THREADS" in os.environ or device.type != "cpu":
        origin = dataclasses.replace(origin, threads=None)
    else:
        busy_cores = measure_busy_cores()
    threads = choose_threads(config.threads, default_threads, origin.threads, busy_cores)
    if threads is not None:
        torch.set_num_threads(int(threads.value))  # type: ignore[arg-type]
    return default_threads, busy_cores, origin


def _origin(request: RunRequest) -> Origin:
    """What the initial checkpoint says: its vocabulary, and the threads of a run that is resumed."""
    if request.init_checkpoint is None:
        return Origin(None, None)
    own, threads = request.own_checkpoint, None
    if own is not None:  # older versions did not store the threads: they had the default
        threads = own.state.get("threads", torch.get_num_threads())
    return Origin(request.init_checkpoint.model_config.vocab_size, threads)


def _connect(
    request: RunRequest, dataset: Dataset, device: torch.device, group: ProcessGroup
) -> list[Choice]:
    """Connects the ranks once they agree on what they are to do."""
    config, initial = request.config, request.init_checkpoint
    flags = {
        f"--{name}": value
        for name, value in dataclasses.asdict(config).items()
        if name not in MACHINE_SPECIFIC_PATHS
    }
    group.check_same_on_all_ranks(
        flags
        | {
            "the data's hash": dataset.hash,
            "the checkpoint's iteration": None if initial is None else initial.iter,
            "glassgpt": VERSION,
            "torch": torch.__version__,
        }
    )
    return group.connect(device, config)


def measure_and_decide(
    config: TrainConfig,
    facts: MachineFacts,
    data: DatasetInfo,
    origin: Origin,
    device: torch.device,
    kernels_are_chosen: Callable[[RunSpec], None] = lambda spec: None,
) -> tuple[RunSpec, MachineFacts]:
    """Measures what decide() does not know yet, one fact after the other: whether one is needed may depend on
    those before. Raises UserError for what the device cannot do.

    `kernels_are_chosen`: called as soon as it is clear whether Triton kernels are used, so that they can be
    built while the rest is measured.
    """
    while True:
        spec = decide(config, facts, data, origin)
        work = spec.workload
        if work.config.shard and work.dtype == "float16":
            raise UserError("--shard=True needs --dtype=float32 on this card, which has no bfloat16")
        if work.config.fp8:
            raise_if_any(float8_problems(work, facts.device, facts.float8_is_correct))
        if not {"kernels_built", "float8_is_correct"}.intersection(spec.unknown):
            kernels_are_chosen(spec)
        if not spec.unknown:
            break
        name = spec.unknown[0]
        facts = dataclasses.replace(facts, **{name: probe.measure_fact(name, spec, facts, device)})
    if config.attention != "auto":
        probe.check_attention(config, device, spec.workload.dtype)
    return spec, facts


def execution_config(spec: RunSpec, device: torch.device) -> ExecutionConfig:
    work = spec.workload
    return ExecutionConfig(
        device,
        work.dtype,
        compile=work.compiled,
        attention=work.attention,
        kernels=work.kernels,
        graph=work.graph,
        data_on_card=work.data_bytes > 0,
        float8=work.config.fp8,
        shard=work.config.shard,
    )


def mark_kernels_built(compute: ComputePlan, fallbacks: Collection[str]) -> None:
    """Tells later runs that Triton has these kernels in its cache, unless building them failed."""
    if compute.execution.kernels and "kernels" not in fallbacks:
        with suppress(OSError):  # a cache that cannot be written holds no kernels either
            probe.kernel_cache_marker(compute.spec, compute.facts.device_name).touch()
