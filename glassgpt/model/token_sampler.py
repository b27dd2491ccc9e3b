"""How the next token is sampled from logits: temperature, top-k, top-p, and the random numbers.

sampler = TokenSampler(tokenizer.vocab_size, temperature=0.8, top_p=0.95)    # temperature=0.0: greedy
tokens = sampler.next_tokens(logits, [sampler.sample_generator(0)])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_MIN_TEMPERATURE = 1e-30  # below, dividing by it leaves float32's range: sampled greedily


@dataclass(frozen=True)
class TokenSampler:
    """How the next token is sampled. Uses separate generators, never the one that training uses."""

    vocab_size: int  # the tokenizer's: larger ids are padding of the model's matrices
    temperature: float = 0.8
    top_k: int | None = 200
    top_p: float | None = None
    seed: int = 1337

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
        return self.choose_tokens(
            logits.expand(len(generators), -1), noise.to(logits.device, non_blocking=True)
        )

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
