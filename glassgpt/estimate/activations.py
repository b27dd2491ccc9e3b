"""What the forward pass saves for the backward pass: the tensors of the model's code, counted per token.

    activation_bytes(TrainingWorkload(config=config, vocab_size=50304, batch_size=64))

The constants say which tensors are saved; tests/estimate/test_traced_memory.py compares them with a trace of
the model's code.
"""

from __future__ import annotations

from glassgpt.config import effective_activation
from glassgpt.estimate.training_workload import TrainingWorkload, block_matrix_parameters
from glassgpt.model import loss_chunks

# On a CPU besides, each once: oneDNN's code for bfloat16 matmuls, and for Muon's batched ones; the modules
# that torch.utils.checkpoint imports at its first call.
_CPU_BFLOAT16_BYTES, _CPU_BFLOAT16_MUON_BYTES = 22 * 2**20, 8 * 2**20
_CPU_CHECKPOINTING_BYTES = 71 * 2**20


def activation_bytes(work: TrainingWorkload) -> int:
    """Saved by the forward pass for the backward pass."""
    config, low = work.config, work.activation_itemsize
    if work.device_type == "cpu":
        saved = activation_bytes_per_layer(work)
        if config.activation_checkpointing:  # the two parts of the residual stream, before each block
            saved = work.micro_batch_tokens * config.n_embd * (4 + low)
        # Outside of the blocks: the last norm; the embedding's norm; its dropout mask.
        outside = _cpu_norm_bytes(work) + (4 if config.arch == "modern" else 0) + 4 * (config.dropout > 0)
        outside_bytes = outside * work.micro_batch_tokens * config.n_embd
        return config.n_layer * saved + outside_bytes + weight_copy_bytes(work)
    stream_and_norm = 2 * low * work.micro_batch_tokens * config.n_embd
    per_layer = stream_and_norm if config.activation_checkpointing else activation_bytes_per_layer(work)
    # Outside of the blocks: dropout of the embedding; in `modern` its norm, in float32; and the last norm.
    outside = int(config.dropout > 0) + (4 if config.arch == "modern" else 0) + _plain_norm_bytes(work)
    return (
        config.n_layer * per_layer
        + stream_and_norm
        + outside * work.micro_batch_tokens * config.n_embd
        + kept_weight_copy_bytes(work)
    )


def _plain_norm_bytes(work: TrainingWorkload) -> int:
    """Per channel, what PyTorch's own norm saves beyond the Triton kernel: LayerNorm its input in float32.
    Autocast leaves RMSNorm in the dtype of its input."""
    if work.kernels or work.compiled or work.config.arch == "modern":
        return 0
    return 4 - work.activation_itemsize


def weight_copy_bytes(work: TrainingWorkload) -> int:
    """The blocks' matrices as the matmuls read them: autocast's copies, or float8 for the backward pass."""
    if work.dtype == "float32":
        return 0
    return (1 if work.config.fp8 and work.kernels else work.activation_itemsize) * block_matrix_parameters(
        work
    )


def kept_weight_copy_bytes(work: TrainingWorkload) -> int:
    """The copies that are there at the end of the forward pass on a card. With activation checkpointing they
    are those that autocast keeps; linear layers of few tokens, and in FP8, make their own (model/ops.py)."""
    is_small = work.micro_batch_tokens <= loss_chunks.MAX_FLOAT32_GRADIENT_TOKENS
    makes_its_own = (is_small or (work.config.fp8 and work.kernels)) and not work.compiled
    return 0 if work.config.activation_checkpointing and makes_its_own else weight_copy_bytes(work)


def has_fused_rotary(work: TrainingWorkload) -> bool:
    """The kernel of RoPE and QK-norm takes heads whose size is a power of two (model/ops.py)."""
    head_dim = work.config.n_embd // max(1, work.config.n_head)
    return work.kernels and head_dim & (head_dim - 1) == 0


# As measured. The compiler recomputes some cheap operations, and keeps others in float32.
_COMPILED_NUMBERS_PER_CHANNEL = {"gpt2": 16.4, "modern": 20.2}


def activation_bytes_per_layer(work: TrainingWorkload) -> int:
    """Saved by one block, without activation checkpointing."""
    config, low = work.config, work.activation_itemsize
    modern = config.arch == "modern"
    if work.device_type == "cpu":
        return work.micro_batch_tokens * _cpu_block_bytes_per_token(work)
    # Per channel: `numbers` in the activation dtype, and `other` bytes. The residual stream and its norm,
    # twice; queries, keys, values; attention's output; before and after the activation, four times as wide.
    numbers, other = 2.0 + 3 + 1 + 2 + 4 + 4, 0
    if modern:
        numbers += 2  # queries and keys after RoPE and QK-norm
    if work.compiled:
        numbers = _COMPILED_NUMBERS_PER_CHANNEL["modern" if modern else "gpt2"]
    else:
        if config.fp8 and work.kernels:
            # Float8 copies instead of the inputs of the matmuls; attention saves its own.
            numbers, other = numbers - 6, 1 + 1 + 1 + 4
        if modern and not has_fused_rotary(work):
            numbers += 2  # queries and keys after RoPE, the input of QK-norm
        other += 2 * _plain_norm_bytes(work)
    attention = 4 * config.n_head  # one logsumexp per head
    if work.attention == "manual":
        # Instead of all three: a copy of the values; queries and keys in float32.
        numbers, other = numbers - 2, other + 2 * 4
        attention = manual_score_bytes(work) * config.n_head * config.block_size
    elif work.device_type == "cuda" and (head_dim := config.n_embd // max(1, config.n_head)) % 8:
        # Flash attention pads heads to a multiple of 8, and c_proj needs the output without padding.
        padded = -(-head_dim // 8) * 8
        if modern:
            numbers -= 2  # queries and keys without padding are freed
        attention += low * config.n_head * (3 * (padded - head_dim) + padded)
    dropout_masks = 2 * config.n_embd if config.dropout else 0
    per_token = int(config.n_embd * (numbers * low + other)) + attention + dropout_masks
    return work.micro_batch_tokens * per_token


def manual_score_bytes(work: TrainingWorkload) -> int:
    """Saved per pair of tokens and head without a fused kernel for attention."""
    low = work.activation_itemsize
    softmax = 4 + (low if low < 4 else 0)  # and its copy for the matmul
    mask = 1 + (4 if low == 4 else 0)  # and dropout's output, where no copy of it is made
    return softmax + (mask if work.config.dropout else 0)


# --- activations on a CPU ---
# The residual stream is in float32 also under autocast, a dropout mask has the dtype of what it multiplies,
# and bfloat16 attention runs in float32. PyTorch's fused attention has no dropout there: with dropout all
# scores are saved. tests/estimate/test_traced_memory.py compares.


def cpu_code_bytes(work: TrainingWorkload) -> int:
    """Resident besides the tensors, by what is used first in this run."""
    size = _CPU_CHECKPOINTING_BYTES if work.config.activation_checkpointing else 0
    if work.dtype == "bfloat16":
        size += _CPU_BFLOAT16_BYTES
        size += _CPU_BFLOAT16_MUON_BYTES if work.config.optimizer == "muon" else 0
    return size


def _cpu_norm_bytes(work: TrainingWorkload) -> int:
    """Per channel: a norm's input, what the matmul after it reads, and RMSNorm before its gain."""
    return 4 + work.activation_itemsize + (4 if work.config.arch == "modern" else 0)


def _cpu_mlp_bytes(work: TrainingWorkload) -> int:
    """Per channel: the norm, the hidden layer before and after the activation, the dropout mask."""
    low = work.activation_itemsize
    return _cpu_norm_bytes(work) + 2 * 4 * low + (low if work.config.dropout else 0)


def _cpu_block_bytes_per_token(work: TrainingWorkload) -> int:
    config, low = work.config, work.activation_itemsize
    modern, is_float32 = config.arch == "modern", low == 4
    attention = 3 * 4 + (2 * 4 if modern else 0)  # queries, keys, values; queries and keys before QK-norm
    scores = 0
    if config.dropout or work.attention == "manual":
        attention += low  # the output
        scores = 4 + (4 if config.dropout else 0)  # the softmax, the dropout mask
        if config.dropout and (is_float32 or work.attention != "manual"):
            scores += 4  # and their product
        elif not is_float32:
            scores += low  # the copy for the matmul
    else:
        attention += 4 if is_float32 else 4 + low
        attention += 2 * 4 if modern and is_float32 else 0  # values are a view of the whole projection
    masks = low if config.dropout else 0
    per_channel = _cpu_norm_bytes(work) + attention + masks + _cpu_mlp_bytes(work)
    return per_channel * config.n_embd + scores * config.n_head * config.block_size + 4 * config.n_head


def cpu_backward_bytes(work: TrainingWorkload) -> int:
    """In the last block's backward pass, beyond all activations: gradients, less what is freed by then."""
    config, low = work.config, work.activation_itemsize
    gradient = 4 + (low if low < 4 else 0)  # of the stream, and cast for the matmul
    # The hidden layer's gradient; of relu squared also a factor of it.
    hidden = 4 * low * (2 if effective_activation(config) == "relu2" else 1)
    in_mlp = gradient + hidden - (low if config.dropout else 0)
    per_token = in_mlp * config.n_embd
    if config.dropout or work.attention == "manual":
        scores = 4 * config.n_head * config.block_size  # one gradient more than what is freed meanwhile
        per_token = max(per_token, scores + (gradient + 4 - _cpu_mlp_bytes(work)) * config.n_embd)
    return work.micro_batch_tokens * (per_token - _cpu_norm_bytes(work) * config.n_embd)
