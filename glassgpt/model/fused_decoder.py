"""Decoding on a GPU in few kernel launches: the next token is sampled on the device, and read there.

    decoder = FusedDecoder(prepared, cache, sampler, graph=True)    # the prompt is in the cache
    decoder.start(tokens)                                           # the first one sampled, for each row
    for next_tokens in decoder.generate(count, generators): ...

Without this, Python waits for each token before it launches the next step. Here the steps of a block of
tokens are launched without waiting, and while they run, the random numbers of the next block are drawn. They
are those of TokenSampler.next_tokens, so the samples are the same up to rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from glassgpt.model.cuda_graph import CudaGraphRunner
from glassgpt.model.gpt import GPT, Block, ResidualNorm
from glassgpt.model.kernel_build import build_launched_kernels
from glassgpt.model.kv_cache import KVCache
from glassgpt.model.ops import NORM_EPSILON
from glassgpt.model.token_sampler import TokenSampler

MAX_ROWS = 32
_MAX_CHANNELS = 8192
_MAX_TOP_K = 512  # larger ones are sampled by PyTorch's kernels
_LOGIT_TILE = 16
_BLOCK_SLOTS = 64  # of the cache, read at a time
_SPLIT_SLOTS = 64  # so many slots of the cache or more for each program of a head
_MAX_BLOCK = 16  # tokens launched ahead
_SECONDS_PER_BLOCK = 0.03  # blocks grow while they take less: text should appear steadily
_MAX_NOISE_BYTES = 2**24


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def can_fuse(model: GPT, rows: int) -> bool:
    """Whether the kernels cover this shape. Several rows need channels in whole tiles."""
    channels = model.config.n_embd
    fits = rows <= MAX_ROWS and channels <= _MAX_CHANNELS and (rows == 1 or channels % 16 == 0)
    return fits and (model.config.arch == "gpt2" or channels // model.config.n_head % 2 == 0)


class FusedDecoder:
    """Continues the texts in `cache`, one row each, by one token per step."""

    def __init__(self, model: GPT, cache: KVCache, sampler: TokenSampler, graph: bool) -> None:
        from glassgpt.model import decode_kernels, kernels  # noqa: F401 - imports Triton

        self._kernels = decode_kernels
        self._model, self._cache, self._sampler = model, cache, sampler
        config, weight = model.config, model.lm_head.weight
        keys = cache.layers[0].keys
        self._rows, device = keys.shape[0], keys.device
        self._block_b = 1 if self._rows == 1 else max(16, _power_of_two(self._rows))
        C, V = config.n_embd, config.vocab_size
        self._weights: dict[int, Tensor] = {}  # of nn.Linear, whose rows have to be contiguous

        def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        rows = self._rows
        self._residual, self._qkv = buffer(rows, C), buffer(rows, 3 * C)
        self._attended, self._hidden = (
            buffer(rows, width, dtype=weight.dtype) for width in (C, config.n_embd * 4)
        )
        self._logits, self._tile_max = buffer(rows, V), buffer(rows, math.ceil(V / _LOGIT_TILE))
        self._tiles = C // 16 if rows > 1 else 1
        self._stats = buffer(self._tiles, 2, self._block_b) if rows > 1 else None
        self._splits = min(8, _power_of_two(math.ceil(keys.shape[2] / _SPLIT_SLOTS)))
        heads, block_d = rows * config.n_head, _power_of_two(C // config.n_head)
        self._parts = buffer(heads, self._splits, block_d + 2) if self._splits > 1 else None
        self._arrived = buffer(heads, dtype=torch.int32) if self._splits > 1 else None
        # The token to be read next: its position, and itself for each row.
        self._position = torch.full((1,), cache.length, dtype=torch.int32, device=device)
        self._tokens = buffer(rows, dtype=torch.long)
        # Blocks alternate between the halves of these rings, so the next one can be prepared meanwhile.
        self._noise_width = sampler.noise_width
        step_bytes = 4 * rows * self._noise_width
        self._ring = 2 * max(
            1, min(_MAX_BLOCK, _power_of_two(_MAX_NOISE_BYTES // max(step_bytes, 1) + 1) // 2)
        )
        pinned = device.type == "cuda"
        self._noise = buffer(self._ring, rows, self._noise_width) + 1
        self._host_noise = torch.ones(self._noise.shape, pin_memory=pinned)
        self._out = buffer(self._ring, rows, dtype=torch.long)
        self._host_out = torch.zeros(self._out.shape, dtype=torch.long, pin_memory=pinned)
        self._sampled_by_kernel = (
            0 < self._noise_width < sampler.vocab_size and self._noise_width <= _MAX_TOP_K
        )
        self._chosen_tiles = buffer(rows, _power_of_two(max(1, self._noise_width)), dtype=torch.int32)
        if pinned:
            build_launched_kernels(self._launch_step, decode_kernels, device)
        self._step = CudaGraphRunner(self._launch_step, warm_up=1) if pinned and graph else self._launch_step

    # --- generation ---

    def start(self, tokens: Tensor) -> None:
        """The tokens (B,) that follow those in the cache."""
        self._tokens.copy_(tokens.clamp(min=0))

    def generate(self, count: int, generators: Sequence[torch.Generator]) -> Iterator[list[int]]:
        """Yields `count` times the next token of each row; -1 where the logits are no numbers."""
        ahead = self._launch_block(min(1, count), count, generators)
        size = 1
        while ahead is not None:
            block, (first, last) = ahead
            count -= last - first
            started = time.perf_counter()
            ahead = self._launch_block(size, count, generators)
            if block is not None:
                block.synchronize()
            if time.perf_counter() - started < _SECONDS_PER_BLOCK:
                size = min(2 * size, self._ring // 2)
            yield from self._host_out[first:last].tolist()

    def _launch_block(
        self, size: int, count: int, generators: Sequence[torch.Generator]
    ) -> tuple[torch.cuda.Event | None, tuple[int, int]] | None:
        """Launches up to `size` steps. Returns an event behind them, and where their tokens will be."""
        if count == 0:
            return None
        half = self._ring // 2
        first = (self._cache.length + 1) % self._ring
        last = min(first + min(size, count), half if first < half else self._ring)
        for step in range(first, last):
            self._sampler.draw_noise(self._host_noise[step], generators)
        self._noise[first:last].copy_(self._host_noise[first:last], non_blocking=True)
        for _ in range(first, last):
            self._step()
            self._cache.advance()
        self._host_out[first:last].copy_(self._out[first:last], non_blocking=True)
        event = None
        if self._out.is_cuda:
            event = torch.cuda.Event()
            event.record()
        return event, (first, last)

    # --- the kernels of one step ---

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Logits (B, V) in float32 of the token after `tokens` (B,), which are added to the cache."""
        self.start(tokens)
        self._launch_model()
        self._cache.advance()
        return self._logits

    def _launch_step(self) -> tuple[Tensor, ...]:
        self._launch_model()
        self._launch_sampling()
        return (self._tokens,)

    def _launch_model(self) -> None:
        model, transformer = self._model, self._model.transformer
        C, is_rms = model.config.n_embd, transformer.ln_f.rms
        self._kernels.embed[(self._rows,)](
            self._tokens,
            transformer.wte.weight,
            None if transformer.wpe is None else transformer.wpe.weight,
            self._position,
            self._residual,
            self._stats,
            C,
            NORM_EPSILON["rms" if is_rms else "layer"],
            self._tiles,
            self._block_b,
            _power_of_two(C),
            _power_of_two(self._tiles),
            num_warps=4,
        )
        for layer, module in zip(self._cache.layers, transformer.h, strict=True):
            block = cast(Block, module)
            attention, mlp = block.attn, block.mlp
            self._launch_linear(attention.c_attn, self._residual, self._qkv, block.ln_1)
            self._launch_attention(layer.keys, layer.values)
            self._launch_linear(attention.c_proj, self._attended, self._residual, add=True)
            self._launch_linear(mlp.c_fc, self._residual, self._hidden, block.ln_2, mlp.activation)
            self._launch_linear(mlp.c_proj, self._hidden, self._residual, add=True)
        self._launch_linear(model.lm_head, self._residual, self._logits, transformer.ln_f, head=True)

    def _launch_linear(
        self,
        layer: nn.Linear,
        x: Tensor,
        out: Tensor,
        norm: ResidualNorm | None = None,
        activation: str = "none",
        add: bool = False,
        head: bool = False,
    ) -> None:
        N, K = layer.weight.shape
        block_k = _power_of_two(K)
        if self._rows == 1:
            block_n, warps = (16, 4) if head else (2, 1)
            if norm is None:
                block_k = min(block_k, 1024)
            elif block_k > 1024:
                warps = max(warps, block_k // 1024)
        else:
            block_n, warps = (64, 4) if head else (16, 1)
            block_k = max(16, min(block_k, 128))
        weight = self._weights.setdefault(id(layer), layer.weight.detach().contiguous())
        norm_kind = "none" if norm is None else "rms" if norm.rms else "layer"
        self._kernels.linear[(math.ceil(N / block_n),)](
            x,
            weight,
            layer.bias,
            None if norm is None else norm.weight,
            None if norm is None else norm.bias,
            out,
            self._stats,
            self._tile_max if head else None,
            self._position,
            N,
            self._sampler.vocab_size,
            NORM_EPSILON.get(norm_kind, 0.0),
            K,
            self._rows,
            norm_kind,
            activation,
            add,
            self._tiles,
            _LOGIT_TILE,
            block_n,
            block_k,
            self._block_b,
            _power_of_two(self._tiles),
            num_warps=warps,
        )

    def _launch_attention(self, keys: Tensor, values: Tensor) -> None:
        rows, heads, capacity, D = keys.shape
        cos, sin = self._cache.rope if self._cache.rope is not None else (None, None)
        self._kernels.attend[(rows * heads, self._splits)](
            self._qkv,
            cos,
            sin,
            keys,
            values,
            self._position,
            self._attended,
            self._parts,
            self._arrived,
            self._cache.window,
            capacity,
            math.ceil(capacity / self._splits),
            1 / math.sqrt(D),
            NORM_EPSILON["rms"],
            heads,
            D,
            _power_of_two(D),
            _BLOCK_SLOTS,
            self._splits,
            num_warps=4,
        )

    def _launch_sampling(self) -> None:
        sampler = self._sampler
        if not self._sampled_by_kernel:
            step = (self._position % self._ring).long()
            tokens = sampler.choose_tokens(self._logits, self._noise.index_select(0, step)[0])
            self._out.index_copy_(0, step, tokens[None])
            self._tokens.copy_(tokens.clamp(min=0))
            return
        tiles = self._tile_max.shape[1]
        self._kernels.sample[(self._rows,)](
            self._logits,
            self._tile_max,
            self._noise,
            self._position,
            self._chosen_tiles,
            self._out,
            self._tokens,
            sampler.temperature,
            1.0 if sampler.top_p is None else sampler.top_p,
            self._rows,
            self._logits.shape[1],
            sampler.vocab_size,
            self._noise_width,
            tiles,
            self._ring,
            sampler.top_p is not None and sampler.top_p < 1,
            _LOGIT_TILE,
            _power_of_two(tiles),
            self._chosen_tiles.shape[1],
            num_warps=16 if self._logits.shape[1] > 4096 else 4,
        )
