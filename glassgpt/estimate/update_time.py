"""How long an update takes on a card, from the work in it: matmuls, memory traffic, kernels. No torch.

    time = update_time(work, peak=989.4e12, bandwidth=4.8e12)
    time.card_s, time.host_s, time.seconds      # the longer of both: launches overlap with computing

speed.py carries measured speeds from one shape to another with it: there only the ratio of two times counts.
The constants are fitted to 62 updates measured on an H200, 24 shapes drawn at random among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from glassgpt.estimate import flops
from glassgpt.estimate.training_workload import (
    TrainingWorkload,
    block_matrix_parameters,
    head_parameters,
    total_parameters,
)

# Shares of the peak that large matmuls, attention and Muon reach, and of the memory's bandwidth.
_MATMUL_SHARE, _ATTENTION_SHARE, _MUON_SHARE, _BANDWIDTH_SHARE = 0.82, 0.40, 0.29, 0.84
_OPERAND_PASSES = 0.53  # over a matmul's operands and result: what limits small ones
# Rows that are not a multiple of 16 bytes have no fast kernels, neither in cuBLAS nor for attention.
_MISALIGNED_MATMUL, _MISALIGNED_ATTENTION = 2.8, 6.3  # times the time
_FP8_MATMUL = 0.49  # times the time
_ATTENTION_TILE = 64  # channels of a head that a kernel computes at once

# Bytes that the operations between matmuls move, forward and backward, per token and channel of a layer:
_FUSED_BYTES, _PLAIN_BYTES, _PLAIN_MODERN_BYTES = 114, 314, 461
_DROPOUT_BYTES, _FP8_BYTES = 29, 76  # FP8: scaling and casting
_RECOMPUTED_SHARE = 0.37  # of them and of kernels and launches: activation checkpointing repeats the forward
_FUSED_LOGIT_BYTES, _COMPILED_LOGIT_BYTES, _PLAIN_LOGIT_BYTES = 6, 27, 55  # per logit
_MANUAL_SCORE_BYTES = 68  # per pair of tokens and head: the T x T matrix, in float32
_WEIGHT_BYTES, _HEAD_BYTES = 17, 16  # per parameter and micro-batch: casts, gradients; more of embeddings
_OPTIMIZER_BYTES, _MUON_BYTES = 45, 58  # per parameter and update: gradient norm, AdamW; more of Muon

# Kernels of a layer, which take at least so long each, and what the host needs to launch them.
_KERNEL_S = 2.2e-6
# By architecture, and whether they are fused:
_KERNELS = {("gpt2", True): 57, ("gpt2", False): 90, ("modern", True): 80, ("modern", False): 180}
_FP8_KERNELS, _MUON_KERNELS, _KERNELS_PER_UPDATE = 23, 42, 60
_OUTER_LAYERS = 1.2  # embedding, last norm and loss cost about so many layers
_TRITON_HOST_S, _COMPILED_HOST_S, _PLAIN_HOST_S, _PLAIN_MODERN_HOST_S = 1.68e-3, 0.98e-3, 1.22e-3, 2.55e-3
_DROPOUT_HOST_S, _FP8_HOST_S, _MUON_HOST_S, _HOST_S_PER_UPDATE = 0.26e-3, 2.3e-3, 1.0e-3, 2.3e-3


@dataclass(frozen=True)
class UpdateTime:
    card_s: float
    host_s: float  # launches; 0 with a CUDA graph
    is_synchronized: bool  # the host waits for the card, and the card for the host

    @property
    def seconds(self) -> float:
        return self.card_s + self.host_s if self.is_synchronized else max(self.card_s, self.host_s)

    @property
    def is_launch_bound(self) -> bool:
        return self.host_s > self.card_s


def update_time(work: TrainingWorkload, peak: float, bandwidth: float) -> UpdateTime:
    """`peak`: FLOP/s in the run's dtype. `bandwidth`: bytes/s of the card's memory."""
    config = work.config
    repeats = 1 + _RECOMPUTED_SHARE * config.activation_checkpointing
    micro_s = _matmul_s(work, peak, bandwidth) + _attention_s(work, peak, bandwidth)
    micro_s += _micro_batch_bytes(work, repeats) / (_BANDWIDTH_SHARE * bandwidth)
    layers = config.n_layer + _OUTER_LAYERS
    fused = work.kernels or work.compiled
    kernels = layers * (_KERNELS[config.arch, fused] * repeats + _FP8_KERNELS * config.fp8)
    card_s = work.micro_steps * (micro_s + kernels * _KERNEL_S)
    once_bytes, once_kernels = _OPTIMIZER_BYTES * total_parameters(work), _KERNELS_PER_UPDATE
    if config.optimizer == "muon":
        muon_flops = flops.muon_flops_per_update(config.n_layer, config.n_embd, config.muon_steps)
        card_s += muon_flops / (_MUON_SHARE * peak)
        once_bytes += _MUON_BYTES * block_matrix_parameters(work)
        once_kernels += _MUON_KERNELS * config.n_layer
    card_s += once_bytes / (_BANDWIDTH_SHARE * bandwidth) + once_kernels * _KERNEL_S

    host_s = 0.0
    if not work.graph:
        plain = _PLAIN_MODERN_HOST_S if config.arch == "modern" else _PLAIN_HOST_S
        layer_s = _TRITON_HOST_S if work.kernels else _COMPILED_HOST_S if work.compiled else plain
        layer_s = layer_s * repeats + _DROPOUT_HOST_S * (config.dropout > 0) + _FP8_HOST_S * config.fp8
        host_s = work.micro_steps * layers * layer_s + _HOST_S_PER_UPDATE
        host_s += _MUON_HOST_S * config.n_layer * (config.optimizer == "muon")
    # Checkpointing stores dropout's random state, and float16's loss scaler looks at the gradients.
    recomputes_dropout = config.activation_checkpointing and config.dropout > 0
    return UpdateTime(card_s, host_s, recomputes_dropout or work.dtype == "float16")


def is_misaligned(work: TrainingWorkload) -> bool:
    """Whether matmuls or attention have no fast kernels for this width."""
    head_dim = work.config.n_embd // work.config.n_head
    return bool(
        work.config.n_embd * work.activation_itemsize % 16 or head_dim * work.activation_itemsize % 16
    )


def _matmul_s(work: TrainingWorkload, peak: float, bandwidth: float) -> float:
    """Linear layers and head of a micro-batch."""
    tokens, itemsize, width = work.micro_batch_tokens, work.activation_itemsize, work.config.n_embd
    fp8 = work.config.fp8

    def pass_s(rows: int, columns: int) -> float:
        slowdown = _MISALIGNED_MATMUL if rows * itemsize % 16 or columns * itemsize % 16 else 1.0
        arithmetic_s = 2.0 * tokens * rows * columns / (_MATMUL_SHARE * peak)
        operands = (1 if fp8 else itemsize) * (tokens * (rows + columns) + rows * columns)
        return arithmetic_s * slowdown * (_FP8_MATMUL if fp8 else 1.0) + _OPERAND_PASSES * operands / (
            _BANDWIDTH_SHARE * bandwidth
        )

    block = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    passes = 4 if work.config.activation_checkpointing else 3
    in_blocks = passes * work.config.n_layer * sum(pass_s(rows, columns) for rows, columns in block)
    return in_blocks + 3 * pass_s(width, work.vocab_size)


def _attention_s(work: TrainingWorkload, peak: float, bandwidth: float) -> float:
    config = work.config
    scores = float(work.micro_batch_tokens * config.block_size * config.n_head * config.n_layer)
    if work.attention == "manual":
        repeats = 1 + _RECOMPUTED_SHARE * config.activation_checkpointing
        return _MANUAL_SCORE_BYTES * scores * repeats / (_BANDWIDTH_SHARE * bandwidth)
    head_dim = config.n_embd // config.n_head
    tiles = ceil(head_dim / _ATTENTION_TILE)
    # Causal: half of all pairs. Two products forward, five backward.
    attention_flops = scores * tiles * _ATTENTION_TILE * (9 if config.activation_checkpointing else 7)
    is_slow = head_dim * work.activation_itemsize % 16 or work.dtype == "float32"
    return attention_flops * (_MISALIGNED_ATTENTION if is_slow else 1.0) / (_ATTENTION_SHARE * peak)


def _micro_batch_bytes(work: TrainingWorkload, repeats: float) -> float:
    """Memory traffic besides matmuls and attention."""
    config = work.config
    plain = _PLAIN_MODERN_BYTES if config.arch == "modern" else _PLAIN_BYTES
    channel: float = (_FUSED_BYTES if work.kernels or work.compiled else plain) + _DROPOUT_BYTES * (
        config.dropout > 0
    )
    channel = channel * repeats + _FP8_BYTES * config.fp8
    logit = _PLAIN_LOGIT_BYTES
    if work.kernels or work.compiled:
        logit = _FUSED_LOGIT_BYTES if work.kernels else _COMPILED_LOGIT_BYTES
    of_activations = channel * (config.n_layer + _OUTER_LAYERS) * config.n_embd + logit * work.vocab_size
    of_weights = _WEIGHT_BYTES * total_parameters(work) + _HEAD_BYTES * head_parameters(work)
    return of_activations * work.micro_batch_tokens + of_weights
