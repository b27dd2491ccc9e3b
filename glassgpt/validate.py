"""What can be wrong with a TrainConfig by itself; what depends on data or machine is checked there."""

from __future__ import annotations

from glassgpt.config import (
    DEVICE_PATTERN,
    MAX_PROFILE_UPDATES,
    TRACKERS,
    TrainConfig,
    has_invalid_characters,
    profile_window,
    requested_trackers,
)

# fmt: off
_POSITIVE_FIELDS = (
    "n_layer", "n_head", "n_embd", "block_size", "batch_size", "gradient_accumulation_steps", "batch_tokens",
    "learning_rate", "max_iters", "lr_decay_iters", "log_interval", "eval_interval", "eval_tokens",
    "eval_iters", "checkpoint_interval", "keep_checkpoints", "matrix_lr", "embedding_lr", "threads",
    "rank_timeout",
)
_NON_NEGATIVE_FIELDS = (
    "weight_decay", "grad_clip", "warmup_iters", "min_lr", "patience", "sample_tokens", "seed",
    "probe_seconds",
)
_TEXT_FIELDS = (
    "out_dir", "dataset", "data_dir", "init_from", "sample_start", "profile", "track", "wandb_project",
    "wandb_run_name", "backend",
)
# fmt: on
_MAX_THREADS = 1024  # far more, and OpenMP ends the process with a segmentation fault


def find_config_problems(config: TrainConfig) -> list[str]:
    """Each a sentence that names the flag and the fix."""
    problems = [
        *_number_problems(config),
        *_combination_problems(config),
        *_text_problems(config),
        *_profile_problems(config),
    ]
    if problems:
        return problems  # what follows divides by these values
    return _shape_problems(config) + _batch_problems(config)


def _number_problems(config: TrainConfig) -> list[str]:
    problems = []
    for name in _POSITIVE_FIELDS + _NON_NEGATIVE_FIELDS:
        value = getattr(config, name)
        if value is not None and (value < 0 or (value == 0 and name in _POSITIVE_FIELDS)):
            need = "greater than 0" if name in _POSITIVE_FIELDS else "0 or more"
            problems.append(f"--{name}={value} must be {need}")
        if isinstance(value, int) and value >= 2**63:
            said = f"={value}" if value < 10**30 else ""
            problems.append(f"--{name}{said} must be below 2^63")
    if config.threads is not None and config.threads > _MAX_THREADS:
        problems.append(
            f"--threads={config.threads} must be at most {_MAX_THREADS}; leave it out for one a core"
        )
    for name in ("dropout", "beta1", "beta2", "muon_momentum"):
        if not 0 <= getattr(config, name) < 1:
            problems.append(f"--{name}={getattr(config, name)} must be at least 0 and below 1")
    if not 3 <= config.muon_steps <= 5:
        problems.append(f"--muon_steps={config.muon_steps} must be 3, 4 or 5")
    if not 0 < config.wsd_decay_fraction <= 1:
        problems.append(f"--wsd_decay_fraction={config.wsd_decay_fraction} must be above 0 and at most 1")
    return problems


def _combination_problems(config: TrainConfig) -> list[str]:
    problems = []
    if config.decay_lr and config.min_lr is not None and config.min_lr > config.learning_rate:
        problems.append(f"--min_lr={config.min_lr} is above --learning_rate={config.learning_rate}")
    if config.init_state != "auto" and config.init_from == "scratch":
        problems.append(f"--init_state={config.init_state} is about --init_from=RUN, and there is none")
    if config.shard and config.dtype == "float16":
        problems.append("--shard=True goes with --dtype=bfloat16 or float32, not float16 and its loss scaler")
    if config.shard and config.fp8:
        problems.append("--shard=True does not go with --fp8=True")
    return problems


def _text_problems(config: TrainConfig) -> list[str]:
    broken = [name for name in _TEXT_FIELDS if has_invalid_characters(getattr(config, name))]
    problems = [f"--{name} is not text that a file can hold" for name in broken]
    if not DEVICE_PATTERN.fullmatch(config.device):
        problems.append(f"--device={config.device} is not one of auto, cpu, cuda, cuda:N, mps")
    unknown = [name for name in requested_trackers(config) if name not in TRACKERS]
    return problems + [f"--track={name} is not one of {', '.join(TRACKERS)}" for name in unknown]


def _profile_problems(config: TrainConfig) -> list[str]:
    said, window = f"--profile={config.profile}", profile_window(config)
    if not config.profile:
        return []
    if window is None:
        return [f"{said} is not of the form 10:20, which begins after update 10 and ends after update 20"]
    start, stop = window
    if start >= stop:
        return [f"{said} ends before it begins; try --profile={stop}:{start}" if start > stop else
                f"{said} is no update; try --profile={start}:{start + 1}"]  # fmt: skip
    if start == 0:
        instead = f"--profile=1:{max(2, stop)}"
        return [f"{said} has the first update in it, which compiles and warms up; try {instead}"]
    if stop > config.max_iters:
        return [f"{said} goes past --max_iters={config.max_iters}"]
    if stop - start > MAX_PROFILE_UPDATES:
        return [
            f"{said} is {stop - start:,} updates; a trace of more than {MAX_PROFILE_UPDATES} is too large"
        ]
    return []


def _shape_problems(config: TrainConfig) -> list[str]:
    width, heads = config.n_embd, config.n_head
    if width % heads:
        times = width // heads
        near = " or ".join(f"--n_embd={n * heads}" for n in (times, times + 1) if n)
        return [f"--n_embd={width} is not divisible by --n_head={heads}; try {near}"]
    if config.arch == "modern" and (width // heads) % 2:
        return [f"--arch=modern rotates pairs: --n_embd / --n_head = {width // heads} must be even"]
    return []


def _batch_problems(config: TrainConfig) -> list[str]:
    tokens, size, steps = config.batch_tokens, config.batch_size, config.gradient_accumulation_steps
    if tokens is None:
        return []
    T = config.block_size
    if tokens % T:
        good = max(1, round(tokens / T)) * T
        return [f"--batch_tokens={tokens} is not a multiple of --block_size={T}; try --batch_tokens={good}"]
    if size and steps and size * steps * T != tokens:
        return [
            f"--batch_size={size} x --gradient_accumulation_steps={steps} x --block_size={T} is "
            f"{size * steps * T} tokens, not --batch_tokens={tokens}; leave one of them out"
        ]
    for name, part in (("batch_size", size), ("gradient_accumulation_steps", steps)):
        if part and tokens // T % part:
            return [
                f"--batch_tokens={tokens} is {tokens // T} sequences of --block_size={T}, which "
                f"--{name}={part} does not divide; leave --{name} out to have it chosen"
            ]
    return []
