"""The settings of a training run: one flat, documented dataclass, and values derived from it.

    glass train --help

The comments of the fields are the help text. nanoGPT's names keep their meaning. recipe.py and flags.py
read the values (presets, files, `--key=value`), validate.py checks them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glassgpt.files import expand_user_path

ConfigValue = str | int | float | bool | None

DEVICE_TYPES = ("cpu", "cuda", "mps")
DEVICE_PATTERN = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")
TRACKERS = ("csv", "tensorboard", "trackio", "wandb")
DEFAULT_BATCH_SIZE = 12  # nanoGPT's
MAX_PROFILE_UPDATES = 100  # each is megabytes of trace
MACHINE_SPECIFIC_PATHS = ("out_dir", "data_dir", "init_from")  # may differ from machine to machine
# A larger vocabulary is padded to a multiple of 64, which makes matmuls faster; a smaller one gains nothing.
_MIN_PADDED_VOCAB_SIZE = 4096


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run. `none` means: derived from other settings, and the run says how."""

    # --- where things are ---

    # Folder of the run. Default: runs/PRESET, then runs/PRESET-2, ...; an existing run is never overwritten.
    out_dir: str = ""
    # The prepared dataset: its name in data/, or its folder. See `glass prepare --help`.
    dataset: str = "pylib"
    # Folder of the dataset. Default: the one that --dataset names.
    data_dir: str = ""
    # `scratch`: random weights. `resume`: resume the run (also nanoGPT's) in --out_dir, or the newest of the
    # preset. Or start a new run from RUN, RUN@2000 (any checkpoint it kept), a ckpt.pt, gpt2, gpt2-medium …,
    # or any model with GPT-2's architecture: a folder, or OWNER/NAME on Hugging Face.
    init_from: str = "scratch"
    # What a new run loads from RUN. `all`: weights, optimizer state and update number. `weights`: only the
    # weights, from update 0. auto: all if the dataset is the same.
    init_state: Literal["auto", "all", "weights"] = "auto"

    # --- model ---

    # `gpt2`: GPT-2's layers and names. `modern`: rotary positions, RMSNorm, QK-norm, relu squared, no biases.
    arch: Literal["gpt2", "modern"] = "gpt2"
    # Number of transformer blocks (attention and MLP).
    n_layer: int = 12
    # Attention heads per block; must divide n_embd.
    n_head: int = 12
    # Embedding dimension: the width of the model.
    n_embd: int = 768
    # Context length, in tokens.
    block_size: int = 1024
    # Dropout probability. 0 for pretraining on much data; 0.1 or 0.2 limits overfitting on small datasets.
    dropout: float = 0.0
    # Biases in linear layers and layer norms, as in GPT-2. False: slightly faster, equal loss.
    bias: bool = False
    # Weight tying: one matrix is both token embedding and output head, as in GPT-2. False: two matrices.
    tie_embeddings: bool = True
    # Activation of the MLP. `auto`: gelu for gpt2 (exact, as nanoGPT), relu2 for modern. OpenAI's weights
    # need gelu_new (tanh).
    activation: Literal["auto", "gelu", "gelu_new", "relu2"] = "auto"

    # --- batch ---

    # Micro-batch: sequences per forward pass and process. none: 12, or derived from batch_tokens.
    batch_size: int | None = None
    # Micro-batches per update, over all processes. none: 1, or derived from batch_tokens.
    gradient_accumulation_steps: int | None = None
    # Tokens per update, over all micro-batches and processes: the batch setting that the result depends on.
    batch_tokens: int | None = None
    # `joined`: a training sequence may span several documents. `apart`: it holds one document, and the rest
    # of its window is padding without loss. Evaluation is the same for both. Also --document_masking=True
    # (apart) and False (joined).
    documents: Literal["joined", "apart"] = "joined"

    # --- optimizer ---

    # `muon`: Muon for the blocks' matrices and AdamW for the rest. Learns more per update than AdamW alone.
    optimizer: Literal["adamw", "muon"] = "adamw"
    # Peak learning rate, reached after the warm-up. Small models take a higher one, large models a lower one.
    learning_rate: float = 6e-4
    # Muon's peak learning rate (also --muon_lr). All learning rates follow one schedule, each scaled to its
    # peak.
    matrix_lr: float = 0.02
    # With muon and tie_embeddings=False: AdamW's peak learning rate for the token embedding. none:
    # learning_rate.
    embedding_lr: float | None = None
    # Number of updates (optimizer steps).
    max_iters: int = 600_000
    # Weight decay, applied to matrices only (not to norms and biases).
    weight_decay: float = 0.1
    # AdamW beta1: decay of the first-moment average of the gradient.
    beta1: float = 0.9
    # AdamW beta2: decay of the second-moment average. 0.99 is better when an update has few tokens.
    beta2: float = 0.95
    # Muon's momentum: decay of the average of gradients.
    muon_momentum: float = 0.95
    # Newton-Schulz iterations per Muon step: 3, 4 or 5. 3 is faster where batches are small.
    muon_steps: int = 5
    # Gradient clipping: a gradient with a larger norm is scaled down to this norm; 0: no clipping.
    grad_clip: float = 1.0

    # --- learning-rate schedule ---

    # False: the learning rate is constant from the first update to the last, without a warm-up.
    decay_lr: bool = True
    # `cosine`: decays from the warm-up on. `wsd` (warmup-stable-decay): constant, then decays over its last
    # part.
    schedule: Literal["cosine", "wsd"] = "cosine"
    # Updates of linear warm-up. none: 5% of max_iters, at most 2000.
    warmup_iters: int | None = None
    # The update at which the decay ends. none: max_iters.
    lr_decay_iters: int | None = None
    # The learning rate at the end of the decay. none: learning_rate / 10.
    min_lr: float | None = None
    # wsd only: the fraction of lr_decay_iters in which the learning rate decays.
    wsd_decay_fraction: float = 0.2

    # --- evaluation ---

    # Updates between evaluations; there is also one before the first update and one after the last.
    eval_interval: int = 2000
    # Tokens evaluated per split, always the same ones. none: the whole validation split up to one million.
    eval_tokens: int | None = None
    # nanoGPT's form of eval_tokens: eval_iters x batch_size x block_size tokens.
    eval_iters: int | None = None
    # Final evaluation (also --final_eval): after the last update, evaluate the whole validation split, if the
    # other evaluations used a part of it.
    closing_eval: bool = True
    # Evaluate once and stop.
    eval_only: bool = False
    # Early stopping: stop after this many evaluations in a row that do not improve on the best by more than
    # their noise; 0: never.
    patience: int = 0

    # --- checkpoints ---

    # Updates between checkpoints. none: at every evaluation.
    checkpoint_interval: int | None = None
    # How many of the latest checkpoints are kept. The best one is always kept.
    keep_checkpoints: int = 1
    # False: after an evaluation, save only if it was the best so far. checkpoint_interval, if set, saves too.
    always_save_checkpoint: bool = True

    # --- machine ---

    # Where to train: auto, cpu, cuda, cuda:1, mps.
    device: str = "auto"
    # Compute dtype. float16 uses a loss scaler; on a CPU it becomes bfloat16.
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # torch.compile. auto: if it saves more time in this run than compiling takes. True and False work too.
    compile: Literal["auto", "on", "off"] = "auto"
    # sdpa: the attention kernel that PyTorch picks. flash, cudnn, efficient: that one. manual: plain matmuls.
    # auto: the fastest, measured if the run is long enough.
    attention: Literal["auto", "sdpa", "flash", "cudnn", "efficient", "manual"] = "auto"
    # triton: GlassGPT's Triton kernels for norms, activations and loss, which need no torch.compile. plain
    # (also pytorch): PyTorch's.
    kernels: Literal["auto", "triton", "plain"] = "auto"
    # FP8 matmuls while training, on cards that have them (RTX 40, H100 and newer); less exact. 1.2 to 1.3
    # times as fast with n_embd 768 or more and 16,384 tokens in a micro-batch; off below 2,048 tokens.
    fp8: bool = False
    # CUDA graph (also --cuda_graph): capture an update once and replay it. It removes kernel-launch overhead,
    # which slows small models.
    graph: Literal["auto", "on", "off"] = "auto"
    # Where the tokens of the dataset are: card (batches are sliced on the GPU) or memory (and prefetched).
    # auto: card if they fit. Also --data_device=cuda (card) and cpu (memory).
    data_place: Literal["auto", "card", "memory"] = "auto"
    # CPU threads. none: one per core, minus the cores that other programs use.
    threads: int | None = None
    # Recompute activations in the backward pass: less memory, about a third more time.
    activation_checkpointing: bool = False
    # FSDP (also --fsdp): with several processes (torchrun, or `glass train --nproc N`), shard weights and
    # optimizer state over them, for models that do not fit on one card. False: each process holds all of it
    # (DDP).
    shard: bool = False
    # torch.distributed backend: nccl or gloo. Empty: nccl between CUDA cards, gloo between CPUs.
    backend: str = ""
    # Seconds to wait for a rank that does not respond before the run stops; the error names the rank.
    rank_timeout: float = 600.0
    # Seed of weights, batches and dropout.
    seed: int = 1337
    # Seconds at the start to measure the peak matmul FLOP/s, for MFU; 0: use the table of cards only.
    probe_seconds: float = 1.0
    # on: keep the speed and memory of finished runs in a file of the user's cache folder, and use those of
    # this machine for forecasts. off: neither read nor write it.
    history: Literal["on", "off"] = "on"

    # --- console output ---

    # `glass`, or `nanogpt`: the lines that nanoGPT prints, for scripts that parse them.
    console: Literal["glass", "nanogpt"] = "glass"
    # Updates between log lines.
    log_interval: int = 1
    # Tokens of the sample that is generated at the end; 0: no sample.
    sample_tokens: int = 0
    # Prompt of the sample. Empty: the beginning of a document.
    sample_start: str = ""
    # Updates to profile, e.g. 10:20: a trace for Perfetto, and a table of what took the time. Empty: none.
    profile: str = ""

    # --- trackers ---

    # Experiment trackers, e.g. csv,tensorboard: any of csv, tensorboard, trackio, wandb. The journal has all
    # values too.
    track: str = ""
    # nanoGPT's form of --track=wandb.
    wandb_log: bool = False
    # Project name for wandb and trackio. Empty: glassgpt.
    wandb_project: str = ""
    # Run name for wandb and trackio. Empty: the name of its folder.
    wandb_run_name: str = ""


@dataclass(frozen=True)
class Choice:
    """A value that the program chose, and why. Every choice is printed and written to the journal."""

    name: str
    value: ConfigValue
    reason: str
    notable: bool = False  # not what was asked for, or a warning: shown without --verbose too


def has_invalid_characters(text: str) -> bool:
    """Bytes from the command line that are not UTF-8 arrive as lone surrogates. No path has a NUL."""
    return any("\ud800" <= char <= "\udfff" or char == "\0" for char in text)


def device_problems(device: str) -> list[str]:
    """What is wrong with a --device; whether the machine has it is another question."""
    is_valid = DEVICE_PATTERN.fullmatch(device)
    return [] if is_valid else [f"--device={device} is not one of auto, cpu, cuda, cuda:N, mps"]


# --- values derived from others ---


def tracker_names(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the trackers that are switched on, in the order given, each once."""
    names = [name.strip() for name in str(settings.get("track") or "").split(",")]
    names += ["wandb"] if settings.get("wandb_log") else []
    return tuple(dict.fromkeys(name for name in names if name))


def requested_trackers(config: TrainConfig) -> tuple[str, ...]:
    return tracker_names({"track": config.track, "wandb_log": config.wandb_log})


def profile_window(config: TrainConfig) -> tuple[int, int] | None:
    """The updates after which profiling starts and stops; None if it is off, or not of the form 10:20."""
    match = re.fullmatch(r"([0-9]{1,15}):([0-9]{1,15})", config.profile.strip())
    return (int(match[1]), int(match[2])) if match else None


def first_checkpoint_iter(config: TrainConfig) -> int:
    """The update after which the first checkpoint is written.

    An evaluation is saved if it is the best so far; the second one nearly always beats the untrained model.
    """
    return min(config.eval_interval, config.checkpoint_interval or config.max_iters, config.max_iters)


def effective_activation(config: TrainConfig) -> str:
    if config.activation != "auto":
        return config.activation
    return "gelu" if config.arch == "gpt2" else "relu2"


def dataset_folder(config: TrainConfig) -> Path:
    """--data_dir; else data/DATASET, as in nanoGPT; else DATASET itself, if it is the path of a dataset."""
    if config.data_dir:
        return expand_user_path(config.data_dir)
    path = expand_user_path(config.dataset)
    named = Path("data") / path  # an absolute path stays itself
    return path if is_dataset_folder(path) and not is_dataset_folder(named) else named


def is_dataset_folder(folder: Path) -> bool:
    """A GlassGPT dataset has a manifest; nanoGPT's has only the .bin files."""
    return any(os.path.exists(folder / file) for file in ("manifest.json", "train.bin"))


def padded_vocab_size(vocab_size: int) -> int:
    """Rows of the embedding matrix for a vocabulary of this size."""
    return -(-vocab_size // 64) * 64 if vocab_size > _MIN_PADDED_VOCAB_SIZE else vocab_size
