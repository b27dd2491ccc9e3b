"""Generation: greedy, temperature, top-k and top-p sampling, with a KV cache and CUDA graphs.

    sampler = TokenSampler(tokenizer.vocab_size, temperature=0.8, top_p=0.95)    # temperature=0.0: greedy
    for token in generate(model, prompt, 100, sampler):
        ...

One token needs little arithmetic. Its time goes into reading every weight once, and on a GPU into launching
hundreds of small kernels. So keys and values are cached, weights are converted beforehand, and a decoding
step is captured as a CUDA graph, with Triton of few kernels (fused_decoder.py).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from glassgpt.errors import UserError, raise_if_any
from glassgpt.model.cuda_graph import CudaGraphRunner
from glassgpt.model.fused_decoder import FusedDecoder, can_fuse
from glassgpt.model.gpt import GPT
from glassgpt.model.kv_cache import StaticKVCache

# --- sampling one token ---

_MIN_TEMPERATURE = 1e-30  # below, dividing by it leaves float32's range: sampled greedily


@dataclass(frozen=True)
class TokenSampler:
    """How the next token is sampled. Uses separate generators, never the one that training uses."""

    vocab_size: int  # the tokenizer's: larger ids are padding of the model's matrices
    temperature: float = 0.8
    top_k: int | None = 200
    top_p: float | None = None
    seed: int = 1337

    def problems(self) -> list[str]:
        problems = []
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            problems.append(
                f"--temperature={self.temperature} must be a number from 0 on (0: always the likeliest)"
            )
        if self.top_k is not None and self.top_k < 1:
            problems.append(f"--top_k={self.top_k} must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            problems.append(f"--top_p={self.top_p} must be above 0 and at most 1")
        return problems

    def sample_generator(self, number: int) -> torch.Generator:
        """The generator of sample `number`. On the CPU, so that all devices draw the same numbers."""
        seed = self.seed
        if number > 0:  # mixed, so that sample 1 of a seed is not sample 0 of the next seed
            seed = int(np.random.SeedSequence([seed % 2**64, number]).generate_state(1)[0])
        return torch.Generator().manual_seed(seed)

    def likeliest(self, logits: Tensor, count: int) -> list[tuple[int, float]]:
        """The `count` likeliest next tokens by logits (V,), with the probabilities that sampling has."""
        logits = logits[: self.vocab_size].float()
        kept = min(self.top_k or len(logits), len(logits))
        largest, ids = logits.topk(max(1, kept if self.temperature >= _MIN_TEMPERATURE else 1))
        probs = ((largest - largest[0]) / max(self.temperature, _MIN_TEMPERATURE)).softmax(-1)
        if self.top_p is not None and self.top_p < 1:
            probs = _top_p_filter(probs, self.top_p)
            probs = probs / probs.sum()
        pairs = zip(ids[:count].tolist(), probs[:count].tolist(), strict=True)
        return [(token, probability) for token, probability in pairs if probability > 0]

    @property
    def noise_width(self) -> int:
        """Random numbers per token: one for each token that may come out; none for greedy decoding."""
        if self.temperature < _MIN_TEMPERATURE:
            return 0
        return min(self.top_k or self.vocab_size, self.vocab_size)

    def draw_noise(self, noise: Tensor, generators: Sequence[torch.Generator]) -> None:
        """Draws the random numbers (B, noise_width) of one token for each row, on the CPU."""
        if self.noise_width:
            for row, generator in zip(noise, generators, strict=True):
                row.exponential_(generator=generator)

    def next_tokens(self, logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Samples one token per generator from logits (B, V); a single row serves all generators."""
        noise = torch.empty(len(generators), self.noise_width)
        self.draw_noise(noise, generators)
        return self.choose_tokens(logits.expand(len(generators), -1), noise.to(logits.device, non_blocking=True))

    def choose_tokens(self, logits: Tensor, noise: Tensor) -> Tensor:
        """One token per row of logits (B, V), decided by `noise` (B, noise_width) on the same device.

        A row with NaN gives -1 instead of an error: checking here would synchronise with the GPU.
        """
        logits = logits[:, : self.vocab_size].float()
        if self.temperature < _MIN_TEMPERATURE:  # greedy
            largest, tokens = logits.max(-1)  # NaN counts as the largest
            return tokens.where(largest.isfinite(), -1)
        ids = None
        if self.noise_width < logits.shape[-1]:
            logits, ids = logits.topk(self.noise_width)
            # Sorted by id: if rounding swaps two likely tokens, the sample stays the same.
            ids, order = ids.sort()
            logits = logits.gather(-1, order)
        logits = logits - logits.amax(-1, keepdim=True)  # at most 0: a tiny temperature cannot overflow
        probs = (logits / self.temperature).softmax(-1)
        valid = probs.isfinite().all(-1)
        if self.top_p is not None and self.top_p < 1:
            probs = _top_p_filter(probs, self.top_p)
        # Exponential race: argmax(p / Exp(1)) is a sample from p, which need not sum to 1.
        drawn = (probs / noise).argmax(-1, keepdim=True)
        return (drawn if ids is None else ids.gather(-1, drawn))[:, 0].where(valid, -1)


def _top_p_filter(probs: Tensor, top_p: float) -> Tensor:
    """All 0 but the nucleus: the likeliest tokens, as few as together reach `top_p`, at least one."""
    descending, order = probs.sort(descending=True, stable=True)
    mass_before = descending.cumsum(-1) - descending  # 0 for the likeliest, which therefore always stays
    dropped = torch.zeros_like(probs, dtype=torch.bool).scatter_(-1, order, mass_before >= top_p)
    return probs.masked_fill(dropped, 0.0)


# --- logits of the next token ---


def prepare_for_decoding(model: GPT) -> GPT:
    """A copy with linear weights converted for decoding; it shares everything else with `model`."""
    device_type = model.lm_head.weight.device.type
    autocast = torch.is_autocast_enabled(device_type)
    if not autocast and device_type != "cpu":
        return model
    shared: dict[int, object] = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    prepared = copy.deepcopy(model, shared)
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
    kernels: bool = False,
) -> Iterator[int]:
    """Yields `count` tokens that follow `prompt`: sample 0 of the sampler's seed."""
    steps = generate_samples(
        model, prompt, count, sampler, samples=[0], use_cache=use_cache, graph=graph, kernels=kernels
    )
    return (token for (token,) in steps)


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
    how many are generated beside it. `graph`: decoding steps are captured as CUDA graphs. `kernels`: they are
    fused Triton kernels, and sampling happens on the device (fused_decoder.py), where the cache is used.

    Past its context, a model with rotary positions and a cache goes on with the keys and values it has:
    attention slides over the last `block_size` tokens. Otherwise the last `block_size` are read again.
    """
    problems = []
    vocab_size = model.config.vocab_size
    if not prompt:
        problems.append("the prompt is empty: text needs at least one token to begin with")
    elif not 0 <= min(prompt) <= max(prompt) < vocab_size:
        problems.append(
            f"the prompt has tokens up to {max(prompt)}, but the model knows only {vocab_size}: "
            "use the tokenizer it was trained with"
        )
    problems += sampler.problems()
    raise_if_any(problems)
    # A separate generator function, so that a wrong prompt is an error now, not at the first token.
    return _generate_steps(model, list(prompt), count, sampler, samples, use_cache, graph, kernels)


@torch.no_grad()
def _generate_steps(
    model: GPT,
    prompt: list[int],
    count: int,
    sampler: TokenSampler,
    samples: Sequence[int],
    use_cache: bool,
    graph: bool,
    kernels: bool,
) -> Iterator[list[int]]:
    generators = [sampler.sample_generator(number) for number in samples]
    was_training = model.training
    model.eval()
    block_size = model.config.block_size
    start, end = len(prompt), len(prompt) + count
    tokens = torch.zeros(len(samples), end, dtype=torch.long, device=model.lm_head.weight.device)
    tokens[:, :start] = torch.tensor(prompt)
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
                fused = FusedDecoder(prepared, cached.cache, sampler, graph)
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
