"""Drawing the next token of a text from the model's distribution.

draws = Draws(tokenizer.vocab_size, temperature=0.0)     # always the likeliest
generators = [draws.generator(number) for number in range(8)]
draws.next_tokens(logits, generators)                    # one for each of eight samples
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_MIN_TEMPERATURE = 1e-30  # below, dividing by the temperature leaves float32's range


@dataclass(frozen=True)
class TokenSampler:
    """How tokens are drawn. By generators of their own, never by training's."""

    vocab_size: int  # the tokenizer's: ids above it exist only as padding of the model's matrices
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
        """Of the sample with this number. On the CPU, so that every device draws the same."""
        seed = self.seed
        if number > 0:  # mixed, so that sample 1 of a seed is not sample 0 of the next seed
            seed = int(np.random.SeedSequence([seed % 2**64, number]).generate_state(1)[0])
        return torch.Generator().manual_seed(seed)

    def next_tokens(self, logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One token per generator, each from its row of the logits; or all from the only row there is. Where
        the logits are no numbers, -1: to ask them here would make a GPU wait.
        """
        logits = logits[:, : self.vocab_size].float().expand(len(generators), -1)
        if self.temperature < _MIN_TEMPERATURE:
            most, likeliest = logits.max(-1)  # of what is no number, that is the most
            return likeliest.where(most.isfinite(), -1)
        ids = None
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits, ids = logits.topk(self.top_k)
            # In the order of ids: where two likely ones swap places by rounding, no draw changes.
            ids, order = ids.sort()
            logits = logits.gather(-1, order)
        logits = logits - logits.amax(-1, keepdim=True)  # the likeliest is 0: no infinities
        probabilities = (logits / self.temperature).softmax(-1)
        good = probabilities.isfinite().all(-1)
        if self.top_p is not None and self.top_p < 1:
            probabilities = _nucleus(probabilities, self.top_p)
        drawn = (probabilities / _waits(probabilities, generators)).argmax(-1, keepdim=True)
        return (drawn if ids is None else ids.gather(-1, drawn))[:, 0].where(good, -1)


def _waits(like: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Random waiting times, a row from each generator. Divided by its probability, each would be the time
    until a token comes; the first to come is a draw from the probabilities.
    """
    waits = torch.empty(like.shape, dtype=like.dtype)
    for row, generator in zip(waits, generators, strict=True):
        row.exponential_(generator=generator)
    return waits.to(like.device, non_blocking=True)


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Only the likeliest, as few as reach `top_p` together and at least one; they need not sum to 1."""
    ordered, order = probabilities.sort(descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered  # 0 for the likeliest, which therefore always stays
    dropped = torch.zeros_like(before, dtype=torch.bool).scatter_(-1, order, before >= top_p)
    return probabilities.masked_fill(dropped, 0.0)
