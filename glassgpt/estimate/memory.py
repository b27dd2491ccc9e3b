"""How much memory a run will take, from its settings alone. No torch: planning uses it.

    memory = needed(Work(config=config, vocab_size=50304, batch_size=64, dtype="bfloat16"))
    memory.total, memory.moment, memory.parts          # 22.5e9, "loss", {"weights": …, "activations": …, …}

An update has four moments that can be its peak: the loss, when all activations and a piece of the logits are
there; the start of the backward pass; the optimizer's step, when all gradients are there; an evaluation in
between. Each is a sum of tensors that can be counted. The constants say which tensors the model's code keeps;
tests/account/test_memory.py holds them against what PyTorch allocates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from glassgpt.config import TrainConfig
from glassgpt.estimate import flops
from glassgpt.model import loss_chunks

GIB = 2**30
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a number between the layers

# What a process holds on the device before the first tensor: CUDA's context with the libraries' kernels.
# On a CPU: the interpreter, torch, and what the allocator cannot give back.
CONTEXT_BYTES = {"cuda": 600 * 2**20, "mps": 400 * 2**20, "cpu": 300 * 2**20}
_WORKSPACE_BYTES = {"cuda": 68 * 2**20, "mps": 0, "cpu": 0}  # cuBLAS's


@dataclass(frozen=True, kw_only=True)
class TrainingWorkload:
    """What of a run decides its memory."""

    config: TrainConfig
    vocab_size: int  # rows of the model's matrix
    batch_size: int
    micro_steps: int = 1
    device_type: str = "cuda"
    dtype: str = "bfloat16"
    kernels: bool = True  # our own
    compiled: bool = False
    attention: str = "sdpa"
    graph: bool = False
    data_bytes: int = 0  # of text that lies on the card
    eval_batch_tokens: int = 0
    has_checkpoint_copy: bool = False  # a copy for a checkpoint is written while training goes on
    ranks: int = 1  # cards that train together, one process each; all else here is of one of them

    @property
    def micro_batch_tokens(self) -> int:
        return self.batch_size * self.config.block_size

    @property
    def is_sharded(self) -> bool:
        return self.config.shard and self.ranks > 1

    @property
    def activation_itemsize(self) -> int:
        return DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the device at the moment that needs most."""

    peak_phase: str  # "loss", "backward", "step" or "evaluation"
    parts: Mapping[str, int]  # by name: weights, optimizer, activations …
    context_bytes: int  # beside what PyTorch counts
    graph_bytes: int = 0  # what a recorded update keeps for itself, so that an evaluation needs its own

    @property
    def allocated_bytes(self) -> int:
        """What PyTorch's allocator will have given out."""
        return sum(self.parts.values())

    @property
    def total_bytes(self) -> int:
        return self.allocated_bytes + self.graph_bytes + self.context_bytes


def estimate_memory(work: TrainingWorkload) -> MemoryEstimate:
    moments = {"evaluation": _bytes_at_evaluation(work)}
    if not work.config.eval_only:
        moments |= {
            "loss": _bytes_at_loss(work),
            "backward": _bytes_at_backward(work),
            "step": _bytes_at_step(work),
        }
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    parts = {name: size for name, size in moments[moment].items() if size}
    context = CONTEXT_BYTES[work.device_type] + _exchange_context(work)
    return MemoryEstimate(moment, parts, context, _graph_bytes(work, moments))


def _graph_bytes(work: TrainingWorkload, moments: Mapping[str, Mapping[str, int]]) -> int:
    """A recording's memory is its own for good: the optimizer's step, evaluations and updates, which else
    take turns, are there side by side."""
    if not work.graph or work.config.eval_only:
        return 0
    passing = {name: sum(parts.values()) for name, parts in moments.items()}
    always = sum(_persistent_bytes(work).values()) + _persistent_gradient_bytes(work)
    of_updates = max(passing["loss"], passing["backward"]) - always
    of_steps = passing["step"] - always if work.config.optimizer == "muon" else 0  # AdamW works in place
    return max(0, of_updates + of_steps + passing["evaluation"] - max(passing.values()))


def largest_fitting_batch(work: TrainingWorkload, room: int) -> int | None:
    """Sequences of the largest micro-batch that needs no more than `room`; None if not even one does."""

    def total(batch_size: int) -> int:
        return estimate_memory(replace(work, batch_size=batch_size)).total_bytes

    fits, too_many = 1, 4
    used, over = total(fits), total(too_many)
    if used > room:
        return None
    while over <= room:
        if too_many > 2**20:
            return too_many
        fits, used, too_many = too_many, over, 4 * too_many
        over = total(too_many)
    while too_many - fits > 1:
        # Memory grows almost linearly with the batch: try where the line between the two reaches the room.
        crossing = fits + (room - used) * (too_many - fits) // (over - used)
        middle = min(max(crossing, fits + 1), too_many - 1)
        if (middle_total := total(middle)) <= room:
            fits, used = middle, middle_total
        else:
            too_many, over = middle, middle_total
    return fits


# --- parameters ---


def total_parameters(work: TrainingWorkload) -> int:
    return flops.model_parameters(work.config, work.vocab_size)


def block_matrix_parameters(work: TrainingWorkload) -> int:
    """Of the blocks' matrices, which Muon trains."""
    return 12 * work.config.n_layer * work.config.n_embd**2


def parameters_per_block(work: TrainingWorkload) -> int:
    """Of one block, its norms and biases included."""
    one = replace(work.config, n_layer=1)
    none = replace(work.config, n_layer=0)
    return flops.model_parameters(one, work.vocab_size) - flops.model_parameters(none, work.vocab_size)


def _head_parameters(work: TrainingWorkload) -> int:
    """Parameters of the matrix that predicts."""
    return work.vocab_size * work.config.n_embd


def optimizer_bytes(work: TrainingWorkload) -> int:
    """AdamW keeps two numbers a parameter, Muon one for the blocks' matrices."""
    of_muon = block_matrix_parameters(work) if work.config.optimizer == "muon" else 0
    return 4 * of_muon + 8 * (total_parameters(work) - of_muon)


def checkpoint_bytes(work: TrainingWorkload) -> int:
    """On disk: weights and optimizer state."""
    return 4 * total_parameters(work) + optimizer_bytes(work)


def _persistent_bytes(work: TrainingWorkload) -> dict[str, int]:
    return {
        "weights": _per_rank_bytes(work, 4 * total_parameters(work)),
        "optimizer": 0 if work.config.eval_only else _per_rank_bytes(work, optimizer_bytes(work)),
        "working space": _WORKSPACE_BYTES[work.device_type],
        "copy to be saved": _per_rank_bytes(work, checkpoint_bytes(work))
        if work.has_checkpoint_copy and not work.config.eval_only
        else 0,
        "data": work.data_bytes,
    }


def _persistent_gradient_bytes(work: TrainingWorkload) -> int:
    """Those that are there while the forward pass runs: of earlier micro-batches, or a recording's."""
    return 4 * total_parameters(work) if work.micro_steps > 1 or work.graph else 0


# --- several cards ---

_NCCL_BYTES = 400 * 2**20  # that it keeps on a card for its exchanges
ALL_REDUCE_BUCKET_BYTES = 2**26  # of gradients, at once (training/distributed/torch_group.py)


def _exchange_context(work: TrainingWorkload) -> int:
    return _NCCL_BYTES if work.ranks > 1 and work.device_type == "cuda" else 0


def _per_rank_bytes(work: TrainingWorkload, size: int) -> int:
    """What one card holds of what is spread over all of them."""
    return -(-size // work.ranks) if work.is_sharded else size


def _gathered_weight_bytes(work: TrainingWorkload) -> dict[str, int]:
    """Sharded, two blocks are whole at a time, one computing and one arriving, and what is no block."""
    if not work.is_sharded:
        return {}
    block = parameters_per_block(work)
    others = total_parameters(work) - work.config.n_layer * block
    return {"gathered weights": 4 * (others + min(2, work.config.n_layer) * block)}


def _averaging_bytes(work: TrainingWorkload) -> int:
    """Unsharded, gradients are averaged piece by piece, each copied; none is cut."""
    return (
        max(ALL_REDUCE_BUCKET_BYTES, 4 * _head_parameters(work))
        if work.ranks > 1 and not work.is_sharded
        else 0
    )


# --- activations ---


def activation_bytes(work: TrainingWorkload) -> int:
    """What the forward pass leaves behind for the backward pass, until the loss."""
    c, tokens = work.config, work.micro_batch_tokens
    width = tokens * c.n_embd
    per_layer = (
        2 * work.activation_itemsize * width
        if c.activation_checkpointing
        else activation_bytes_per_layer(work)
    )
    last_norm = 2 * work.activation_itemsize * width  # the stream, and what the head reads
    copies = (
        0 if work.dtype == "float32" else work.activation_itemsize * block_matrix_parameters(work)
    )  # of weights
    return c.n_layer * per_layer + last_norm + copies


def activation_bytes_per_layer(work: TrainingWorkload) -> int:
    """What one block keeps, unless it is computed again."""
    c, tokens = work.config, work.micro_batch_tokens
    numbers, extra = _saved_activations_per_channel(work)
    of_attention = 4 * c.n_head  # one logarithm a head
    if work.device_type == "cpu" and work.dtype == "bfloat16":
        of_attention += 16 * c.n_embd  # queries, keys, values and what comes of them, in float32
    if work.attention == "manual":
        of_attention = (4 + work.activation_itemsize + (1 if c.dropout else 0)) * c.n_head * c.block_size
    masks = 2 * c.n_embd if c.dropout else 0
    return tokens * (int(c.n_embd * (numbers * work.activation_itemsize + extra)) + of_attention + masks)


def _formula_bytes(work: TrainingWorkload) -> int:
    """Where attention is computed by its formula, scores and their gradients pass through several forms."""
    return (
        12 * work.config.n_head * work.config.block_size * work.micro_batch_tokens
        if work.attention == "manual"
        else 0
    )


def _saved_activations_per_channel(work: TrainingWorkload) -> tuple[float, int]:
    """Numbers a channel in `low` bytes each, and bytes beside."""
    modern = work.config.arch == "modern"
    if work.compiled:
        return (_COMPILED_NUMBERS_PER_CHANNEL["modern" if modern else "gpt2"], 0)
    # The stream and its norm, twice; queries, keys, values; what attention gave; before and after the
    # activation, four times as wide.
    numbers = 2 + 3 + 1 + 2 + 4 + 4
    if modern:
        numbers += 2  # queries and keys, turned and normed
    if work.config.fp8 and work.kernels:
        # 8-bit copies instead of what the matmuls read; attention keeps its own.
        return numbers - 6, 1 + 1 + 1 + 4
    if work.kernels:
        return numbers, 0
    # PyTorch's own norms keep their input in float32; those of queries and keys as well, turned and unturned.
    if modern:
        return numbers + 2, 2 * 4 * 2
    return numbers, 2 * (4 - work.activation_itemsize)


# As measured. The compiler computes some cheap things again, and keeps others in float32.
_COMPILED_NUMBERS_PER_CHANNEL = {"gpt2": 16.4, "modern": 20.2}


# --- moments ---


def _bytes_at_loss(work: TrainingWorkload) -> dict[str, int]:
    return (
        _persistent_bytes(work)
        | _gathered_weight_bytes(work)
        | {
            "gradients": _persistent_gradient_bytes(work),
            "activations": activation_bytes(work),
            "logits and loss": _loss_bytes(work),
        }
    )


def _loss_bytes(work: TrainingWorkload) -> int:
    tokens, V, low = work.micro_batch_tokens, work.vocab_size, work.activation_itemsize
    if loss_chunks.fits_unchunked(tokens, V):
        return (low + 4 + 4) * tokens * V
    rows = loss_chunks.rows_per_chunk(tokens, V, work.device_type, work.kernels)
    entry = low if work.kernels else low + 8
    if work.config.fp8 and loss_chunks.is_float8_aligned(V):
        entry += 2  # the gradient in 8 bits, both ways
    head_copy = 0 if work.dtype == "float32" else low * _head_parameters(work)
    gradients = 4 * _head_parameters(work) + low * tokens * work.config.n_embd
    return entry * rows * V + head_copy + gradients


def _bytes_at_backward(work: TrainingWorkload) -> dict[str, int]:
    """The last block's MLP goes first: a gradient before and after its activation, one of the stream."""
    width = work.activation_itemsize * work.micro_batch_tokens * work.config.n_embd
    few = loss_chunks.fits_unchunked(work.micro_batch_tokens, work.vocab_size)
    # The head's gradient: as the matmul gave it, or as it was kept, and as it is handed on.
    of_head = (work.activation_itemsize + 4 if few else 4 + 4) * _head_parameters(work)
    if work.config.activation_checkpointing:  # a block has to come back before anything goes
        again = activation_bytes_per_layer(work) + _formula_bytes(work)
        if work.device_type == "cpu":  # as measured: gradients of the same sizes, and what is given back late
            again *= 3
        of_loss = max(of_head + 2 * width - again, of_head // 2 + 2 * width)
    else:
        again, of_loss = 0, max(of_head + 2 * width, of_head // 2 + 10 * width)
    return (
        _persistent_bytes(work)
        | _gathered_weight_bytes(work)
        | {
            "gradients": _persistent_gradient_bytes(work),
            "activations": activation_bytes(work) + again,
            "logits and loss": of_loss,
        }
    )


def _bytes_at_step(work: TrainingWorkload) -> dict[str, int]:
    """All gradients are there, the embedding's twice for a moment; Muon works on stacks of matrices."""
    working = max(4 * _head_parameters(work), _averaging_bytes(work))
    if work.config.optimizer == "muon":
        working = max(working, 14 * 4 * work.config.n_layer * work.config.n_embd**2)
    return _persistent_bytes(work) | {
        "gradients": _per_rank_bytes(work, 4 * total_parameters(work)),
        "activations": working,
    }


def _bytes_at_evaluation(work: TrainingWorkload) -> dict[str, int]:
    """Nothing is kept; logits in float32, and their logarithms."""
    c, tokens = work.config, work.eval_batch_tokens
    copies = (
        0
        if work.dtype == "float32"
        else work.activation_itemsize * (block_matrix_parameters(work) + _head_parameters(work))
    )
    rows = loss_chunks.eval_rows_per_chunk(tokens, work.vocab_size, work.device_type)
    # First the blocks, then the head.
    of_blocks, of_head = (
        tokens * c.n_embd * EVAL_BYTES_PER_CHANNEL,
        tokens * c.n_embd * 8 + 8 * rows * work.vocab_size,
    )
    return (
        _persistent_bytes(work)
        | _gathered_weight_bytes(work)
        | {
            "gradients": 4 * total_parameters(work) if work.graph and not work.config.eval_only else 0,
            "activations": max(0, of_blocks - of_head) + copies,
            "logits and loss": of_head,
        }
    )


EVAL_BYTES_PER_CHANNEL = (
    4 * 3 + 2 * 9
)  # a channel: the exact stream, its norm and their sum; what a block passes on
