"""What a run is asked to do: one flat, documented dataclass, and what follows from it.

    glass train --help

The comments of the fields are the help text. nanoGPT's names keep their meaning. How the values get here
(presets, files, `--key=value`) is in recipe.py and flags.py, what can be wrong with them in problems.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glassgpt.paths import expand_user_path

ConfigValue = str | int | float | bool | None

DEVICE_TYPES = ("cpu", "cuda", "mps")


DEFAULT_BATCH_SIZE = 12  # nanoGPT's


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run. `none` means: derived, and the run says how."""

    # --- where things are ---

    # Folder of the run. Default: runs/PRESET, then runs/PRESET-2, ...; an existing run is never overwritten.
    out_dir: str = ""
    # The prepared dataset: its name in data/, or its folder. See `glass prepare --help`.
    dataset: str = "pylib"
    # Folder of the dataset. Default: what --dataset says.
    data_dir: str = ""
    # `scratch`. `resume`: go on with the run (also nanoGPT's) in --out_dir, or the newest of the preset. Or
    # begin a new run from RUN, RUN@2000 (any checkpoint it kept), a ckpt.pt, gpt2, gpt2-medium …, or any
    # model of GPT-2's kind: a folder, or OWNER/NAME on Hugging Face.
    init_from: str = "scratch"
    # What a new run takes over from RUN. `all`: goes on at its update, with its optimizer. `weights`: begins
    # at update 0. auto: all if the data is the same.
    init_state: Literal["auto", "all", "weights"] = "auto"

    # --- model ---

    # `gpt2`: GPT-2's layers and names. `modern`: rotary positions, RMSNorm, QK-norm, relu squared, no biases.
    arch: Literal["gpt2", "modern"] = "gpt2"
    # Blocks of attention and MLP, one after the other.
    n_layer: int = 12
    # Attention heads per block; must divide n_embd.
    n_head: int = 12
    # Channels: the width of the model.
    n_embd: int = 768
    # Context: how many tokens the model sees at once.
    block_size: int = 1024
    # 0 is right for pretraining on much data; 0.1 or 0.2 against overfitting on little.
    dropout: float = 0.0
    # Biases in linear layers and layer norms, as GPT-2 has them; without is a bit faster and no worse.
    bias: bool = False
    # The matrix that reads tokens is also the one that predicts them, as in GPT-2. False: two matrices.
    tie_embeddings: bool = True
    # `auto`: gelu for gpt2 (exact, as nanoGPT), relu2 for modern. GPT-2's own weights want gelu_new (tanh).
    activation: Literal["auto", "gelu", "gelu_new", "relu2"] = "auto"

    # --- batch ---

    # Sequences per forward pass and process (the micro-batch). none: 12, or chosen under batch_tokens.
    batch_size: int | None = None
    # Micro-batches per update, over all processes. none: 1, or derived from batch_tokens.
    gradient_accumulation_steps: int | None = None
    # Tokens per update, over everything: the one batch setting that the result depends on.
    batch_tokens: int | None = None
    # `joined`: sequences run on from one document into the next. `apart`: each is of one document; what its
    # window has left over is not learned from. Evaluation is the same for both.
    documents: Literal["joined", "apart"] = "joined"

    # --- optimizer ---

    # `muon`: Muon for the blocks' matrices and AdamW for the rest. Learns more per update than AdamW alone.
    optimizer: Literal["adamw", "muon"] = "adamw"
    # The highest rate, reached after the warm-up. Small models take more, large ones less.
    learning_rate: float = 6e-4
    # Muon's highest rate. All rates follow one schedule, each in proportion to its highest.
    matrix_lr: float = 0.02
    # With muon and tie_embeddings=False: AdamW's highest rate for the matrix that reads tokens. none:
    # learning_rate.
    embedding_lr: float | None = None
    # Number of updates.
    max_iters: int = 600_000
    # Pull of matrices towards zero; gains and biases are left alone.
    weight_decay: float = 0.1
    # AdamW's memory of gradients.
    beta1: float = 0.9
    # AdamW's memory of their squares; 0.99 is better when an update has few tokens.
    beta2: float = 0.95
    # Muon's memory of gradients.
    muon_momentum: float = 0.95
    # 3, 4 or 5: how thoroughly Muon evens a step out. 3 where its own arithmetic is felt: small batches.
    muon_steps: int = 5
    # Gradients with a larger norm are scaled down to it; 0 switches that off.
    grad_clip: float = 1.0

    # --- learning rate over the run ---

    # False: the learning rate is the same from the first update to the last, without a warm-up.
    decay_lr: bool = True
    # `cosine`: falls from warm-up on. `wsd`: stays up, then falls over the last part (good for continuing).
    schedule: Literal["cosine", "wsd"] = "cosine"
    # Updates of linear warm-up. none: 5% of max_iters, at most 2000.
    warmup_iters: int | None = None
    # Where the decay ends. none: max_iters.
    lr_decay_iters: int | None = None
    # Where the decay ends up. none: learning_rate / 10.
    min_lr: float | None = None
    # wsd only: the part of lr_decay_iters that the fall takes.
    wsd_decay_fraction: float = 0.2

    # --- evaluation ---

    # Updates between evaluations; there is also one before the first update and one after the last.
    eval_interval: int = 2000
    # Tokens evaluated per split, always the same ones. none: the whole validation split up to one million.
    eval_tokens: int | None = None
    # nanoGPT's way to say it: eval_iters x batch_size x block_size tokens.
    eval_iters: int | None = None
    # After the last update, evaluate the whole validation split if the others were of a part of it.
    closing_eval: bool = True
    # Evaluate once and stop.
    eval_only: bool = False
    # Stop when this many evaluations in a row were no better than the best beyond their noise; 0: never.
    patience: int = 0

    # --- checkpoints ---

    # Updates between checkpoints. none: at every evaluation.
    checkpoint_interval: int | None = None
    # How many of the latest checkpoints are kept. The best one is kept always.
    keep_checkpoints: int = 1
    # False: after an evaluation save only if it was the best so far. checkpoint_interval, if set, saves too.
    always_save_checkpoint: bool = True

    # --- machine ---

    # auto, cpu, cuda, cuda:1, mps
    device: str = "auto"
    # float16 comes with a loss scaler; on a CPU it becomes bfloat16.
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # auto weighs what compiling costs against what it saves in this run. True and False work too.
    compile: Literal["auto", "on", "off"] = "auto"
    # sdpa: the first of PyTorch's kernels that can. flash, cudnn, efficient: that one. manual: the formula.
    # auto: the fastest, measured where a run is long enough to care.
    attention: Literal["auto", "sdpa", "flash", "cudnn", "efficient", "manual"] = "auto"
    # triton: GlassGPT's own GPU kernels for norms, activations and loss; ready at once, where compiling takes
    # half a minute to find the like. plain: PyTorch's.
    kernels: Literal["auto", "triton", "plain"] = "auto"
    # Matmuls in 8-bit floats while training, on cards that have them (RTX 40, H100 and newer); less exact.
    fp8: bool = False
    # Record an update once and replay it (CUDA graphs): small models are otherwise held up by Python.
    graph: Literal["auto", "on", "off"] = "auto"
    # Where the text lies: card (batches are cut there) or memory (and are fetched ahead). auto: the card's if
    # it fits.
    data_place: Literal["auto", "card", "memory"] = "auto"
    # CPU threads to compute with. none: one a core, less the cores that other programs use.
    threads: int | None = None
    # Recompute activations in the backward pass: less memory, about a third more time.
    activation_checkpointing: bool = False
    # With several processes (torchrun, or `glass train --nproc N`): each holds a part of the weights and of
    # the optimizer's state (FSDP), for models that do not fit on one card. False: each holds all (DDP).
    shard: bool = False
    # How processes talk to each other: nccl or gloo. Empty: nccl between CUDA cards, gloo between CPUs.
    backend: str = ""
    # Seconds that processes wait for one that does not go on, before the run ends and names it.
    rank_timeout: float = 600.0
    # Seed of weights, batches and dropout.
    seed: int = 1337
    # Seconds spent at start to measure the matmul peak that MFU is compared with; 0: only the card table.
    probe_seconds: float = 1.0

    # --- what is shown ---

    # `glass`, or `nanogpt`: the lines that nanoGPT prints, for scripts that read those.
    console: Literal["glass", "nanogpt"] = "glass"

    # Updates between log lines.
    log_interval: int = 1
    # Tokens to generate at the end as a sample; 0: none.
    sample_tokens: int = 0
    # What the sample goes on from. Empty: from where a text begins.
    sample_start: str = ""

    # Updates to look into, e.g. 10:20: a trace for Perfetto, and what took the time. Empty: none.
    profile: str = ""

    # --- trackers ---

    # Tell others too, e.g. csv,tensorboard: any of csv, tensorboard, trackio, wandb. All is in the journal.
    track: str = ""
    # nanoGPT's way to say --track=wandb.
    wandb_log: bool = False
    # The project of wandb and trackio. Empty: glassgpt.
    wandb_project: str = ""
    # The run's name there. Empty: that of its folder.
    wandb_run_name: str = ""


@dataclass(frozen=True)
class Choice:
    """A value the program decided on, and why. Printed and recorded: there is no silent choice."""

    name: str
    value: ConfigValue
    reason: str


MACHINE_SPECIFIC_PATHS = (
    "out_dir",
    "data_dir",
    "init_from",
)  # paths, which may differ from machine to machine
DEVICE_PATTERN = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")


def has_invalid_characters(text: str) -> bool:
    """Bytes from the command line that are no UTF-8 arrive as lone surrogates. No path has a NUL."""
    return any("\ud800" <= char <= "\udfff" or char == "\0" for char in text)


# --- values that follow from others ---


TRACKERS = ("csv", "tensorboard", "trackio", "wandb")

MAX_PROFILE_UPDATES = 100  # updates; each is megabytes of trace


def tracker_names(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Their names, in the order given, each once."""
    named = [name.strip() for name in str(settings.get("track") or "").split(",")]
    named += ["wandb"] if settings.get("wandb_log") else []
    return tuple(dict.fromkeys(name for name in named if name))


def requested_trackers(config: TrainConfig) -> tuple[str, ...]:
    return tracker_names({"track": config.track, "wandb_log": config.wandb_log})


def profile_window(config: TrainConfig) -> tuple[int, int] | None:
    """Updates done when it begins, and when it ends; None if there is none, or it cannot be read."""
    found = re.fullmatch(r"([0-9]{1,15}):([0-9]{1,15})", config.profile.strip())
    return (int(found[1]), int(found[2])) if found else None


def warmup_iters(config: TrainConfig) -> int:
    return min(2000, config.max_iters // 20) if config.warmup_iters is None else config.warmup_iters


def first_checkpoint_iter(config: TrainConfig) -> int:
    """The update that the first checkpoint follows. An evaluation is saved if it is the best so far, and the
    second one, after the one at the start, will be."""
    return min(config.eval_interval, config.checkpoint_interval or config.max_iters, config.max_iters)


def decay_iters(config: TrainConfig) -> int:
    return config.max_iters if config.lr_decay_iters is None else config.lr_decay_iters


def min_lr(config: TrainConfig) -> float:
    return config.learning_rate / 10 if config.min_lr is None else config.min_lr


def activation(config: TrainConfig) -> str:
    if config.activation != "auto":
        return config.activation
    return "gelu" if config.arch == "gpt2" else "relu2"


def data_dir(config: TrainConfig) -> Path:
    """--data_dir; else data/DATASET, as in nanoGPT; else DATASET itself, if it is the path of a dataset."""
    if config.data_dir:
        return expand_user_path(config.data_dir)
    path = expand_user_path(config.dataset)
    named = Path("data") / path  # an absolute path stays itself
    return path if is_dataset_folder(path) and not is_dataset_folder(named) else named


def is_dataset_folder(folder: Path) -> bool:
    """Ours has a manifest; nanoGPT's has not."""
    return any(os.path.exists(folder / file) for file in ("manifest.json", "train.bin"))


# Vocabularies above this are rounded up to a multiple of 64, which matmuls like; below it nobody notices.
_MIN_PADDED_VOCAB_SIZE = 4096


def padded_vocab_size(vocab_size: int) -> int:
    """Rows of the model's matrix for so many tokens."""
    return -(-vocab_size // 64) * 64 if vocab_size > _MIN_PADDED_VOCAB_SIZE else vocab_size
