"""Generation: greedy, temperature, top-k and top-p sampling, with a KV cache and CUDA graphs.

    sampler = TokenSampler(tokenizer.vocab_size, temperature=0.8, top_p=0.95)    # temperature=0.0: greedy
    for token in generate(model, prompt, 100, sampler):
        ...

One token needs little arithmetic. Its time goes into reading every weight once, and on a GPU into launching
hundreds of small kernels. So keys and values are cached, weights are converted beforehand, on a CPU to
float16 if the caller wants (`pack_float16_weights`), and a decoding step is captured as a CUDA graph, or is a
single Triton kernel (fused_decoder.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from glassgpt.errors import UserError
from glassgpt.model.cuda_graph import CudaGraphRunner
from glassgpt.model.fused_decoder import FusedDecoder, can_fuse
from glassgpt.model.gpt import GPT
from glassgpt.model.kv_cache import StaticKVCache
from glassgpt.model.token_sampler import TokenSampler

# --- weights ---


class Float16Linear(nn.Module):
    """A linear layer on a CPU that reads its weight as float16. Input, sums and output are float32.

    `weight` and `bias` are those of the layer that it replaces, which stay as they are.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._packed = torch.ops.quantized.linear_prepack_fp16(linear.weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self._packed)  # type: ignore[no-any-return]


def has_float16_linear() -> bool:
    """Whether PyTorch has FBGEMM's matmul for this CPU: x86 with AVX2."""
    engine = torch.backends.quantized.engine
    return engine in ("x86", "fbgemm") and hasattr(torch.ops.quantized, "linear_dynamic_fp16")


@torch.no_grad()
def pack_float16_weights(model: GPT) -> None:
    """Replaces the linear layers of a model on a CPU by Float16Linear, which has no backward pass.

    A matrix whose largest weight is no normal float16 stays in float32. Packing takes as long as generating
    about 100 tokens saves.
    """
    float16 = torch.finfo(torch.float16)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if (
                isinstance(child, nn.Linear)
                and float16.tiny <= float(child.weight.abs().max()) <= float16.max
            ):
                setattr(module, name, Float16Linear(child))


# --- logits of the next token ---


def prepare_for_decoding(model: GPT) -> GPT:
    """A copy with linear weights converted for decoding; it shares everything else with `model`."""
    device_type = model.lm_head.weight.device.type
    autocast = torch.is_autocast_enabled(device_type)
    has_packed_weights = any(isinstance(module, Float16Linear) for module in model.modules())
    if has_packed_weights or (not autocast and device_type != "cpu"):
        return model
    prepared: GPT = _copy_modules(model)
    for linear in prepared.modules():
        if not isinstance(linear, nn.Linear):
            continue
        for name, parameter in list(linear.named_parameters()):
            weight: Tensor = parameter
            if autocast:  # which would cast again at every step: its cache ends with its context
                weight = parameter.to(torch.get_autocast_dtype(device_type))
            elif parameter.dim() == 2 and parameter.shape[0] > parameter.shape[1]:
                weight = parameter.t().contiguous().t()  # column-major: faster for one or two rows of x
            setattr(linear, name, nn.Parameter(weight, requires_grad=False))
    return prepared


def _copy_modules(module: nn.Module) -> Any:
    """The same modules with the same tensors; setting a parameter of one leaves the other as it is."""
    twin = object.__new__(type(module))
    children = {name: child and _copy_modules(child) for name, child in module._modules.items()}
    own = {"_parameters": dict(module._parameters), "_buffers": dict(module._buffers), "_modules": children}
    twin.__dict__.update(module.__dict__, **own)
    return twin


def decoding_bytes(model: GPT, prompt: int, count: int, rows: int, itemsize: int) -> int:
    """What `count` decoding steps read: each matrix once per step, and the keys and values of each row."""
    shape = model.config
    matrices = {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    weights = sum(matrix.numel() for matrix in matrices)
    lengths = sum(min(length, shape.block_size) for length in range(prompt, prompt + count))
    return itemsize * (count * weights + rows * lengths * 2 * shape.n_layer * shape.n_embd)


class DecodingGraphRunner:
    """Calls `function(tokens)`; on a CUDA GPU by a CudaGraphRunner, a new one when the shape of the tokens
    changes. So `function` must launch the same kernels in every call.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function
        self._shape: torch.Size | None = None

    def __call__(self, tokens: Tensor) -> Tensor:
        """The result is overwritten by the next call."""
        if not tokens.is_cuda:
            return self._function(tokens)
        if self._shape != tokens.shape:
            self._shape = tokens.shape
            self._graph = CudaGraphRunner(lambda tokens: (self._function(tokens),), warm_up=1)
        return self._graph(tokens)[0]


class WindowDecoder:
    """Without a cache: reads the last `block_size` tokens again at every step."""

    def __init__(self, model: GPT, graph: bool = False) -> None:
        self._block_size = model.config.block_size
        self._next_logits = DecodingGraphRunner(model.next_logits) if graph else model.next_logits

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Logits (B, V) of the token after tokens (B, T); overwritten by the next call."""
        return self._next_logits(tokens[:, -self._block_size :])


class CachedDecoder:
    """With a KV cache: reads the prompt once, and then only the last token of each of `rows` samples.

    Of a prompt longer than the context it reads the end. Beyond the context, the model has to have rotary
    positions.
    """

    def __init__(self, model: GPT, capacity: int, rows: int, graph: bool = False) -> None:
        self.cache = model.new_cache(capacity)
        self._model, self._rows, self._graph = model, rows, graph
        self._step: Callable[[Tensor], Tensor] | None = None

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Logits (B, V) of the token after tokens (B, T); overwritten by the next call."""
        if self.cache.length == 0:
            logits = self._model.next_logits(tokens[:, -self._model.config.block_size :], self.cache)
            self.cache.repeat(self._rows)
            return logits
        if self._step is None and self._graph:
            static_cache = StaticKVCache(self.cache)
            self._step = DecodingGraphRunner(partial(self._model.next_logits, cache=static_cache))
        elif self._step is None:
            self._step = partial(self._model.next_logits, cache=self.cache)
        return self._step(tokens[:, -1:])


# --- generation ---


def generate(
    model: GPT,
    prompt: Sequence[int],
    count: int,
    sampler: TokenSampler,
    *,
    use_cache: bool = True,
    graph: bool = False,
) -> Iterator[int]:
    """Yields `count` tokens that follow `prompt`: sample 0 of the sampler's seed."""
    steps = generate_samples(model, prompt, count, sampler, samples=[0], use_cache=use_cache, graph=graph)
    return (token for (token,) in steps)


@torch.no_grad()
def generate_samples(
    model: GPT,
    prompt: Sequence[int],
    count: int,
    sampler: TokenSampler,
    *,
    samples: Sequence[int],
    use_cache: bool = True,
    graph: bool = False,
    kernels: bool = False,
) -> Iterator[list[int]]:
    """Yields `count` times the next token of each sample.

    `samples` are sample numbers, such as range(8). A sample depends on the seed and its number only, not on
    how many are generated beside it. `graph`: decoding steps are captured as CUDA graphs. `kernels`: where
    the cache is used, a step is one Triton kernel, which also chooses the tokens (fused_decoder.py).

    Past its context, a model with rotary positions and a cache goes on with the keys and values it has:
    attention slides over the last `block_size` tokens. Otherwise the last `block_size` are read again.
    """
    vocab_size = model.config.vocab_size
    if not prompt:
        raise UserError("the prompt is empty: text needs at least one token to begin with")
    if not 0 <= min(prompt) <= max(prompt) < vocab_size:
        raise UserError(
            f"the prompt has tokens up to {max(prompt)}, but the model knows only {vocab_size}: "
            "use the tokenizer it was trained with"
        )
    generators = [sampler.sample_generator(number) for number in samples]
    was_training = model.training
    model.eval()
    block_size = model.config.block_size
    start, end = len(prompt), len(prompt) + count
    tokens = torch.zeros(len(samples), end, dtype=torch.long, device=model.lm_head.weight.device)
    tokens[:, :start] = torch.tensor(list(prompt))
    # Learned positions end with the context. When the oldest token then drops out, every other one moves to
    # another position, so no cached key or value stays valid.
    cached_end = end if model.config.arch == "modern" else min(end, block_size + 1)
    try:
        prepared = prepare_for_decoding(model)
        window = WindowDecoder(prepared, graph)
        cached = CachedDecoder(prepared, min(start, block_size) + count, len(samples), graph)
        length = start
        while length < end:
            decoder = cached if use_cache and length < cached_end else window
            context = tokens[: 1 if length == start else len(samples), :length]  # the prompt is read once
            sampled = sampler.next_tokens(decoder.next_logits(context), generators)
            tokens[:, length] = sampled
            yield _check_sampled(sampled.tolist())
            length += 1
            if kernels and decoder is cached and can_fuse(prepared, len(samples)):
                fused = FusedDecoder(prepared, cached.cache, sampler)
                fused.start(sampled)
                for next_tokens in fused.generate(cached_end - length, generators):
                    yield _check_sampled(next_tokens)
                    if cached_end < end:
                        tokens[:, length] = torch.tensor(next_tokens)
                    length += 1
    finally:
        model.train(was_training)


def _check_sampled(tokens: list[int]) -> list[int]:
    if min(tokens) < 0:
        raise UserError("the model's output is not a number: its training went wrong before this checkpoint")
    return tokens
