"""Measured costs besides the arithmetic: compiling, kernel-launch overhead, building our kernels. No torch.

The trainer decides with them (decide.py). How long an update takes on a card: update_time.py. Measured with
torch 2.11 on an H200 and 2.13 on 2 CPU cores; bench/LOG.md has the figures.
"""

from __future__ import annotations

TYPICAL_UTILIZATION = {"cpu": 0.5, "cuda": 0.43, "mps": 0.43}  # MFU of training, as a fraction
FORWARD_SHARE = 1 / 3  # of an update's FLOPs: the forward pass, all that an evaluation needs
FALLBACK_PEAK_FLOPS_PER_S = 1e14  # if it is not known

_COMPILE_COST_S = {"cpu": (10.0, 3.0), "cuda": (19.0, 1.0), "mps": (19.0, 1.0)}  # fixed, and per layer
_COMPILE_SAVED_SHARE = {"cpu": 0.15, "cuda": 0.3, "mps": 0.3}  # of an eager step

_LAUNCH_S_PER_LAYER = {"cpu": 6e-4, "cuda": 2.3e-3, "mps": 2.3e-3}  # forward and backward

# Building our kernels, in threads, takes up to 3 s more than the rest of the start the first time; an H200's
# machine had 16 cores. Triton caches them: a later run only loads them.
KERNEL_BUILD_S = 3.0
KERNEL_LOAD_S = 1.0
# They save half a millisecond of launches per layer and update; or, if the card is busy, memory traffic:
# bytes per token for each channel of a layer, and for each logit. An H200 (4.8 TB/s) saved 65 ms of GPT-2
# 124M's update of 64 x 1024, 24 ms of 350M's of 16 x 1024 and 92 ms of a modern 350M's of 20 x 1024.
KERNEL_SAVING_S_PER_LAYER = 5e-4
_SAVED_BYTES_PER_CHANNEL = {"gpt2": 148, "modern": 740}
_SAVED_BYTES_PER_LOGIT = 68
_FALLBACK_BANDWIDTH_BYTES_PER_S = 1e12  # if it is not known

# Below so many tokens in a micro-batch FP8 is slower than bfloat16, or hardly faster: on an H200 GPT-2 350M
# with 1,024 tokens took 13.3 ms against 12.6, GPT-2 124M 5.9 against 5.5.
MIN_FLOAT8_TOKENS = 2048

MIN_UPDATES_FOR_GRAPH = 100  # of a compute-bound run: capturing takes about as long as an eager update

MIN_WIDTH_FOR_CPU_BFLOAT16 = 64  # channels; below, casts take longer than the matmuls save
MAX_DATA_SHARE_OF_CARD = 0.05  # of a card's memory that the dataset may take

STARTUP_S = {"cpu": 3.0, "cuda": 6.0, "mps": 4.0}  # imports, device, model
_SAMPLE_S_PER_TOKEN_AND_LAYER = {"cpu": 1.2e-3, "cuda": 4e-4, "mps": 1e-3}  # launch-bound


def arithmetic_s(device_type: str, tokens: int, flops_per_token: int, peak: float) -> float:
    """About how long computing so many tokens takes, forward and backward."""
    return tokens * flops_per_token / (TYPICAL_UTILIZATION[device_type] * peak)


def sample_s(device_type: str, n_layer: int, tokens: int) -> float:
    """About how long sampling at the end of a run takes."""
    return _SAMPLE_S_PER_TOKEN_AND_LAYER[device_type] * n_layer * tokens


def launch_s(device_type: str, n_layer: int) -> float:
    """Kernel-launch overhead of a micro-batch."""
    # On a CPU embedding, loss and optimizer count too, as one more layer.
    layers = n_layer + 1 if device_type == "cpu" else n_layer
    return _LAUNCH_S_PER_LAYER[device_type] * layers


def eager_step_s(
    device_type: str, tokens: int, micro_steps: int, flops_per_token: int, n_layer: int, peak: float
) -> float:
    """About how long an update takes in eager mode: the longer of compute and kernel launches; on a CPU their
    sum."""
    computing_s = arithmetic_s(device_type, tokens, flops_per_token, peak)
    launching_s = launch_s(device_type, n_layer) * micro_steps
    return computing_s + launching_s if device_type == "cpu" else max(computing_s, launching_s)


def compile_cost_s(device_type: str, n_layer: int) -> float:
    fixed, per_layer = _COMPILE_COST_S[device_type]
    return fixed + per_layer * n_layer


def compile_saving_s(device_type: str, step_s: float) -> float:
    """Seconds saved in an update that takes `step_s` in eager mode."""
    return step_s * _COMPILE_SAVED_SHARE[device_type]


def kernel_saving_s(
    arch: str, n_layer: int, n_embd: int, vocab_size: int, tokens: float, bandwidth: float | None
) -> float:
    """Seconds saved in an update of `tokens` on one card. `bandwidth`: its memory's bytes/s, if known."""
    saved_bytes = tokens * (
        _SAVED_BYTES_PER_CHANNEL[arch] * n_layer * n_embd + _SAVED_BYTES_PER_LOGIT * vocab_size
    )
    return max(
        KERNEL_SAVING_S_PER_LAYER * n_layer, saved_bytes / (bandwidth or _FALLBACK_BANDWIDTH_BYTES_PER_S)
    )


def graph_pays(computing_s: float, launching_s: float) -> bool:
    """Whether a CUDA graph of a micro-batch is worth it."""
    return computing_s <= 2 * launching_s
