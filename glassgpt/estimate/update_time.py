"""How long an update takes on a card, from the work in it: matmuls, memory traffic, kernels. No torch.

    time = update_time(work, peak=989.4e12, bandwidth=4.8e12)
    time.card_s, time.host_s, time.seconds      # the longer of both: launches overlap with computing

speed.py carries measured speeds from one shape to another with it: there only the ratio of two times counts.
The constants are fitted to 105 updates measured on an H200, 69 shapes drawn at random among them
(tests/estimate/test_update_time.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from glassgpt.estimate import flops
from glassgpt.estimate.activations import has_fused_rotary
from glassgpt.estimate.training_workload import (
    TrainingWorkload,
    block_matrix_parameters,
    head_parameters,
    total_parameters,
)

# Shares of the peak that large matmuls, attention and Muon reach, and of the memory's bandwidth.
_MATMUL_SHARE, _ATTENTION_SHARE, _MUON_SHARE, _BANDWIDTH_SHARE = 0.79, 0.365, 0.335, 0.84
_OPERAND_PASSES = 0.43  # over a matmul's operands and result: what limits small ones
# Rows that are not a multiple of 16 bytes have no fast kernels, neither in cuBLAS nor for attention. A head
# whose rows are not even a multiple of 8 is slower still.
_MISALIGNED_MATMUL, _MISALIGNED_HEAD, _MISALIGNED_ATTENTION = 4.35, 3.0, 2.26  # times the time
_FLOAT32_ATTENTION, _DROPOUT_ATTENTION = 9.5, 1.52
# Of cuDNN's attention, as two updates suggest, of 400 and 480 channels. Heads of 64, 72 and 96 are fast.
_SLOW_CUDNN_HEAD_DIM, _SLOW_CUDNN_ATTENTION = 80, 9.5
_FP8_MATMUL = 0.47
_ATTENTION_TILE = 64  # channels of a head that a kernel computes at once

# Bytes that the operations between matmuls move, forward and backward, per token and channel of a layer:
_FUSED_BYTES, _PLAIN_BYTES, _PLAIN_MODERN_BYTES = 118, 165, 604
_DROPOUT_BYTES, _FP8_BYTES = 29, 78  # FP8: scaling and casting
_RECOMPUTED_SHARE = 0.41  # of them and of kernels: activation checkpointing repeats the forward
_FUSED_LOGIT_BYTES, _COMPILED_LOGIT_BYTES, _PLAIN_LOGIT_BYTES = 6, 23, 64  # per logit
_MANUAL_SCORE_BYTES = 156  # per pair of tokens and head: the T x T matrix, in float32
_WEIGHT_BYTES, _HEAD_BYTES = 18, 15  # per parameter and micro-batch: casts, gradients; more of embeddings
_OPTIMIZER_BYTES, _MUON_BYTES = 40, 52  # per parameter and update: gradient norm, AdamW; more of Muon

# Kernels of a layer, which take at least so long each, and what the host needs to launch them.
_KERNEL_S = 2.4e-6
# By architecture, and whether they are fused:
_KERNELS = {("gpt2", True): 54, ("gpt2", False): 190, ("modern", True): 66, ("modern", False): 118}
_FP8_KERNELS, _MUON_KERNELS, _KERNELS_PER_UPDATE = 23, 40, 66
_OUTER_LAYERS = 1.2  # embedding, last norm and loss cost about so many layers
_TRITON_HOST_S, _COMPILED_HOST_S, _PLAIN_HOST_S, _MODERN_HOST_S = 1.89e-3, 0.93e-3, 1.27e-3, 1.46e-3
_PLAIN_ROTARY_HOST_S = 0.71e-3  # besides Triton kernels, which take only some sizes of heads
_CHECKPOINTING_HOST_S = 1.2e-3  # and once more to store and restore dropout's random state
_DROPOUT_HOST_S, _FP8_HOST_S, _MUON_HOST_S, _HOST_S_PER_UPDATE = 0.27e-3, 2.2e-3, 1.1e-3, 2.5e-3
_FLOAT16_OVERLAP = 0.4  # of card and host: the loss scaler waits for the gradients


@dataclass(frozen=True)
class UpdateTime:
    card_s: float
    host_s: float  # launches; 0 with a CUDA graph
    is_synchronized: bool  # the host waits for the card in each update
    kernel_s: float = 0.0  # of card_s: what so many kernels take at least

    @property
    def seconds(self) -> float:
        shorter_s = min(self.card_s, self.host_s)
        return max(self.card_s, self.host_s) + (1 - _FLOAT16_OVERLAP) * shorter_s * self.is_synchronized

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
    card_s, kernels = work.micro_steps * micro_s, work.micro_steps * kernels + _KERNELS_PER_UPDATE
    once_bytes = _OPTIMIZER_BYTES * total_parameters(work)
    if config.optimizer == "muon":
        muon_flops = flops.muon_flops_per_update(config.n_layer, config.n_embd, config.muon_steps)
        card_s += muon_flops / (_MUON_SHARE * peak)
        once_bytes += _MUON_BYTES * block_matrix_parameters(work)
        kernels += _MUON_KERNELS * config.n_layer
    kernel_s = kernels * _KERNEL_S
    card_s += once_bytes / (_BANDWIDTH_SHARE * bandwidth) + kernel_s
    host_s = 0.0 if work.graph else _host_s(work, layers)
    return UpdateTime(card_s, host_s, work.dtype == "float16", kernel_s)


def _host_s(work: TrainingWorkload, layers: float) -> float:
    """Launches of an update."""
    config, has_dropout = work.config, work.config.dropout > 0
    layer_s = _TRITON_HOST_S if work.kernels else _PLAIN_HOST_S
    if work.compiled:
        layer_s = _COMPILED_HOST_S
    elif config.arch == "modern":
        layer_s = _MODERN_HOST_S
        layer_s += _PLAIN_ROTARY_HOST_S * (work.kernels and not has_fused_rotary(work))
    layer_s += _DROPOUT_HOST_S * has_dropout + _FP8_HOST_S * config.fp8
    layer_s += _CHECKPOINTING_HOST_S * config.activation_checkpointing * (1 + has_dropout)
    of_muon = _MUON_HOST_S * config.n_layer * (config.optimizer == "muon")
    return work.micro_steps * layers * layer_s + _HOST_S_PER_UPDATE + of_muon


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

    def pass_s(rows: int, columns: int, if_odd: float = 1.0) -> float:
        slowdown = _MISALIGNED_MATMUL if rows * itemsize % 16 or columns * itemsize % 16 else 1.0
        if rows * itemsize % 8 or columns * itemsize % 8:
            slowdown *= if_odd
        arithmetic_s = 2.0 * tokens * rows * columns / (_MATMUL_SHARE * peak)
        operands = (1 if fp8 else itemsize) * (tokens * (rows + columns) + rows * columns)
        return arithmetic_s * slowdown * (_FP8_MATMUL if fp8 else 1.0) + _OPERAND_PASSES * operands / (
            _BANDWIDTH_SHARE * bandwidth
        )

    block = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    passes = 4 if work.config.activation_checkpointing else 3
    in_blocks = passes * work.config.n_layer * sum(pass_s(rows, columns) for rows, columns in block)
    return in_blocks + 3 * pass_s(width, work.vocab_size, _MISALIGNED_HEAD)


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
    slowdown = _DROPOUT_ATTENTION if config.dropout > 0 else 1.0
    if work.dtype == "float32":  # its peak is of TF32, which is half as much
        slowdown *= _FLOAT32_ATTENTION / 2
    elif head_dim * work.activation_itemsize % 16:
        slowdown *= _MISALIGNED_ATTENTION
    elif work.attention == "cudnn" and head_dim == _SLOW_CUDNN_HEAD_DIM:
        slowdown *= _SLOW_CUDNN_ATTENTION
    return attention_flops * slowdown / (_ATTENTION_SHARE * peak)


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
