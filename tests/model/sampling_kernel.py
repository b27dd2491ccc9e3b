"""The sampling of a decoding step as a kernel of its own, on given logits."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
# Functions under @triton.jit are Triton's language.

from __future__ import annotations

import triton
import triton.language as tl

from glassgpt.model import decode_kernels


@triton.jit
def sample_rows(
    logits, tile_max, noise, chosen, out, tokens, temperature, top_p, rows, V, limit, count, tiles,
    TOP_P: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    decode_kernels.sample(
        tl.program_id(0), 0, logits, tile_max, noise, chosen, out, tokens, temperature, top_p,
        rows, V, limit, count, tiles, TOP_P, TILE, TILES, CHOSEN,
    )  # fmt: skip
