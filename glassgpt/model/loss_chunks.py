"""Sizes that decide how the model is computed, such as the chunks of the cross-entropy in loss.py. A separate
module, because the memory estimate needs them without torch."""

from __future__ import annotations

# Bytes of logits per chunk. The Triton kernel works in place; plain PyTorch makes float32 copies, and gets a
# quarter.
MAX_LOGIT_CHUNK_BYTES = {"cuda": 2**30, "cpu": 2**27, "mps": 2**28}
MAX_UNCHUNKED_LOGIT_BYTES = 2**24  # so few logits are not worth chunking
# Bytes of float32 logits and their log-softmax.
_MAX_EVAL_LOGIT_CHUNK_BYTES = {"cuda": 2**29, "cpu": 2**27, "mps": 2**28}

# Tokens of a micro-batch up to which linear layers sum their weights' gradients in float32 (ops.py). cuBLAS
# is 2% slower with results in float32, which shows with many tokens. The pass over memory that is saved takes
# the same time for any number of them.
MAX_FLOAT32_GRADIENT_TOKENS = 16_384


def fits_unchunked(tokens: int, vocab_size: int) -> bool:
    return 2 * tokens * vocab_size <= MAX_UNCHUNKED_LOGIT_BYTES


def rows_per_chunk(tokens: int, vocab_size: int, device_type: str, kernel: bool) -> int:
    """Tokens per chunk: equal chunks, with logits about within the limit."""
    most = max(1, MAX_LOGIT_CHUNK_BYTES[device_type] // (2 if kernel else 8) // vocab_size)
    chunks = -(-tokens // most)
    rows = -(-tokens // chunks)
    return min(tokens, -(-rows // 64) * 64)  # multiples are faster, and float8 matmuls need them


def is_float8_aligned(size: int) -> bool:
    """Float8 matmuls need every dimension to be a multiple of 16. GPT-2's 50257 is not."""
    return size % 16 == 0


def eval_rows_per_chunk(tokens: int, vocab_size: int, device_type: str) -> int:
    """Tokens per chunk in evaluation, which computes no gradients."""
    most = _MAX_EVAL_LOGIT_CHUNK_BYTES[device_type] // (8 * vocab_size)
    return min(tokens, max(64, most // 64 * 64))
