"""How many tokens' logits are held at a time: see loss.py. Planning asks too, and has no torch."""

from __future__ import annotations

# Logits held at a time, by our kernels, which work in place; others make float32 copies, and get a quarter.
MAX_LOGIT_CHUNK_BYTES = {"cuda": 2**30, "cpu": 2**27, "mps": 2**28}
MAX_UNCHUNKED_LOGIT_BYTES = 2**24  # so few are not worth the trouble
_MAX_EVAL_LOGIT_CHUNK_BYTES = {
    "cuda": 2**29,
    "cpu": 2**27,
    "mps": 2**28,
}  # of float32 logits and their logarithms


def fits_unchunked(tokens: int, vocab_size: int) -> bool:
    return 2 * tokens * vocab_size <= MAX_UNCHUNKED_LOGIT_BYTES


def rows_per_chunk(tokens: int, vocab_size: int, device_type: str, kernel: bool) -> int:
    """An even share of the tokens whose logits stay under the limit, or nearly."""
    most = max(1, MAX_LOGIT_CHUNK_BYTES[device_type] // (2 if kernel else 8) // vocab_size)
    pieces = -(-tokens // most)
    rows = -(-tokens // pieces)
    return min(tokens, -(-rows // 64) * 64)  # matmuls like multiples, those in 8 bits need them


def is_float8_aligned(size: int) -> bool:
    """Every side of a product in 8-bit floats has such a size; GPT-2's own vocabulary has not."""
    return size % 16 == 0


def eval_rows_per_chunk(tokens: int, vocab_size: int, device_type: str) -> int:
    """As many where losses are only looked at."""
    most = _MAX_EVAL_LOGIT_CHUNK_BYTES[device_type] // (8 * vocab_size)
    return min(tokens, max(64, most // 64 * 64))
