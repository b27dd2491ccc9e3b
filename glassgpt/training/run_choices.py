"""With what a run computes, and in which portions: decided once, for a whole team, every decision with its
reason."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from glassgpt import config as settings
from glassgpt.config import MACHINE_SPECIFIC_PATHS, Choice, ConfigValue, TrainConfig
from glassgpt.data.dataset import Dataset
from glassgpt.errors import UserError
from glassgpt.estimate import flops
from glassgpt.estimate.batching import BatchPlan, plan_batch
from glassgpt.estimate.cards import Card, find_card
from glassgpt.estimate.cluster import Cluster, link_of_card
from glassgpt.estimate.decide import choose_threads
from glassgpt.estimate.peak import PeakFlops
from glassgpt.model.gpt import GPTConfig, make_gpt_config
from glassgpt.record.machine import measure_busy_cores
from glassgpt.training import device as devices
from glassgpt.training.checkpoint.checkpoints import latest_checkpoint, readable_checkpoints
from glassgpt.training.device import ExecutionConfig
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.kernel_choice import SpeedupInputs, choose_speedups
from glassgpt.training.probe import find_peak
from glassgpt.training.task import RunRequest
from glassgpt.training.weight_source import model_config_of
from glassgpt.version import VERSION


@dataclass(frozen=True)
class ComputePlan:
    execution: ExecutionConfig
    model_config: GPTConfig
    batch_plan: BatchPlan
    peak: PeakFlops
    flops_per_token: int
    free_bytes: int | None  # of the card that has least
    card: Card | None  # the table's, if it has it
    cluster: Cluster

    @property
    def device(self) -> torch.device:
        return self.execution.device


def plan_compute(
    task: RunRequest, dataset: Dataset, data_bytes: int, team: ProcessGroup
) -> tuple[ComputePlan, list[Choice]]:
    """`data_bytes`: of the training text. Connects the team on the way."""
    config = task.config
    device, choices = _set_up_device(task, dataset, team)
    config, shard_choices = _with_sharding(config, team)
    choices += shard_choices
    choices.append(dtype := devices.choose_dtype(config.dtype, device, config.n_embd))
    if config.shard and dtype.value == "float16":
        raise UserError("--shard=True needs --dtype=float32 on this card, which has no bfloat16")
    shape, shape_choices = _choose_model_config(task, dataset.manifest.vocab_size)
    choices += shape_choices
    per_token = flops.model_flops_per_token(shape, shape.vocab_size)

    free, total = devices.free_and_total_bytes(device)
    if free is not None:
        free = int(min(row[0] for row in team.all_gather_rows([free])))
    fits = devices.estimate_max_batch_size(config, shape.vocab_size, free, team.world_size)
    plan, batch_choices = plan_batch(config, device.type, fits, team.world_size)
    choices += batch_choices

    # What is measured is measured once, and what follows from it is the same for all.
    name = devices.device_name(device)

    def look_for_peak() -> PeakFlops:
        return find_peak(device.type, name, str(dtype.value), total, config.probe_seconds)

    def choose() -> tuple[ExecutionConfig, list[Choice]]:
        room = devices.cuda_graph_fits(config, shape.vocab_size, plan, free)
        speed = peak.measured or peak.value
        load = SpeedupInputs(plan, shape.vocab_size, per_token, data_bytes, speed, free, room)
        return choose_speedups(config, device, str(dtype.value), load)

    peak = _peak_from(team, look_for_peak)
    placement, speedups = _broadcast_execution(team, device, choose)
    card = find_card(name, total)
    cluster = _cluster(team, card, device.type)
    return ComputePlan(placement, shape, plan, peak, per_token, free, card, cluster), choices + speedups


def _set_up_device(
    task: RunRequest, dataset: Dataset, team: ProcessGroup
) -> tuple[torch.device, list[Choice]]:
    config, choices = task.config, []
    torch.set_float32_matmul_precision("high")  # TF32 on cards that have it, as nanoGPT
    device, _ = devices.choose_device(config.device)
    if (threads := _choose_threads(task, device, team)) is not None:
        torch.set_num_threads(int(threads.value))  # type: ignore[arg-type]
        choices.append(threads)
    device, choice = devices.choose_device(config.device)  # with the threads in its reason
    choices += [choice, *devices.choose_allocator(device, os.environ)]
    device = devices.device_for_rank(device, config.device, team.local_rank, team.local_world_size)
    if device.index is not None:  # "cuda:1": streams, events and probes shall mean this card
        torch.cuda.set_device(device)
    team.check_same_on_all_ranks(_facts(task, dataset))
    return device, choices + team.connect(device, config)


def _choose_threads(task: RunRequest, device: torch.device, team: ProcessGroup) -> Choice | None:
    """Who sets OMP_NUM_THREADS has decided; so has a launcher, for the processes of a team."""
    asked, usual = task.config.threads, torch.get_num_threads()
    if asked is not None or device.type != "cpu" or team.launch_id or "OMP_NUM_THREADS" in os.environ:
        return choose_threads(asked, usual, None, 0.0)
    last = None if task.resume_dir is None else latest_checkpoint(task.resume_dir)
    before = None if last is None else last.state.get("threads", usual)  # older versions took the usual
    return choose_threads(None, usual, before, measure_busy_cores())


def _with_sharding(config: TrainConfig, team: ProcessGroup) -> tuple[TrainConfig, list[Choice]]:
    """There must be somebody to share with."""
    if not config.shard or team.launch_id:
        return config, []
    alone = Choice("shard", False, "this run is one process: there is nobody to share with")
    return dataclasses.replace(config, shard=False), [alone]


def _facts(task: RunRequest, dataset: Dataset) -> dict[str, ConfigValue]:
    """What has to be the same in all processes of a team."""
    config = dataclasses.asdict(task.config)
    facts = {f"--{name}": value for name, value in config.items() if name not in MACHINE_SPECIFIC_PATHS}
    origin = None if task.init_checkpoint is None else task.init_checkpoint.iter
    return facts | {
        "the data's hash": dataset.hash,
        "the checkpoint's iteration": origin,
        "glassgpt": VERSION,
        "torch": torch.__version__,
    }


def _cluster(team: ProcessGroup, card: Card | None, device_type: str) -> Cluster:
    link = link_of_card(card) if device_type == "cuda" else None
    return Cluster(team.local_world_size, -(-team.world_size // team.local_world_size), link)


def _peak_from(team: ProcessGroup, find: Callable[[], PeakFlops]) -> PeakFlops:
    return PeakFlops(**team.broadcast_from_rank_zero(lambda: dataclasses.asdict(find())))


def _broadcast_execution(
    team: ProcessGroup, device: torch.device, choose: Callable[[], tuple[ExecutionConfig, list[Choice]]]
) -> tuple[ExecutionConfig, list[Choice]]:
    def in_words() -> dict[str, Any]:
        placement, choices = choose()
        fields = dataclasses.asdict(dataclasses.replace(placement, device=None))  # type: ignore[arg-type]
        return {"placement": fields, "choices": [dataclasses.asdict(choice) for choice in choices]}

    said = team.broadcast_from_rank_zero(in_words)
    choices = [Choice(**choice) for choice in said["choices"]]
    return ExecutionConfig(**said["placement"] | {"device": device}), choices


# --- the model's shape ---


def _choose_model_config(task: RunRequest, vocab_size: int) -> tuple[GPTConfig, list[Choice]]:
    config, given = task.config, _given_vocabulary(task)
    size = settings.padded_vocab_size(vocab_size) if given is None else given
    reason = f"the dataset's {vocab_size}" + (", rounded up to a multiple of 64" if size > vocab_size else "")
    shape = make_gpt_config(config, size)
    choices = [Choice("vocab_size", size, reason if given is None else "as the weights have it")]
    if config.activation == "auto":
        choices.append(Choice("activation", shape.activation, f"the usual one for {shape.arch}"))
    if config.bias and config.arch == "modern":
        choices.append(Choice("bias", False, "modern has none; --arch=gpt2 can have them"))
    return shape, choices


def _given_vocabulary(task: RunRequest) -> int | None:
    """Of the weights to begin with: GPT-2's own are not rounded up."""
    if task.init_checkpoint is not None:
        return task.init_checkpoint.model_config.vocab_size
    if task.resume_dir is not None:
        for point in reversed(list(readable_checkpoints(task.resume_dir))):
            return model_config_of(point).vocab_size
    return None
