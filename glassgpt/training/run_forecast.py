"""What is expected of a run before it starts: its memory, its speed and time, the course of its loss."""

from __future__ import annotations

import math
from dataclasses import replace

from glassgpt.config import TrainConfig, first_checkpoint_iter
from glassgpt.data.dataset import Dataset
from glassgpt.estimate.batching import eval_batch_rows
from glassgpt.estimate.forecast import Hardware, RunForecast, TokenCounts, forecast_workload
from glassgpt.estimate.loss_law import ExpectedLossCurve, loss_law_inputs, predict_loss_curve
from glassgpt.estimate.memory import TrainingWorkload, estimate_memory
from glassgpt.model.gpt import GPTConfig
from glassgpt.training.run_choices import ComputePlan

_SNAPSHOT_MEMORY_SHARE = 0.95  # of what is free: beyond, a copy goes to main memory


def forecast_run(
    config: TrainConfig, equipment: ComputePlan, data_bytes: int, tokens: TokenCounts
) -> RunForecast:
    """`data_bytes`: of the training text."""
    work = expected_workload(config, equipment, data_bytes)
    on = Hardware(equipment.peak.value, equipment.card, equipment.cluster)
    return forecast_workload(work, equipment.flops_per_token, on, tokens)


def expected_workload(config: TrainConfig, equipment: ComputePlan, data_bytes: int) -> TrainingWorkload:
    """What decides the run's memory and speed."""
    shape, plan, placement = equipment.model_config, equipment.batch_plan, equipment.execution
    work = TrainingWorkload(
        config=_with_shape(config, shape),
        vocab_size=shape.vocab_size,
        batch_size=plan.batch_size,
        micro_steps=plan.micro_steps,
        device_type=placement.device.type,
        dtype=placement.dtype,
        kernels=placement.kernels,
        compiled=placement.compile,
        attention=placement.attention,
        graph=placement.graph,
        data_bytes=data_bytes if placement.data_on_card else 0,
        eval_batch_tokens=eval_batch_rows(config, placement.device.type) * shape.block_size,
        ranks=plan.ranks,
    )
    if config.eval_only or first_checkpoint_iter(config) >= config.max_iters:
        return work  # nothing is saved before the end
    with_copy, free = replace(work, has_checkpoint_copy=True), equipment.free_bytes
    return (
        with_copy
        if free is None or estimate_memory(with_copy).allocated_bytes <= _SNAPSHOT_MEMORY_SHARE * free
        else work
    )


def _with_shape(config: TrainConfig, shape: GPTConfig) -> TrainConfig:
    """Weights to begin with have their own, whatever the settings say."""
    return replace(
        config,
        n_layer=shape.n_layer,
        n_head=shape.n_head,
        n_embd=shape.n_embd,
        block_size=shape.block_size,
        bias=shape.bias,
        arch=shape.arch,  # type: ignore[arg-type]
        tie_embeddings=shape.tie_embeddings,
        dropout=shape.dropout,
    )


def expected_loss_curve(
    config: TrainConfig, equipment: ComputePlan, dataset: Dataset, learned: float
) -> ExpectedLossCurve | None:
    """`learned`: the share of an update's tokens that are learned from. None: it begins with weights that
    learned before."""
    if config.init_from != "scratch":
        return None
    manifest, per_token = dataset.manifest, dataset.bytes_per_token("train")
    if math.isnan(per_token):  # nanoGPT's folders do not say
        per_token = 1.0 if manifest.tokenizer in ("char", "byte") else 4.5
    setup = loss_law_inputs(
        config,
        vocab_size=equipment.model_config.vocab_size,
        batch_tokens=round(equipment.batch_plan.tokens * learned),
        train_tokens=manifest.tokens["train"],
        dataset=manifest.name,
        tokenizer=manifest.tokenizer,
        bytes_per_token=per_token,
    )
    return predict_loss_curve(setup)
