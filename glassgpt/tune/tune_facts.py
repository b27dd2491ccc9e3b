"""What the trials stand on: the machine, the model, and what a run would decide by itself."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.estimate import memory
from glassgpt.estimate import overheads
from glassgpt.tune.setting import SpeedSettings
from glassgpt.tune.setting import apply_setting
from glassgpt.tune.trial import trial_micro_steps

# Of the memory that was free, what a setting may take. Evaluation, checkpoints and a desktop want some too.
USABLE_MEMORY_SHARE = {"cuda": 0.92, "mps": 0.85, "cpu": 0.85}


@dataclass(frozen=True, kw_only=True)
class TuneContext:
    """Torch-free: the worker finds it out and sends it."""

    device_type: str
    device: str
    device_name: str
    torch: str  # its version
    dtype: str
    vocab_size: int
    parameters: int
    n_layer: int
    block_size: int
    sequences: int  # per update
    updates: int  # of the run
    flops_per_token: int
    peak: float | None  # FLOP/s that count as 100 %
    peak_source: str
    free_bytes: int  # that a run could take, before it began
    data: str  # which tokens, in words
    data_bytes: int
    usable_cores: float
    threads: int  # that PyTorch takes by itself
    busy_cores: float  # with what others do, over the last minute
    automatic_batch: int
    automatics: tuple[SpeedSettings, ...]  # what a run would decide for each micro-batch that is possible
    dropout: bool
    float8: bool

    @property
    def tokens_per_update(self) -> int:
        """Per update."""
        return self.sequences * self.block_size

    @property
    def usable_bytes(self) -> int:
        return int(USABLE_MEMORY_SHARE[self.device_type] * self.free_bytes)

    @property
    def automatic_setting(self) -> SpeedSettings:
        return self.automatic_setting_at(self.automatic_batch)

    @property
    def micro_batches(self) -> tuple[int, ...]:
        return tuple(setting.micro_batch for setting in self.automatics)

    def automatic_setting_at(self, micro_batch: int) -> SpeedSettings:
        return next(setting for setting in self.automatics if setting.micro_batch == micro_batch)

    def micro_steps(self, setting: SpeedSettings) -> int:
        return self.sequences // setting.micro_batch

    def estimated_micro_batch_s(self, setting: SpeedSettings) -> float | None:
        """About how long one micro-batch will take, before anything was measured."""
        if self.peak is None:
            return None
        tokens = setting.micro_batch * self.block_size
        return overheads.arithmetic_s(self.device_type, tokens, self.flops_per_token, self.peak)

    def trial_micro_steps(self, setting: SpeedSettings) -> int:
        """In a trial, of an update's micro-batches."""
        return trial_micro_steps(self.micro_steps(setting), self.estimated_micro_batch_s(setting))

    def config_with(self, config: TrainConfig, setting: SpeedSettings) -> TrainConfig:
        return apply_setting(config, setting, self.sequences, self.automatic_batch, self.device_type)

    def estimated_bytes(self, config: TrainConfig, setting: SpeedSettings) -> int:
        """What it will take, counted from its tensors; on a card beside what CUDA takes for itself."""
        need = memory.estimate_memory(
            memory.TrainingWorkload(
                config=self.config_with(config, setting),
                vocab_size=self.vocab_size,
                batch_size=setting.micro_batch,
                micro_steps=self.micro_steps(setting),
                device_type=self.device_type,
                dtype=self.dtype,
                kernels=setting.kernels,
                compiled=setting.compile,
                attention=setting.attention,
                graph=setting.graph,
                data_bytes=self.data_bytes if setting.data_on_card else 0,
            )
        )
        return need.total_bytes if self.device_type == "cpu" else need.allocated_bytes


def to_document(ground: TuneContext) -> dict[str, Any]:
    return dataclasses.asdict(ground)


def from_document(document: dict[str, Any]) -> TuneContext:
    settings = tuple(SpeedSettings(**one) for one in document["automatics"])
    return TuneContext(**document | {"automatics": settings})
