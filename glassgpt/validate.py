"""Problems in a TrainConfig alone; whether it fits the dataset and the machine is checked elsewhere.

find_config_problems(TrainConfig(n_embd=100, n_head=12))    # ["--n_embd=100 is not divisible by …; try …"]
"""

from __future__ import annotations

from glassgpt.config import (
    MAX_PROFILE_UPDATES,
    TRACKERS,
    TrainConfig,
    device_problems,
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
_MAX_THREADS = 1024  # with far more, OpenMP ends the process with a segmentation fault


def find_config_problems(config: TrainConfig) -> list[str]:
    """All problems, each a sentence that names the flag and the fix."""
    problems = _number_problems(config)
    if config.decay_lr and config.min_lr is not None and config.min_lr > config.learning_rate:
        problems.append(f"--min_lr={config.min_lr} is above --learning_rate={config.learning_rate}")
    if config.init_state != "auto" and config.init_from == "scratch":
        problems.append(f"--init_state={config.init_state} needs --init_from=RUN")
    if config.shard and config.dtype == "float16":
        problems.append("--shard=True requires --dtype=bfloat16 or float32: float16 needs a loss scaler")
    if config.shard and config.fp8:
        problems.append("--shard=True does not work with --fp8=True: leave one of them out")
    for name in _TEXT_FIELDS:
        if has_invalid_characters(getattr(config, name)):
            problems.append(f"--{name} has a NUL or is not UTF-8, so no file can hold it")
    problems += device_problems(config.device)
    for name in requested_trackers(config):
        if name not in TRACKERS:
            problems.append(f"--track={name} is not one of {', '.join(TRACKERS)}")
    if config.profile and (problem := _profile_problem(config)):
        problems.append(problem)
    # Shape and batch divide by these values, so they are checked only if all values are valid.
    return problems or _shape_and_batch_problems(config)


def _number_problems(config: TrainConfig) -> list[str]:
    problems = []
    for name in _POSITIVE_FIELDS + _NON_NEGATIVE_FIELDS:
        value = getattr(config, name)
        if value is not None and (value < 0 or (value == 0 and name in _POSITIVE_FIELDS)):
            requirement = "greater than 0" if name in _POSITIVE_FIELDS else "0 or more"
            problems.append(f"--{name}={value} must be {requirement}")
        if isinstance(value, int) and value >= 2**63:
            shown = f"={value}" if value < 10**30 else ""
            problems.append(f"--{name}{shown} must be below 2^63")
    if config.threads is not None and config.threads > _MAX_THREADS:
        problems.append(
            f"--threads={config.threads} must be at most {_MAX_THREADS}; omit it to use one per core"
        )
    for name in ("dropout", "beta1", "beta2", "muon_momentum"):
        if not 0 <= getattr(config, name) < 1:
            problems.append(f"--{name}={getattr(config, name)} must be at least 0 and below 1")
    if not 3 <= config.muon_steps <= 5:
        problems.append(f"--muon_steps={config.muon_steps} must be 3, 4 or 5")
    if not 0 < config.wsd_decay_fraction <= 1:
        problems.append(f"--wsd_decay_fraction={config.wsd_decay_fraction} must be above 0 and at most 1")
    return problems


def _profile_problem(config: TrainConfig) -> str | None:
    flag, window = f"--profile={config.profile}", profile_window(config)
    if window is None:
        return f"{flag} is not of the form 10:20, which begins after update 10 and ends after update 20"
    start, stop = window
    if start > stop:
        return f"{flag} ends before it begins; try --profile={stop}:{start}"
    if start == stop:
        return f"{flag} has no update in it; try --profile={start}:{start + 1}"
    if start == 0:
        better = f"--profile=1:{max(2, stop)}"
        return f"{flag} has the first update in it, which compiles and warms up; try {better}"
    if stop > config.max_iters:
        return f"{flag} goes past --max_iters={config.max_iters}"
    if stop - start > MAX_PROFILE_UPDATES:
        return f"{flag} is {stop - start:,} updates; a trace of more than {MAX_PROFILE_UPDATES} is too large"
    return None


def _shape_and_batch_problems(config: TrainConfig) -> list[str]:
    problems = []
    width, heads = config.n_embd, config.n_head
    head_size = width // heads
    if width % heads:
        widths = " or ".join(f"--n_embd={n * heads}" for n in (head_size, head_size + 1) if n)
        problems.append(f"--n_embd={width} is not divisible by --n_head={heads}; try {widths}")
    elif config.arch == "modern" and head_size % 2:
        problems.append(f"--arch=modern: RoPE needs an even head size, not --n_embd / --n_head = {head_size}")
    B, T, steps = config.batch_size, config.block_size, config.gradient_accumulation_steps
    tokens = config.batch_tokens
    if tokens is None:
        return problems
    if tokens % T:
        nearest = max(1, round(tokens / T)) * T
        problem = f"--batch_tokens={tokens} is not a multiple of --block_size={T}"
        return [*problems, f"{problem}; try --batch_tokens={nearest}"]
    if B and steps and B * steps * T != tokens:
        return [
            *problems,
            f"--batch_size={B} x --gradient_accumulation_steps={steps} x --block_size={T} is "
            f"{B * steps * T} tokens, not --batch_tokens={tokens}; leave one of them out",
        ]
    for name, factor in (("batch_size", B), ("gradient_accumulation_steps", steps)):
        if factor and tokens // T % factor:
            return [
                *problems,
                f"--batch_tokens={tokens} is {tokens // T} sequences of --block_size={T}, which "
                f"--{name}={factor} does not divide; leave --{name} out to have it chosen",
            ]
    return problems
