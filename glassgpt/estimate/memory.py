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
LOW = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a number between the layers

# What a process holds on the device before the first tensor: CUDA's context with the libraries' kernels.
# On a CPU: the interpreter, torch, and what the allocator cannot give back.
CONTEXT_BYTES = {"cuda": 600 * 2**20, "mps": 400 * 2**20, "cpu": 300 * 2**20}
_WORKSPACE_BYTES = {"cuda": 68 * 2**20, "mps": 0, "cpu": 0}  # cuBLAS's


@dataclass(frozen=True, kw_only=True)
class Work:
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
    saves_beside: bool = False  # a copy for a checkpoint is written while training goes on
    ranks: int = 1  # cards that train together, one process each; all else here is of one of them

    @property
    def tokens(self) -> int:
        return self.batch_size * self.config.block_size

    @property
    def is_sharded(self) -> bool:
        return self.config.shard and self.ranks > 1

    @property
    def low(self) -> int:
        return LOW[self.dtype]


@dataclass(frozen=True)
class Memory:
    """Bytes on the device at the moment that needs most."""

    moment: str  # "loss", "backward", "step" or "evaluation"
    parts: Mapping[str, int]  # by name: weights, optimizer, activations …
    context: int  # beside what PyTorch counts
    recording: int = 0  # what a recorded update keeps for itself, so that an evaluation needs its own

    @property
    def allocated(self) -> int:
        """What PyTorch's allocator will have given out."""
        return sum(self.parts.values())

    @property
    def total(self) -> int:
        return self.allocated + self.recording + self.context


def needed(work: Work) -> Memory:
    moments = {"evaluation": _at_evaluation(work)}
    if not work.config.eval_only:
        moments |= {"loss": _at_loss(work), "backward": _at_backward(work), "step": _at_step(work)}
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    parts = {name: size for name, size in moments[moment].items() if size}
    context = CONTEXT_BYTES[work.device_type] + _exchange_context(work)
    return Memory(moment, parts, context, _recording_bytes(work, moments))


def _recording_bytes(work: Work, moments: Mapping[str, Mapping[str, int]]) -> int:
    """A recording's memory is its own for good: the optimizer's step, evaluations and updates, which else
    take turns, are there side by side."""
    if not work.graph or work.config.eval_only:
        return 0
    passing = {name: sum(parts.values()) for name, parts in moments.items()}
    always = sum(_always(work).values()) + _kept_gradients(work)
    of_updates = max(passing["loss"], passing["backward"]) - always
    of_steps = passing["step"] - always if work.config.optimizer == "muon" else 0  # AdamW works in place
    return max(0, of_updates + of_steps + passing["evaluation"] - max(passing.values()))


def largest_batch(work: Work, room: int) -> int | None:
    """Sequences of the largest micro-batch that needs no more than `room`; None if not even one does."""

    def total(batch_size: int) -> int:
        return needed(replace(work, batch_size=batch_size)).total

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


def parameters(work: Work) -> int:
    return flops.parameters_of(work.config, work.vocab_size)


def matrix_parameters(work: Work) -> int:
    """Of the blocks' matrices, which Muon trains."""
    return 12 * work.config.n_layer * work.config.n_embd**2


def block_parameters(work: Work) -> int:
    """Of one block, its norms and biases included."""
    one = replace(work.config, n_layer=1)
    none = replace(work.config, n_layer=0)
    return flops.parameters_of(one, work.vocab_size) - flops.parameters_of(none, work.vocab_size)


def _head(work: Work) -> int:
    """Parameters of the matrix that predicts."""
    return work.vocab_size * work.config.n_embd


def optimizer_bytes(work: Work) -> int:
    """AdamW keeps two numbers a parameter, Muon one for the blocks' matrices."""
    of_muon = matrix_parameters(work) if work.config.optimizer == "muon" else 0
    return 4 * of_muon + 8 * (parameters(work) - of_muon)


def checkpoint_bytes(work: Work) -> int:
    """On disk: weights and optimizer state."""
    return 4 * parameters(work) + optimizer_bytes(work)


def _always(work: Work) -> dict[str, int]:
    return {
        "weights": _part(work, 4 * parameters(work)),
        "optimizer": 0 if work.config.eval_only else _part(work, optimizer_bytes(work)),
        "working space": _WORKSPACE_BYTES[work.device_type],
        "copy to be saved": _part(work, checkpoint_bytes(work))
        if work.saves_beside and not work.config.eval_only
        else 0,
        "data": work.data_bytes,
    }


def _kept_gradients(work: Work) -> int:
    """Those that are there while the forward pass runs: of earlier micro-batches, or a recording's."""
    return 4 * parameters(work) if work.micro_steps > 1 or work.graph else 0


# --- several cards ---

_NCCL_BYTES = 400 * 2**20  # that it keeps on a card for its exchanges
AVERAGED_BYTES = 2**26  # of gradients, at once (training/distributed/torch_group.py)


def _exchange_context(work: Work) -> int:
    return _NCCL_BYTES if work.ranks > 1 and work.device_type == "cuda" else 0


def _part(work: Work, size: int) -> int:
    """What one card holds of what is spread over all of them."""
    return -(-size // work.ranks) if work.is_sharded else size


def _gathered(work: Work) -> dict[str, int]:
    """Sharded, two blocks are whole at a time, one computing and one arriving, and what is no block."""
    if not work.is_sharded:
        return {}
    block = block_parameters(work)
    others = parameters(work) - work.config.n_layer * block
    return {"gathered weights": 4 * (others + min(2, work.config.n_layer) * block)}


def _averaging_bytes(work: Work) -> int:
    """Unsharded, gradients are averaged piece by piece, each copied; none is cut."""
    return max(AVERAGED_BYTES, 4 * _head(work)) if work.ranks > 1 and not work.is_sharded else 0


# --- activations ---


def activation_bytes(work: Work) -> int:
    """What the forward pass leaves behind for the backward pass, until the loss."""
    c, tokens = work.config, work.tokens
    width = tokens * c.n_embd
    per_layer = 2 * work.low * width if c.activation_checkpointing else layer_bytes(work)
    last_norm = 2 * work.low * width  # the stream, and what the head reads
    copies = 0 if work.dtype == "float32" else work.low * matrix_parameters(work)  # of weights
    return c.n_layer * per_layer + last_norm + copies


def layer_bytes(work: Work) -> int:
    """What one block keeps, unless it is computed again."""
    c, tokens = work.config, work.tokens
    numbers, extra = _kept_by_a_layer(work)
    of_attention = 4 * c.n_head  # one logarithm a head
    if work.device_type == "cpu" and work.dtype == "bfloat16":
        of_attention += 16 * c.n_embd  # queries, keys, values and what comes of them, in float32
    if work.attention == "manual":
        of_attention = (4 + work.low + (1 if c.dropout else 0)) * c.n_head * c.block_size
    masks = 2 * c.n_embd if c.dropout else 0
    return tokens * (int(c.n_embd * (numbers * work.low + extra)) + of_attention + masks)


def _formula_bytes(work: Work) -> int:
    """Where attention is computed by its formula, scores and their gradients pass through several forms."""
    return 12 * work.config.n_head * work.config.block_size * work.tokens if work.attention == "manual" else 0


def _kept_by_a_layer(work: Work) -> tuple[float, int]:
    """Numbers a channel in `low` bytes each, and bytes beside."""
    modern = work.config.arch == "modern"
    if work.compiled:
        return (_COMPILED["modern" if modern else "gpt2"], 0)
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
    return numbers, 2 * (4 - work.low)


# As measured. The compiler computes some cheap things again, and keeps others in float32.
_COMPILED = {"gpt2": 16.4, "modern": 20.2}


# --- moments ---


def _at_loss(work: Work) -> dict[str, int]:
    return (
        _always(work)
        | _gathered(work)
        | {
            "gradients": _kept_gradients(work),
            "activations": activation_bytes(work),
            "logits and loss": _loss_bytes(work),
        }
    )


def _loss_bytes(work: Work) -> int:
    tokens, V, low = work.tokens, work.vocab_size, work.low
    if loss_chunks.are_few(tokens, V):
        return (low + 4 + 4) * tokens * V
    rows = loss_chunks.rows_at_a_time(tokens, V, work.device_type, work.kernels)
    entry = low if work.kernels else low + 8
    if work.config.fp8 and loss_chunks.fits_8_bits(V):
        entry += 2  # the gradient in 8 bits, both ways
    head_copy = 0 if work.dtype == "float32" else low * _head(work)
    gradients = 4 * _head(work) + low * tokens * work.config.n_embd
    return entry * rows * V + head_copy + gradients


def _at_backward(work: Work) -> dict[str, int]:
    """The last block's MLP goes first: a gradient before and after its activation, one of the stream."""
    width = work.low * work.tokens * work.config.n_embd
    few = loss_chunks.are_few(work.tokens, work.vocab_size)
    # The head's gradient: as the matmul gave it, or as it was kept, and as it is handed on.
    of_head = (work.low + 4 if few else 4 + 4) * _head(work)
    if work.config.activation_checkpointing:  # a block has to come back before anything goes
        again = layer_bytes(work) + _formula_bytes(work)
        if work.device_type == "cpu":  # as measured: gradients of the same sizes, and what is given back late
            again *= 3
        of_loss = max(of_head + 2 * width - again, of_head // 2 + 2 * width)
    else:
        again, of_loss = 0, max(of_head + 2 * width, of_head // 2 + 10 * width)
    return (
        _always(work)
        | _gathered(work)
        | {
            "gradients": _kept_gradients(work),
            "activations": activation_bytes(work) + again,
            "logits and loss": of_loss,
        }
    )


def _at_step(work: Work) -> dict[str, int]:
    """All gradients are there, the embedding's twice for a moment; Muon works on stacks of matrices."""
    working = max(4 * _head(work), _averaging_bytes(work))
    if work.config.optimizer == "muon":
        working = max(working, 14 * 4 * work.config.n_layer * work.config.n_embd**2)
    return _always(work) | {"gradients": _part(work, 4 * parameters(work)), "activations": working}


def _at_evaluation(work: Work) -> dict[str, int]:
    """Nothing is kept; logits in float32, and their logarithms."""
    c, tokens = work.config, work.eval_batch_tokens
    copies = 0 if work.dtype == "float32" else work.low * (matrix_parameters(work) + _head(work))
    rows = loss_chunks.rows_to_score(tokens, work.vocab_size, work.device_type)
    # First the blocks, then the head.
    of_blocks, of_head = tokens * c.n_embd * EVAL_BYTES, tokens * c.n_embd * 8 + 8 * rows * work.vocab_size
    return (
        _always(work)
        | _gathered(work)
        | {
            "gradients": 4 * parameters(work) if work.graph and not work.config.eval_only else 0,
            "activations": max(0, of_blocks - of_head) + copies,
            "logits and loss": of_head,
        }
    )


EVAL_BYTES = 4 * 3 + 2 * 9  # a channel: the exact stream, its norm and their sum; what a block passes on
