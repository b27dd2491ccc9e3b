"""Decoding on a GPU in one kernel launch a token: it is sampled on the device, and read there.

    decoder = FusedDecoder(prepared, cache, sampler)                # the prompt is in the cache
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

import torch
from torch import Tensor

from glassgpt.model.gpt import GPT
from glassgpt.model.kv_cache import KVCache
from glassgpt.model.ops import NORM_EPSILON
from glassgpt.model.token_sampler import TokenSampler

MAX_ROWS = 32
_MAX_CHANNEL_BYTES = 8192
_MAX_INPUT_BYTES = 2**16  # of a norm, of several rows: half of a program's shared memory
_MAX_TOP_K = 512  # larger ones are sampled by PyTorch's kernels
_LOGIT_TILE = 16
_BLOCK_SLOTS = 64  # of the cache, read at a time: as many or more for each task of a head
_BLOCK_BYTES = 2**15  # of a matrix, read at a time: registers hold them while the next ones are loaded
_SLICE = 128  # inputs of a matrix that a warp sums up
_MAX_BLOCK = 16  # tokens launched ahead
_SECONDS_PER_BLOCK = 0.03  # blocks grow while they take less: text should appear steadily
_MAX_NOISE_BYTES = 2**24


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def can_fuse(model: GPT, rows: int) -> bool:
    """Whether the kernel covers this shape."""
    channels, itemsize = model.config.n_embd, model.lm_head.weight.element_size()
    if rows == 1:
        fits = channels * itemsize <= _MAX_CHANNEL_BYTES
    else:
        inputs = _power_of_two(channels) * _padded_rows(rows)
        fits = rows <= MAX_ROWS and inputs * itemsize <= _MAX_INPUT_BYTES
    return fits and (model.config.arch == "gpt2" or channels // model.config.n_head % 2 == 0)


def _padded_rows(rows: int) -> int:
    """The rows of a matmul on tensor cores, which has to have 16 or more."""
    return 1 if rows == 1 else max(16, _power_of_two(rows))


class FusedDecoder:
    """Continues the texts in `cache`, one row each, by one token per step."""

    def __init__(self, model: GPT, cache: KVCache, sampler: TokenSampler) -> None:
        from glassgpt.model import decode_kernels, kernels  # noqa: F401 - imports Triton

        self._kernels = decode_kernels
        self._model, self._cache, self._sampler = model, cache, sampler
        config, weight = model.config, model.lm_head.weight
        keys = cache.layers[0].keys
        self._rows, device = keys.shape[0], keys.device
        C, V = config.n_embd, config.vocab_size

        def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        rows = self._rows
        self._residual, self._qkv = buffer(rows, C), buffer(rows, 3 * C)
        self._attended, self._hidden = (
            buffer(rows, width, dtype=weight.dtype) for width in (C, config.n_embd * 4)
        )
        self._logits, self._tile_max = buffer(rows, V), buffer(rows, math.ceil(V / _LOGIT_TILE))
        processors = torch.cuda.get_device_properties(device).multi_processor_count if keys.is_cuda else 1
        self._programs = processors  # one each: they wait for each other, so all of them have to run
        heads, block_d = rows * config.n_head, _power_of_two(C // config.n_head)
        slots = math.ceil(keys.shape[2] / _BLOCK_SLOTS)
        self._splits = _power_of_two(max(1, min(slots, self._programs // heads) // 2 + 1))
        self._parts = buffer(heads, self._splits, block_d + 2) if self._splits > 1 else None
        self._arrived = buffer(heads, dtype=torch.int32) if self._splits > 1 else None
        # The token to be read next: its position, and itself for each row.
        self._position = torch.full((1,), cache.length, dtype=torch.int32, device=device)
        self._arrivals = buffer(2, dtype=torch.int32)
        self._tokens = buffer(rows, dtype=torch.long)
        # Blocks alternate between the halves of these rings, so the next one can be prepared meanwhile.
        self._noise_width = sampler.noise_width
        step_bytes = 4 * rows * self._noise_width
        self._ring = 2 * max(
            1, min(_MAX_BLOCK, _power_of_two(_MAX_NOISE_BYTES // max(step_bytes, 1) + 1) // 2)
        )
        self._layers, self._weights = self._addresses()
        pinned = device.type == "cuda"
        self._noise = buffer(self._ring, rows, self._noise_width) + 1
        self._host_noise = torch.ones(self._noise.shape, pin_memory=pinned)
        self._out = buffer(self._ring, rows, dtype=torch.long)
        self._host_out = torch.zeros(self._out.shape, dtype=torch.long, pin_memory=pinned)
        self._sampled_by_kernel = (
            0 < self._noise_width < sampler.vocab_size and self._noise_width <= _MAX_TOP_K
        )
        self._chosen_tiles = buffer(rows, _power_of_two(max(1, self._noise_width)), dtype=torch.int32)

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
            self._launch_step()
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
        self._launch(sample=False)
        self._cache.advance()
        return self._logits

    def _launch_step(self) -> None:
        self._launch(sample=self._sampled_by_kernel)
        if not self._sampled_by_kernel:
            step = (self._position % self._ring).long()
            tokens = self._sampler.choose_tokens(self._logits, self._noise.index_select(0, step)[0])
            self._out.index_copy_(0, step, tokens[None])
            self._tokens.copy_(tokens.clamp(min=0))

    def _addresses(self) -> tuple[Tensor, list[Tensor]]:
        """Where the tensors of each layer are, as decode_kernels wants it, and these tensors."""
        weights, table = [], []
        for layer, block in zip(self._cache.layers, self._model.transformer.h, strict=True):
            named = dict(block.named_parameters())
            tensors = [named.get(name) for name in self._kernels.LAYER_FIELDS] + [layer.keys, layer.values]
            row = []
            for tensor in tensors:
                ready = None if tensor is None else tensor.detach().contiguous()
                if ready is not None and ready.data_ptr() % 16:
                    ready = ready.clone()
                if ready is not None:
                    weights.append(ready)
                row.append(0 if ready is None else ready.data_ptr())
            table.append(row)
        return torch.tensor(table, device=self._tokens.device), weights

    def _block_outputs(self, outputs: int, inputs: int, unit: int = 1) -> int:
        """How many outputs of a matrix a program computes at a time."""
        share = math.ceil(math.ceil(outputs / unit) / self._programs) * unit
        fits = _BLOCK_BYTES // self._model.lm_head.weight.element_size() // inputs
        return max(unit, 16 if self._rows > 1 else 1, min(_power_of_two(share), fits))

    def _launch(self, sample: bool) -> None:
        """The kernel of one step. `sample`: it chooses the next tokens, too."""
        model, transformer, sampler = self._model, self._model.transformer, self._sampler
        config, rows = model.config, self._rows
        C, V, H = config.n_embd, config.vocab_size, config.n_head
        keys = self._cache.layers[0].keys
        norm = "rms" if transformer.ln_f.rms else "layer"
        cos, sin = self._cache.rope if self._cache.rope is not None else (None, None)
        inputs, down_inputs = _power_of_two(C), _power_of_two(4 * C)
        slices, block_k, down_k = 1, inputs, down_inputs
        if rows > 1:
            inputs = down_inputs = max(16, inputs)
            block_k = down_k = min(_SLICE, inputs)
            slices = inputs // block_k
        block_n = [self._block_outputs(outputs, inputs) for outputs in (3 * C, C, 4 * C)]
        block_n += [self._block_outputs(C, down_inputs), self._block_outputs(V, inputs, _LOGIT_TILE)]
        on_gpu: dict[str, object] = {"launch_cooperative_grid": True} if keys.is_cuda else {}
        self._kernels.decode_step[(self._programs,)](
            self._tokens,
            transformer.wte.weight,
            None if transformer.wpe is None else transformer.wpe.weight,
            self._layers,
            transformer.ln_f.weight,
            transformer.ln_f.bias,
            model.lm_head.weight,
            keys,
            cos,
            sin,
            self._position,
            self._arrivals,
            self._residual,
            self._qkv,
            self._attended,
            self._hidden,
            self._logits,
            self._tile_max,
            self._parts,
            self._arrived,
            self._noise,
            self._chosen_tiles,
            self._out,
            sampler.temperature,
            1.0 if sampler.top_p is None else sampler.top_p,
            sampler.vocab_size,
            self._cache.window,
            keys.shape[2],
            math.ceil(keys.shape[2] / self._splits),
            1 / math.sqrt(C // H),
            NORM_EPSILON[norm],
            NORM_EPSILON["rms"],
            self._noise_width,
            self._ring,
            L=config.n_layer,
            ROWS=rows,
            C=C,
            V=V,
            H=H,
            NORM=norm,
            ACTIVATION=config.activation,
            BIAS=config.bias and config.arch == "gpt2",
            SHIFT=transformer.ln_f.bias is not None,
            SAMPLE=sample,
            TOP_P=sampler.top_p is not None and sampler.top_p < 1,
            LOGIT_TILE=_LOGIT_TILE,
            SPLITS=self._splits,
            QKV_N=block_n[0],
            PROJ_N=block_n[1],
            UP_N=block_n[2],
            DOWN_N=block_n[3],
            HEAD_N=block_n[4],
            SLICES=slices,
            BLOCK_K=block_k,
            DOWN_K=down_k,
            BLOCK_B=_padded_rows(rows),
            BLOCK_D=_power_of_two(C // H),
            BLOCK_S=_BLOCK_SLOTS,
            BLOCK_TILES=_power_of_two(self._tile_max.shape[1]),
            BLOCK_CHOSEN=self._chosen_tiles.shape[1],
            num_warps=8 if inputs <= 1024 else 16,
            num_stages=1,
            **on_gpu,
        )
