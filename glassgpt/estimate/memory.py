"""The memory that a run will need, computed from its settings. No torch: planning uses it.

    memory = estimate_memory(TrainingWorkload(config=config, vocab_size=50304, batch_size=64))
    memory.total_bytes, memory.peak_phase    # 22.5e9, "loss"
    memory.parts                             # {"weights": …, "activations": …, …}

The peak is in one of four phases: the loss, with all activations and a chunk of the logits; the start of the
backward pass; the optimizer's step, with all gradients; an evaluation. Each is a sum of tensors that can be
counted. The constants say which tensors the model's code saves; tests/estimate/test_memory.py compares them
with what PyTorch allocates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from glassgpt.config import effective_activation
from glassgpt.estimate.activations import (
    activation_bytes,
    activation_bytes_per_layer,
    cpu_backward_bytes,
    cpu_code_bytes,
    kept_weight_copy_bytes,
    manual_score_bytes,
    weight_copy_bytes,
)
from glassgpt.estimate.training_workload import (
    GRADIENT_BYTES,
    WEIGHT_BYTES,
    TrainingWorkload,
    block_matrix_parameters,
    checkpoint_bytes,
    head_parameters,
    optimizer_bytes,
    parameters_per_block,
    total_parameters,
)
from glassgpt.model import loss_chunks

GIB = 2**30

# Before the first tensor: CUDA's context with the libraries' kernels. On a CPU: the interpreter, torch's
# libraries and modules, as resident in a run of a model of 0.2 MiB (torch 2.13, Linux).
CONTEXT_BYTES = {"cuda": 600 * 2**20, "mps": 400 * 2**20, "cpu": 314 * 2**20}
# Of the bytes that are allocated and freed in an update: gaps that glibc's heap leaves between them, as in 16
# runs; far more where blocks are recomputed. Equal runs differ by up to 4%. With each tensor in pages of its
# own (MALLOC_MMAP_THRESHOLD_=65536) there are none, but the kernel clears those pages each time, and a run
# takes up to twice the time.
_HEAP_FRAGMENTATION, _HEAP_FRAGMENTATION_CHECKPOINTING = 0.27, 0.91
_CUBLAS_WORKSPACE_BYTES = {"cuda": 68 * 2**20, "mps": 0, "cpu": 0}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the device in the phase that needs most."""

    peak_phase: str  # "loss", "backward", "step" or "evaluation"
    parts: Mapping[str, int]  # bytes by name, as in the journal: weights, optimizer, activations …
    context_bytes: int  # not counted by PyTorch's allocator
    graph_bytes: int = 0  # private pool of the CUDA graph, which evaluations cannot use

    @property
    def allocated_bytes(self) -> int:
        """The peak that PyTorch's allocator will report."""
        return sum(self.parts.values())

    @property
    def total_bytes(self) -> int:
        return self.allocated_bytes + self.graph_bytes + self.context_bytes

    @property
    def overhead_bytes(self) -> int:
        """What is the same for every model."""
        return self.context_bytes + self.parts.get("working space", 0)


def estimate_memory(work: TrainingWorkload) -> MemoryEstimate:
    phases = {"evaluation": _bytes_at_evaluation(work)}
    if not work.config.eval_only:
        phases |= {
            "loss": _bytes_at_loss(work),
            "backward": _bytes_at_backward(work),
            "step": _bytes_at_step(work),
        }
    total = {phase: sum(parts.values()) for phase, parts in phases.items()}
    peak_phase = max(total, key=lambda phase: total[phase])
    parts = {name: size for name, size in phases[peak_phase].items() if size}
    context = CONTEXT_BYTES[work.device_type]
    if work.ranks > 1 and work.device_type == "cuda":
        context += _NCCL_BYTES
    if work.device_type == "cpu":
        context += cpu_code_bytes(work)
        freed = total[peak_phase] - sum(_persistent_bytes(work).values())
        is_recomputed = work.config.activation_checkpointing
        share = _HEAP_FRAGMENTATION_CHECKPOINTING if is_recomputed else _HEAP_FRAGMENTATION
        parts["heap fragmentation"] = int(share * freed)
    graph = 0
    if work.graph and not work.config.eval_only:
        # A CUDA graph keeps its memory pool for good. So the memory of updates, optimizer steps (if they are
        # a graph of their own) and evaluations, which would otherwise be shared, adds up.
        persistent = sum(_persistent_bytes(work).values()) + _persistent_gradient_bytes(work)
        updates = max(total["loss"], total["backward"]) - persistent
        steps = total["step"] - persistent
        if not work.keeps_gradients:
            updates, steps = max(updates, steps), 0
        elif work.config.optimizer == "adamw":  # in place
            steps = 0
        graph = max(0, updates + steps + total["evaluation"] - max(total.values()))
    return MemoryEstimate(peak_phase, parts, context, graph)


def largest_fitting_batch(work: TrainingWorkload, max_bytes: int) -> int | None:
    """Sequences of the largest micro-batch that fits into `max_bytes`; None if not even one does."""

    def total(batch_size: int) -> int:
        return estimate_memory(replace(work, batch_size=batch_size)).total_bytes

    fits, too_many = 1, 4
    used, over = total(fits), total(too_many)
    if used > max_bytes:
        return None
    while over <= max_bytes:
        if too_many > 2**20:
            return too_many
        fits, used, too_many = too_many, over, 4 * too_many
        over = total(too_many)
    while too_many - fits > 1:
        # Memory grows almost linearly with the batch: try where the line between both reaches it.
        crossing = fits + (max_bytes - used) * (too_many - fits) // (over - used)
        middle = min(max(crossing, fits + 1), too_many - 1)
        if (middle_total := total(middle)) <= max_bytes:
            fits, used = middle, middle_total
        else:
            too_many, over = middle, middle_total
    return fits


def without_optional_memory(work: TrainingWorkload) -> TrainingWorkload:
    """Without what training drops if memory is short: a CUDA graph, unless --graph=on, and a checkpoint copy
    on the card."""
    return replace(
        work,
        graph=work.graph and work.config.graph == "on",
        has_checkpoint_copy=work.has_checkpoint_copy and work.device_type == "cpu",
    )


# --- what stays through an update ---


def _persistent_bytes(work: TrainingWorkload) -> dict[str, int]:
    return {
        "weights": _per_rank_bytes(work, WEIGHT_BYTES * total_parameters(work)),
        "optimizer": 0 if work.config.eval_only else _per_rank_bytes(work, optimizer_bytes(work)),
        "working space": _CUBLAS_WORKSPACE_BYTES[work.device_type],
        "copy to be saved": _per_rank_bytes(work, checkpoint_bytes(work))
        if work.has_checkpoint_copy and not work.config.eval_only
        else 0,
        "data": work.data_bytes,
    }


def _persistent_gradient_bytes(work: TrainingWorkload) -> int:
    return GRADIENT_BYTES * total_parameters(work) if work.keeps_gradients else 0


# --- several cards ---

_NCCL_BYTES = 400 * 2**20  # NCCL's buffers on each card
ALL_REDUCE_BUCKET_BYTES = 2**23  # gradients per all-reduce (training/distributed/gradient_all_reduce.py)


def _per_rank_bytes(work: TrainingWorkload, size: int) -> int:
    """One card's share of `size` bytes that are sharded over all."""
    return -(-size // work.ranks) if work.is_sharded else size


def _gathered_weight_bytes(work: TrainingWorkload) -> dict[str, int]:
    """If sharded: two blocks are gathered at a time, one computing and one prefetched; and all non-blocks."""
    if not work.is_sharded:
        return {}
    block = parameters_per_block(work)
    others = total_parameters(work) - work.config.n_layer * block
    return {"gathered weights": 4 * (others + min(2, work.config.n_layer) * block)}


# --- phases ---


def _bytes_at_loss(work: TrainingWorkload) -> dict[str, int]:
    """All activations, and the logits: all, or one chunk with the gradients of the head (model/loss.py)."""
    tokens, V, low = work.micro_batch_tokens, work.vocab_size, work.activation_itemsize
    if work.has_all_logits:
        logits_and_loss = (low + 4 + 4) * tokens * V  # with their float32 copy, and its gradient
    else:
        rows = loss_chunks.rows_per_chunk(tokens, V, work.device_type, work.kernels)
        per_logit = low if work.kernels else low + 8
        if work.config.fp8 and loss_chunks.is_float8_aligned(V):
            per_logit += 2  # the float8 gradient, row-major and column-major
        head_copy = 0 if work.dtype == "float32" else low * head_parameters(work)
        gradients = 4 * head_parameters(work) + low * tokens * work.config.n_embd
        if work.config.fp8 and loss_chunks.is_float8_aligned(V):
            gradients += 4 * head_parameters(work)  # of one chunk, before it is added
        if not work.kernels and work.config.arch == "gpt2" and work.dtype != "float32":
            gradients += 4 * tokens * work.config.n_embd  # LayerNorm's output, in float32 under autocast
        logits_and_loss = per_logit * rows * V + head_copy + gradients
    return (
        _persistent_bytes(work)
        | _gathered_weight_bytes(work)
        | {
            "gradients": _persistent_gradient_bytes(work),
            "activations": activation_bytes(work),
            "logits and loss": logits_and_loss,
        }
    )


def _bytes_at_backward(work: TrainingWorkload) -> dict[str, int]:
    """At the start of backward: all activations, and gradients in the head or in the last MLP."""
    config, tokens = work.config, work.micro_batch_tokens
    stream = work.activation_itemsize * tokens * config.n_embd
    # The head's gradient twice: as the matmul or the chunked loss made it, and as autograd returns it.
    head_twice = (work.activation_itemsize + 4 if work.has_all_logits else 4 + 4) * head_parameters(work)
    in_head = head_twice + 2 * stream  # gradients of the stream and of its norm
    in_last_mlp = head_twice // 2 + int(_mlp_backward_streams(work) * stream)
    recomputed = 0
    if work.device_type == "cpu":
        in_last_mlp = head_twice // 2 + cpu_backward_bytes(work)
    elif work.attention == "manual":  # the last MLP has been freed by then
        # Softmax backward: output, both gradients, a product. What was saved is counted already.
        softmax = 4 * 4 - manual_score_bytes(work)
        scores = softmax * config.n_head * config.block_size * tokens
        freed = 16 if config.arch == "modern" and not work.kernels else 10  # streams, of the MLP
        in_last_mlp = max(in_last_mlp, head_twice // 2 + scores - freed * stream)
    if config.activation_checkpointing:  # the last block is recomputed after the head, before the MLP
        recomputed = activation_bytes_per_layer(work) - 2 * stream  # its input and norm are counted already
        # Autocast's copies of the weights were freed after the forward pass, except for this block.
        kept = weight_copy_bytes(work) if work.device_type == "cpu" else kept_weight_copy_bytes(work)
        recomputed += weight_copy_bytes(work) // max(1, config.n_layer) - kept
        if work.device_type == "cpu":
            recomputed += 2 * stream
    return (
        _persistent_bytes(work)
        | _gathered_weight_bytes(work)
        | {
            "gradients": _persistent_gradient_bytes(work),
            "activations": activation_bytes(work) + recomputed,
            "logits and loss": max(in_head - recomputed, in_last_mlp),
        }
    )


def _mlp_backward_streams(work: TrainingWorkload) -> float:
    """Memory of the last MLP's backward pass beyond all activations, in units of the residual stream.

    Its hidden layer's gradient is four streams wide; the last norm and the head have been freed by then.
    The rest as traced (tests/estimate/test_traced_memory.py).
    """
    if work.device_type != "cuda" or work.compiled:
        return 2 + 4 + 4  # fitted
    if not work.kernels:
        in_float32 = work.dtype == "float32"
        if work.config.arch == "modern":  # relu squared is several operations
            return 7.2
        return 3.1 if in_float32 else 4.1
    return 8.4 if work.config.fp8 else 3.1


def _bytes_at_step(work: TrainingWorkload) -> dict[str, int]:
    """All gradients; Muon works on stacks of matrices.

    Before, at the very end of backward: a tied embedding's two gradients and their sum, and the sum over
    micro-batches, if that exists already.
    """
    temporary = 4 * head_parameters(work) * (2 if work.config.tie_embeddings else 0)
    if _persistent_gradient_bytes(work):
        temporary += 4 * head_parameters(work)
    if work.ranks > 1 and not work.is_sharded:
        # A bucket of gradients is a copy, and then replaces them; but not for a CUDA graph.
        copied = GRADIENT_BYTES * total_parameters(work) if work.graph else ALL_REDUCE_BUCKET_BYTES
        temporary = max(temporary, copied)
    if work.config.optimizer == "muon":
        # Of the stacked MLP matrices, in float32: gradients, averages, the normalised matrices; and those
        # in the dtype of the products, which in float32 need their square, a polynomial and the result.
        bytes_per_entry = 4 + 4 + 4 + 2 if work.dtype != "float32" else 4 + 4 + 4 + 1 + 1 + 4
        temporary = max(temporary, 4 * bytes_per_entry * work.config.n_layer * work.config.n_embd**2)
    return _persistent_bytes(work) | {
        "gradients": _per_rank_bytes(work, GRADIENT_BYTES * total_parameters(work)),
        "activations": temporary,
    }


def _bytes_at_evaluation(work: TrainingWorkload) -> dict[str, int]:
    """Nothing is saved for a backward pass; float32 logits and their log-softmax."""
    config, tokens = work.config, work.eval_batch_tokens
    weight_copies = 0
    if work.dtype != "float32":
        weight_copies = work.activation_itemsize * (block_matrix_parameters(work) + head_parameters(work))
    rows = loss_chunks.eval_rows_per_chunk(tokens, work.vocab_size, work.device_type)
    keeps_gradients = work.graph and work.keeps_gradients and not config.eval_only
    # The blocks run before the head, so the larger of both counts.
    blocks = tokens * max(_eval_mlp_bytes_per_token(work), _eval_manual_attention_bytes_per_token(work))
    head = 4 * tokens * config.n_embd + 8 * rows * work.vocab_size
    return (
        _persistent_bytes(work)
        | _gathered_weight_bytes(work)
        | {
            "gradients": GRADIENT_BYTES * total_parameters(work) if keeps_gradients else 0,
            "activations": max(0, blocks - head) + weight_copies,
            # After a capture, cuBLAS's workspaces are freed; evaluation needs the forward pass's alone.
            "working space": _CUBLAS_WORKSPACE_BYTES[work.device_type] // (2 if work.graph else 1),
            "logits and loss": head,
        }
    )


def _eval_mlp_bytes_per_token(work: TrainingWorkload) -> int:
    """The float32 residual stream before and in the block, its norm, and the MLP's hidden layer before and
    after the activation. PyTorch's relu squared has one tensor more."""
    low = work.activation_itemsize
    hidden_tensors = 3 if effective_activation(work.config) == "relu2" and not work.kernels else 2
    branch = low if work.config.n_layer > 1 else 0  # of the block before, of which the first block has none
    return work.config.n_embd * (3 * 4 + branch + 4 * low * hidden_tensors)


def _eval_manual_attention_bytes_per_token(work: TrainingWorkload) -> int:
    """The residual stream, and queries and keys in several forms; scores, masked scores and their softmax, in
    float32, or scores and what they are computed from. PyTorch's fused attention needs less than the MLP."""
    config = work.config
    if work.attention != "manual":
        return 0
    other = 28 if work.dtype == "float32" else 24 if config.arch == "modern" else 20
    if config.n_layer == 1:  # the stream in the first block is the one before it
        other -= 4 + work.activation_itemsize
    row = 4 * config.n_head * config.block_size
    operands = 0 if work.dtype == "float32" else 4 * 4  # queries and keys, converted and in one piece
    return max(3 * row, row + operands * config.n_embd) + other * config.n_embd
