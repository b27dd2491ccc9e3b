"""Everything a run needs, set up in the order it is needed, every decision with its reason."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from glassgpt import config as settings
from glassgpt.account import flops, hardware, journal
from glassgpt.account.clock import Ledger
from glassgpt.account.hardware import Peak
from glassgpt.account.meter import Interval, Mean
from glassgpt.account.sink import Listener, Sink
from glassgpt.config import Choice, TrainConfig
from glassgpt.data.dataset import Dataset, open_dataset, verify
from glassgpt.data.tokenizers import load_tokenizer
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.train import device as devices
from glassgpt.train import schedule
from glassgpt.train.batching import BatchPlan, plan_batch
from glassgpt.train.checkpoint import Saver
from glassgpt.train.device import Placement
from glassgpt.train.evaluate import Evaluation, batch_rows, tokens_to_evaluate
from glassgpt.train.interrupt import Stop
from glassgpt.train.learner import Learner
from glassgpt.train.rundir import Place, existing_run_dir, make_run_dir
from glassgpt.train.stream import Stream

# Vocabularies above this are rounded up to a multiple of 64, which matmuls like; below it nobody notices.
_PAD_VOCABULARY_ABOVE = 4096

_VERIFIED_TOKENS = 50_000_000  # larger datasets are not read through at every start

RECENT = 20  # gradient norms kept for the record of a run that fails


@dataclass
class Progress:
    """What changes as a run goes on, besides weights and optimizer. Part of every checkpoint."""

    iter: int = 0  # updates done
    sequences: int = 0  # seen by them; where the training stream goes on
    val_loss: float | None = None  # of the evaluation at this very iteration, if there was one
    best_val_loss: float = math.inf
    best_iter: int | None = None
    evaluations_without_gain: int = 0
    losses: list[float] = field(default_factory=list)  # since the last log line
    norms: list[float] = field(default_factory=list)


@dataclass
class Job:
    """A run, ready to go."""

    config: TrainConfig
    place: Place
    sink: Sink
    ledger: Ledger
    stop: Stop
    placement: Placement
    plan: BatchPlan
    dataset: Dataset
    splits: Mapping[str, np.ndarray]
    model: GPT
    learner: Learner
    stream: Stream
    saver: Saver
    peak: Peak
    flops_per_token: int
    eval_tokens: int
    eval_rows: int
    progress: Progress
    choices: list[Choice]
    sample_start: str
    interval: Interval
    recent_norms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    reference: Evaluation | None = None  # the evaluation that early stopping measures progress from
    saved: tuple[int, float | None] | None = None  # iteration and validation loss of the last checkpoint
    eval_cost: Mean = field(default_factory=Mean)
    save_cost: Mean = field(default_factory=Mean)

    @property
    def run_dir(self) -> Path:
        return self.place.directory

    def resolved_config(self) -> TrainConfig:
        """The settings with what was decided filled in, so that a resumed run decides the same."""
        return dataclasses.replace(
            self.config,
            init_from="scratch",
            out_dir="",
            eval_only=False,
            device=str(self.placement.device),
            dtype=self.placement.dtype,  # type: ignore[arg-type]
            compile="on" if self.placement.compile else "off",
            batch_size=self.plan.batch_size,
        )


def set_up(config: TrainConfig, name: str, listeners: Sequence[Listener], ledger: Ledger, stop: Stop) -> Job:
    """Reads the data, decides what is open, builds the model; makes the run's folder if all is well."""
    dataset = open_dataset(settings.data_dir(config))
    if sum(dataset.manifest.tokens.values()) < _VERIFIED_TOKENS:
        verify(dataset)
    splits = {split: dataset.tokens(split) for split in ("train", "val")}
    _check_lengths(config, splits)
    choices: list[Choice] = []

    torch.set_float32_matmul_precision("high")  # TF32 on cards that have it, as nanoGPT
    device, choice = devices.choose_device(config.device)
    choices.append(choice)
    if device.index is not None:  # "cuda:1": streams, events and probes shall mean this card
        torch.cuda.set_device(device)
    choices.append(dtype := devices.choose_dtype(config.dtype, device))
    choices.append(attention := devices.choose_attention(config.attention))

    shape, choice = _model_shape(config, dataset.manifest.vocab_size)
    choices.append(choice)
    if config.activation == "auto":
        choices.append(Choice("activation", shape.activation, f"the usual one for {shape.arch}"))
    counted = parameter_count(shape, positions=False)
    per_token = flops.flops_per_token(counted, shape.n_layer, shape.n_embd, shape.block_size)

    free, total = devices.memory_bytes(device)
    fits = devices.sequences_that_fit(config, shape.vocab_size, parameter_count(shape), free)
    plan, batch_choices = plan_batch(config, device.type, fits)
    choices += batch_choices

    peak = hardware.find_peak(
        device.type, devices.device_name(device), str(dtype.value), total, config.probe_seconds
    )
    eager_step_s = devices.estimate_step_s(
        device, plan, per_token, shape.n_layer, peak.measured or peak.value
    )
    choices.append(compiling := devices.choose_compile(config, device, eager_step_s))
    choices.append(Choice("schedule", config.schedule, schedule.describe(config)))

    if sample := _choose_sample_start(config, dataset):
        choices.append(sample)

    placement = Placement(device, str(dtype.value), compiling.value == "on", str(attention.value))
    model = _build_model(config, shape, placement)
    stream = Stream(splits["train"], config.block_size, plan, config.seed, device)
    progress = Progress()

    learner = Learner(model, config, placement, plan, stream, ledger)
    eval_tokens = tokens_to_evaluate(config, plan, len(splits["val"]))
    choices.append(_describe_evaluation(eval_tokens, len(splits["val"])))

    resuming = config.init_from == "resume"
    place = Place((existing_run_dir if resuming else make_run_dir)(config.out_dir, name))
    return Job(
        config=config,
        place=place,
        sink=Sink(place.directory / journal.NAME, place.process, listeners),
        ledger=ledger,
        stop=stop,
        placement=placement,
        plan=plan,
        dataset=dataset,
        splits=splits,
        model=model,
        learner=learner,
        stream=stream,
        saver=Saver(place.directory, config.keep_checkpoints),
        peak=peak,
        flops_per_token=per_token,
        eval_tokens=eval_tokens,
        eval_rows=batch_rows(config, device.type, shape.vocab_size),
        progress=progress,
        choices=choices,
        sample_start=str(sample.value) if sample else "",
        interval=Interval(ledger),
    )


def parameter_count(shape: GPTConfig, positions: bool = True) -> int:
    return flops.parameters(
        vocab_size=shape.vocab_size,
        block_size=shape.block_size,
        n_layer=shape.n_layer,
        n_embd=shape.n_embd,
        arch=shape.arch,
        bias=shape.bias,
        positions=positions,
    )


def _check_lengths(config: TrainConfig, splits: Mapping[str, np.ndarray]) -> None:
    train, val = len(splits["train"]), len(splits["val"])
    problems = []
    if train < config.block_size + 1:
        problems.append(
            f"the training split has {train} tokens, fewer than --block_size={config.block_size} + 1; "
            "prepare more text or lower --block_size"
        )
    if val < 2:
        problems.append(f"the validation split has {val} tokens, too few to evaluate; prepare more text")
    if problems:
        raise UserError(problems)


def _choose_sample_start(config: TrainConfig, dataset: Dataset) -> Choice | None:
    """A preset's start may not be writable in the characters of your text; then a sample starts at will."""
    if not config.sample_tokens or not config.sample_start:
        return None
    try:
        load_tokenizer(dataset.directory).encode(config.sample_start)
    except UserError as error:
        return Choice("sample_start", "", f"not {config.sample_start!r}: {error}")
    return Choice("sample_start", config.sample_start, "as set")


def _model_shape(config: TrainConfig, vocab_size: int) -> tuple[GPTConfig, Choice]:
    padded = -(-vocab_size // 64) * 64 if vocab_size > _PAD_VOCABULARY_ABOVE else vocab_size
    reason = f"the dataset's {vocab_size}" + (
        ", rounded up to a multiple of 64" if padded > vocab_size else ""
    )
    shape = GPTConfig(
        vocab_size=padded,
        block_size=config.block_size,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
        dropout=config.dropout,
        bias=config.bias,
        arch=config.arch,
        activation=settings.activation(config),
    )
    return shape, Choice("vocab_size", padded, reason)


def _build_model(config: TrainConfig, shape: GPTConfig, placement: Placement) -> GPT:
    torch.manual_seed(config.seed)
    model = GPT(shape)  # on the CPU first, so that every device starts from the same weights
    model.set_attention(fused=placement.attention == "sdpa")
    model.activation_checkpointing = config.activation_checkpointing
    return model.to(placement.device)


def _describe_evaluation(eval_tokens: int, val_tokens: int) -> Choice:
    if eval_tokens >= val_tokens - 1:
        return Choice("eval_tokens", val_tokens - 1, "the whole validation split, every time")
    return Choice(
        "eval_tokens", eval_tokens, f"of {val_tokens:,}, evenly spaced, always the same; all at the end"
    )
