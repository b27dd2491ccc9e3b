"""How an update's tokens are cut into micro-batches, and evaluation's into batches.

The result of a run depends on the tokens per update; how many of them go through the model at once is a
matter of memory and speed. `batch_tokens` states the first, and the rest can be derived.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt.config import DEFAULT_BATCH_SIZE, Choice, TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate import memory
from glassgpt.format import pluralize

# More tokens than this in one pass gain nothing more: the matmuls are large enough.
_SATURATING_TOKENS = {"cpu": 4096, "cuda": 65_536, "mps": 16_384}


@dataclass(frozen=True)
class BatchPlan:
    """`batch_size` sequences at a time, `micro_steps` times per update in each process."""

    batch_size: int
    micro_steps: int
    sequences: int  # per update, over everything
    tokens: int  # per update, over everything

    @property
    def ranks(self) -> int:
        """Processes that share an update."""
        return self.sequences // (self.batch_size * self.micro_steps)

    @property
    def tokens_per_rank(self) -> int:
        """Per update, in each process."""
        return self.tokens // self.ranks


def plan_batch(
    config: TrainConfig, device_type: str, fits: int | None, ranks: int = 1
) -> tuple[BatchPlan, list[Choice]]:
    """The plan and what had to be decided for it. `fits`: sequences that memory allows at once, if known."""
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
    tokens = size * steps * T
    if steps % ranks:
        before, (size, reason) = size, _smaller_size(size * steps, T, size, ranks)
        steps = steps * before // size
        choices.append(Choice("batch_size", size, reason))
    how = f"{pluralize(size, 'sequence')} x {T} tokens" + (f" x {steps} micro-batches" if steps > 1 else "")
    choices.append(Choice("batch_tokens", tokens, f"{how} per update"))
    return BatchPlan(size, steps // ranks, size * steps, tokens), choices


def largest_micro_batch(at_most: int, sequences: int, ranks: int) -> int:
    """The most sequences at a time, of an update that so many processes share evenly."""
    return next(n for n in range(at_most, 0, -1) if sequences % (n * ranks) == 0)


def _smaller_size(sequences: int, T: int, size: int, ranks: int) -> tuple[int, str]:
    """The update stays what it is; it is the micro-batches that the processes share."""
    _check_divides_evenly(sequences, T, ranks)
    smaller = largest_micro_batch(size, sequences, ranks)
    return smaller, f"not {size}: so that {ranks} processes can share the update's {sequences} sequences"


def _check_divides_evenly(sequences: int, T: int, ranks: int) -> None:
    """Everybody takes as many sequences of an update."""
    if sequences % ranks:
        nearest = max(1, round(sequences / ranks)) * ranks
        raise UserError(
            f"an update of {sequences} sequences cannot be shared evenly by {ranks} cards or processes; "
            f"--batch_tokens={nearest * T} is {nearest} sequences, which can"
        )


def _choose_size(sequences: int, T: int, device_type: str, fits: int | None, ranks: int) -> tuple[int, str]:
    """The largest divisor that fits in memory and is not beyond what still pays."""
    _check_divides_evenly(sequences, T, ranks)
    enough = max(1, _SATURATING_TOKENS[device_type] // T)
    limit = min(enough, sequences // ranks, fits if fits is not None else enough)
    size = largest_micro_batch(max(1, limit), sequences, ranks)
    if size == sequences // ranks:
        why = "the whole update fits in one pass"
    elif fits is not None and fits < enough:
        why = f"memory is estimated to hold {fits} sequences at once"
    else:
        why = f"more than {enough * T:,} tokens in one pass gain nothing on {device_type}"
    return size, f"{why}; divides the update's {sequences} sequences"


# --- evaluation ---


DEFAULT_EVAL_TOKENS = 1_000_000  # per split, when nobody says
_EVAL_BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536, "mps": 16_384}
_MAX_EVAL_ACTIVATION_BYTES = 2**29  # what an evaluation batch passes from layer to layer stays under this


def tokens_to_evaluate(config: TrainConfig, plan: BatchPlan, val_tokens: int) -> int:
    """Per split. By default train is evaluated on as many tokens as the validation split has."""
    if config.eval_iters is not None:
        return config.eval_iters * _said_batch_size(config, plan) * config.block_size
    return config.eval_tokens or min(DEFAULT_EVAL_TOKENS, val_tokens)


def _said_batch_size(config: TrainConfig, plan: BatchPlan) -> int:
    """Before processes shared it: more of them must not evaluate less."""
    if config.batch_size is not None:
        return config.batch_size
    return DEFAULT_BATCH_SIZE if config.batch_tokens is None else plan.batch_size


def eval_batch_rows(config: TrainConfig, device_type: str) -> int:
    """Windows per batch: enough to keep the device busy, few enough to fit beside a training run."""
    tokens = min(
        _EVAL_BATCH_TOKENS[device_type],
        _MAX_EVAL_ACTIVATION_BYTES // (memory.EVAL_BYTES_PER_CHANNEL * config.n_embd),
    )
    return max(1, tokens // config.block_size)
