"""How the tokens of an update are split into micro-batches, and those of an evaluation into batches.

The result of a run depends on the tokens per update (`batch_tokens`). The micro-batch size is only a question
of memory and speed, and can be derived.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt.config import DEFAULT_BATCH_SIZE, Choice, TrainConfig
from glassgpt.errors import UserError
from glassgpt.format import pluralize

# Larger micro-batches are not faster: the matmuls are large enough.
_SATURATING_TOKENS = {"cpu": 4096, "cuda": 65_536, "mps": 16_384}


@dataclass(frozen=True)
class BatchPlan:
    """`batch_size` sequences per micro-batch, `micro_steps` micro-batches per update and rank."""

    batch_size: int
    micro_steps: int
    sequences: int  # per update, over all ranks
    tokens: int  # per update, over all ranks

    @property
    def ranks(self) -> int:
        """Processes that share an update (world size)."""
        return self.sequences // (self.batch_size * self.micro_steps)

    @property
    def tokens_per_rank(self) -> int:
        """Tokens of an update that each rank processes."""
        return self.tokens // self.ranks


def plan_batch(
    config: TrainConfig, device_type: str, fits: int | None, ranks: int = 1
) -> tuple[BatchPlan, list[Choice]]:
    """The plan, and the choices made for it. `fits`: sequences that fit in memory at once, if known."""
    T, size, steps = config.block_size, config.batch_size, config.gradient_accumulation_steps
    choices = []
    if config.batch_tokens is None:
        size, steps = size or DEFAULT_BATCH_SIZE, steps or ranks
    else:
        sequences = config.batch_tokens // T
        if size is None and steps is None:
            size, reason = _choose_size(sequences, T, device_type, fits, ranks)
            choices.append(Choice("batch_size", size, reason))
        elif size is None:
            size = sequences // (steps or 1)
        steps = sequences // size
    sequences, tokens = size * steps, size * steps * T
    if steps % ranks:
        # The update stays the same. Smaller micro-batches let the ranks share it.
        _check_divides_evenly(sequences, T, ranks)
        before, size = size, largest_micro_batch(size, sequences, ranks)
        steps = steps * before // size
        reason = f"not {before}: so that {ranks} processes can share the update's {sequences} sequences"
        choices.append(Choice("batch_size", size, reason, notable=config.batch_size is not None))
    how = f"{pluralize(size, 'sequence')} x {T} tokens" + (f" x {steps} micro-batches" if steps > 1 else "")
    choices.append(Choice("batch_tokens", tokens, f"{how} per update"))
    return BatchPlan(size, steps // ranks, size * steps, tokens), choices


def largest_micro_batch(at_most: int, sequences: int, ranks: int) -> int:
    """The largest micro-batch, in sequences, of an update that the ranks share evenly."""
    return next(n for n in range(at_most, 0, -1) if sequences % (n * ranks) == 0)


def _check_divides_evenly(sequences: int, T: int, ranks: int) -> None:
    """Each rank takes the same number of sequences."""
    if sequences % ranks:
        nearest = max(1, round(sequences / ranks)) * ranks
        raise UserError(
            f"an update of {sequences} sequences cannot be shared evenly by {ranks} cards or processes; "
            f"--batch_tokens={nearest * T} is {nearest} sequences, which can"
        )


def _choose_size(sequences: int, T: int, device_type: str, fits: int | None, ranks: int) -> tuple[int, str]:
    """The largest divisor that fits in memory and is still faster than a smaller one."""
    _check_divides_evenly(sequences, T, ranks)
    enough = max(1, _SATURATING_TOKENS[device_type] // T)
    limit = min(enough, sequences // ranks, fits if fits is not None else enough)
    size = largest_micro_batch(max(1, limit), sequences, ranks)
    if size == sequences // ranks:
        why = "the whole update fits in one pass"
    elif fits is not None and fits < enough:
        why = f"memory is estimated to hold {fits} sequences at once"
    else:
        why = f"more than {enough * T:,} tokens per micro-batch are not faster on {device_type}"
    return size, f"{why}; divides the update's {sequences} sequences"


# --- evaluation ---


DEFAULT_EVAL_TOKENS = 1_000_000  # per split
_EVAL_BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536, "mps": 16_384}
_EVAL_BYTES_PER_CHANNEL = 30  # of a block in bfloat16, for which the batch is made: see memory.py
_MAX_EVAL_ACTIVATION_BYTES = 2**29


def tokens_to_evaluate(config: TrainConfig, plan: BatchPlan, val_tokens: int) -> int:
    """Tokens per split. By default the training split gets as many as the validation split has."""
    if config.eval_iters is None:
        return config.eval_tokens or min(DEFAULT_EVAL_TOKENS, val_tokens)
    # The batch size before ranks shared it: more ranks must not evaluate less.
    batch_size = config.batch_size
    if batch_size is None:
        batch_size = DEFAULT_BATCH_SIZE if config.batch_tokens is None else plan.batch_size
    return config.eval_iters * batch_size * config.block_size


def has_closing_eval(config: TrainConfig, eval_tokens: int, val_tokens: int) -> bool:
    """Whether the whole validation split is evaluated at the end, because `eval_tokens` are not all of it."""
    return config.closing_eval and not config.eval_only and eval_tokens < val_tokens - 1


def eval_batch_rows(config: TrainConfig, device_type: str) -> int:
    """Windows per batch: enough to keep the device busy, few enough to fit beside a training run."""
    tokens = min(
        _EVAL_BATCH_TOKENS[device_type],
        _MAX_EVAL_ACTIVATION_BYTES // (_EVAL_BYTES_PER_CHANNEL * config.n_embd),
    )
    return max(1, tokens // config.block_size)
