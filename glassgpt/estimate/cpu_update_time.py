"""How long an update takes on a CPU: matmuls at its measured rate, all other work at a core's measured speed.

    core = measure_core_speed()                    # 20 ms, by numpy: what a number and an operation cost
    cpu_update_time(work, peak=2.5e11, core=core).seconds

No torch. The constants are fitted to 197 updates of random shapes by one thread of an EPYC 9005, timed by CPU
time: all but a tenth are within 25% of them. A CPU computes and launches in turn, so the times add up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from glassgpt.cgroup import usable_cores
from glassgpt.estimate import flops
from glassgpt.estimate.training_workload import (
    TrainingWorkload,
    block_matrix_parameters,
    total_parameters,
)
from glassgpt.model import loss_chunks


@dataclass(frozen=True)
class CoreSpeed:
    """What one core does besides matmuls. The defaults are those of the EPYC that the constants come from."""

    number_s: float = 0.325e-9  # exp() of one float32 in an array: arithmetic and memory traffic
    operation_s: float = 0.194e-6  # adding arrays of four numbers: what an operation costs besides
    threads: int = 1


REFERENCE_CORE = CoreSpeed()

# Shares of the matmul peak that a model's matmuls and causal attention reach.
_MATMUL_SHARE = {"float32": 0.81, "bfloat16": 1.2, "float16": 0.81}  # bfloat16: the probe's are not the best
_ATTENTION_SHARE = 0.41

# In units of `number_s`, forward and backward: per token and channel of a layer, …
_CHANNEL_NUMBERS = {"gpt2": 56, "modern": 82}
_SCORE_NUMBERS, _DROPOUT_SCORE_NUMBERS = 11.4, 34.0  # … per pair of tokens and head; dropout is not fused
_LOGIT_NUMBERS = 9.7
_WEIGHT_NUMBERS = 4.4  # per parameter and micro-batch: gradients, casts
_ADAMW_NUMBERS, _MUON_NUMBERS = 5.2, 34.0  # per parameter and update
_DRAWN_NUMBERS = 27.0  # per number of a dropout mask, which one core draws
# Per byte of a tensor too large for the heap: the kernel maps and clears its pages each time.
_MAPPED_BYTE_NUMBERS, _MAX_HEAP_TENSOR_BYTES = 0.8, 2**25
_MAPPED_LOGIT_BYTES, _MAPPED_HIDDEN_TENSORS = 16, 6

# In units of `operation_s`: per layer and micro-batch, by architecture and whether matmuls need casts.
_LAYER_OPERATIONS = {
    ("gpt2", False): 2080, ("gpt2", True): 4200, ("modern", False): 4540, ("modern", True): 6570,
}  # fmt: skip
_DROPOUT_OPERATIONS, _MUON_OPERATIONS = 2600, 2000
_OUTER_LAYERS = 0.7  # embedding, last norm and loss cost about so many layers

_RECOMPUTED = (
    1.7  # times the work of the blocks besides matmuls: activation checkpointing repeats the forward
)
_COMPILED_SPEED = 1 / 0.68  # of all but matmuls: fewer operations, and less memory traffic
# Of the work besides matmuls: what threads share. Two are 1.5 times as fast as one.
_PARALLEL_SHARE = 0.7


@dataclass(frozen=True)
class CpuUpdateTime:
    matmul_s: float
    number_s: float  # elementwise work, attention, optimizer
    operation_s: float  # overhead of operations

    @property
    def seconds(self) -> float:
        return self.matmul_s + self.number_s + self.operation_s


def cpu_update_time(work: TrainingWorkload, peak: float, core: CoreSpeed) -> CpuUpdateTime:
    """`peak`: measured FLOP/s of large matmuls in the run's dtype, by `core.threads`."""
    config, tokens, vocab_size = work.config, work.micro_batch_tokens, work.vocab_size
    layers, width = config.n_layer, config.n_embd
    is_muon = config.optimizer == "muon"
    threads = min(config.threads or core.threads, core.threads)
    peak *= threads / core.threads
    recomputed = _RECOMPUTED if config.activation_checkpointing else 1.0

    linear_passes = 8 if config.activation_checkpointing else 6
    linear = 12.0 * layers * width**2 * linear_passes + 6.0 * vocab_size * width
    arithmetic = work.micro_steps * tokens * linear
    if is_muon:
        arithmetic += flops.muon_flops_per_update(layers, width, config.muon_steps)
    scores = tokens * config.block_size * config.n_head * layers * recomputed
    attention = work.micro_steps * 7 * scores * (width // config.n_head)
    # Attention runs in float32 whatever the run's dtype is.
    float32_peak = peak / (BFLOAT16_SPEEDUP if work.dtype == "bfloat16" else 1.0)

    numbers = _CHANNEL_NUMBERS[config.arch] * tokens * width * (layers * recomputed + _OUTER_LAYERS)
    numbers += (_DROPOUT_SCORE_NUMBERS if config.dropout else _SCORE_NUMBERS) * scores
    numbers += _LOGIT_NUMBERS * tokens * vocab_size + _WEIGHT_NUMBERS * total_parameters(work)
    numbers += _MAPPED_BYTE_NUMBERS * _mapped_bytes(work)
    by_muon = block_matrix_parameters(work) if is_muon else 0
    once = _ADAMW_NUMBERS * (total_parameters(work) - by_muon) + _MUON_NUMBERS * by_muon
    parallel = work.micro_steps * numbers + once
    drawn = tokens * width * (1 + 2 * layers * recomputed) if config.dropout else 0.0
    alone = _DRAWN_NUMBERS * work.micro_steps * drawn

    operations = _LAYER_OPERATIONS[config.arch, work.dtype != "float32"] * (
        layers * recomputed + _OUTER_LAYERS
    )
    operations += _DROPOUT_OPERATIONS * layers * (config.dropout > 0)
    operations = work.micro_steps * operations + _MUON_OPERATIONS * (layers + 1) * is_muon
    slower = 1 / _COMPILED_SPEED if work.compiled else 1.0
    in_threads = 1 - _PARALLEL_SHARE + _PARALLEL_SHARE / threads
    attention_s = attention / (_ATTENTION_SHARE * float32_peak) * threads * in_threads
    return CpuUpdateTime(
        matmul_s=arithmetic / (_MATMUL_SHARE[work.dtype] * peak),
        number_s=slower * core.number_s * (parallel * in_threads + alone) + attention_s,
        operation_s=slower * core.operation_s * operations,
    )


def _mapped_bytes(work: TrainingWorkload) -> float:
    """Of a micro-batch: in tensors of more than glibc keeps in its heap."""
    tokens, vocab_size, mapped = work.micro_batch_tokens, work.vocab_size, 0.0
    rows = tokens
    if not work.has_all_logits:
        rows = loss_chunks.rows_per_chunk(tokens, vocab_size, work.device_type, work.kernels)
    if 4 * rows * vocab_size > _MAX_HEAP_TENSOR_BYTES:
        mapped += _MAPPED_LOGIT_BYTES * tokens * vocab_size
    if (hidden := 16 * tokens * work.config.n_embd) > _MAX_HEAP_TENSOR_BYTES:
        mapped += _MAPPED_HIDDEN_TENSORS * work.config.n_layer * hidden
    return mapped


# --- the speed of a core ---

# Of float32: what CPUs with bfloat16 matmuls reach. By torch an EPYC with AVX512-BF16 had 3.6 times as many
# FLOP/s as numpy in float32, a Xeon with AMX 6.9 times.
BFLOAT16_SPEEDUP = 3.5
_ARRAY_SIZE, _CALLS, _REPEATS = 2**18, 200, 40


def measure_core_speed(threads: int | None = None) -> CoreSpeed:
    """By the CPU time of this thread, the best of some repeats: what other programs disturb least."""
    import numpy as np

    array, few = np.ones(_ARRAY_SIZE, np.float32), np.ones(4, np.float32)

    def best(run: Callable[[], object]) -> float:
        times = []
        for _ in range(_REPEATS):
            begin = time.thread_time()
            run()
            times.append(time.thread_time() - begin)
        return max(min(times), 1e-9)

    def add_few() -> None:
        for _ in range(_CALLS):
            few + few

    number_s, operation_s = best(lambda: np.exp(array)) / _ARRAY_SIZE, best(add_few) / _CALLS
    return CoreSpeed(number_s, operation_s, threads or max(1, int(usable_cores())))
