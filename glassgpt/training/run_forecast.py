"""What is expected of a run before it starts: its memory, its speed and time, the course of its loss."""

from __future__ import annotations

import math
from dataclasses import replace

from glassgpt.config import TrainConfig, first_save
from glassgpt.data.dataset import Dataset
from glassgpt.estimate.batching import evaluation_rows
from glassgpt.estimate.forecast import Forecast, Hardware, Portions, forecast
from glassgpt.estimate.loss_law import Expectation, expect
from glassgpt.estimate.loss_law_inputs import setup_of
from glassgpt.estimate.memory import Work, needed
from glassgpt.model.gpt import GPTConfig
from glassgpt.training.run_choices import Equipment

_ROOM = 0.95  # of what is free: beyond, a copy goes to main memory


def expected_effort(config: TrainConfig, equipment: Equipment, data_bytes: int, tokens: Portions) -> Forecast:
    """`data_bytes`: of the training text."""
    work = expected_work(config, equipment, data_bytes)
    on = Hardware(equipment.peak.value, equipment.card, equipment.cluster)
    return forecast(work, equipment.flops_per_token, on, tokens)


def expected_work(config: TrainConfig, equipment: Equipment, data_bytes: int) -> Work:
    """What decides the run's memory and speed."""
    shape, plan, placement = equipment.shape, equipment.plan, equipment.placement
    work = Work(
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
        eval_batch_tokens=evaluation_rows(config, placement.device.type) * shape.block_size,
        ranks=plan.ranks,
    )
    if config.eval_only or first_save(config) >= config.max_iters:
        return work  # nothing is saved before the end
    with_copy, free = replace(work, saves_beside=True), equipment.free_bytes
    return with_copy if free is None or needed(with_copy).allocated <= _ROOM * free else work


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


def expected_course(
    config: TrainConfig, equipment: Equipment, dataset: Dataset, learned: float
) -> Expectation | None:
    """`learned`: the share of an update's tokens that are learned from. None: it begins with weights that
    learned before."""
    if config.init_from != "scratch":
        return None
    manifest, per_token = dataset.manifest, dataset.bytes_per_token("train")
    if math.isnan(per_token):  # nanoGPT's folders do not say
        per_token = 1.0 if manifest.tokenizer in ("char", "byte") else 4.5
    setup = setup_of(
        config,
        vocab_size=equipment.shape.vocab_size,
        batch_tokens=round(equipment.plan.tokens * learned),
        train_tokens=manifest.tokens["train"],
        dataset=manifest.name,
        tokenizer=manifest.tokenizer,
        bytes_per_token=per_token,
    )
    return expect(setup)
