"""Writing text: one token after the other, from the model's own distribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from glassgpt.errors import UserError
from glassgpt.model.decode import CacheReader, WindowReader, prepared
from glassgpt.model.gpt import GPT

_COLDEST = 1e-30  # below, dividing by the temperature leaves float32's range


def generate(
    model: GPT,
    prompt: Sequence[int],
    count: int,
    *,
    vocab_size: int,
    temperature: float = 0.8,
    top_k: int | None = 200,
    top_p: float | None = None,
    seed: int = 1337,
    use_cache: bool = True,
    graph: bool = False,
) -> Iterator[int]:
    """Yields `count` tokens that follow `prompt`: sample 0 of this seed."""
    steps = generate_samples(
        model,
        prompt,
        count,
        samples=[0],
        vocab_size=vocab_size,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        use_cache=use_cache,
        graph=graph,
    )
    return (token for (token,) in steps)


def generate_samples(
    model: GPT,
    prompt: Sequence[int],
    count: int,
    *,
    samples: Sequence[int],
    vocab_size: int,
    temperature: float = 0.8,
    top_k: int | None = 200,
    top_p: float | None = None,
    seed: int = 1337,
    use_cache: bool = True,
    graph: bool = False,
) -> Iterator[list[int]]:
    """Yields `count` times the next token of each sample. Draws from own generators, never from training's.

    `vocab_size` is the tokenizer's: ids above it exist only as padding of the model's matrices.
    `samples` are the numbers of those to write, as range(8). A sample is decided by the seed and its number,
    not by how many are written beside it. `graph`: steps are recorded, see Repeated.
    """
    _check(model, prompt, temperature, top_k, top_p)
    generators = [_generator(seed, number) for number in samples]

    def draw(logits: Tensor) -> Tensor:
        return _draw(logits[:, :vocab_size].float(), temperature, top_k, top_p, generators)

    return _write(model, list(prompt), count, len(generators), draw, use_cache, graph)


def _check(
    model: GPT, prompt: Sequence[int], temperature: float, top_k: int | None, top_p: float | None
) -> None:
    problems = []
    if not prompt:
        problems.append("the prompt is empty: text needs at least one token to begin with")
    elif not 0 <= min(prompt) <= max(prompt) < model.config.vocab_size:
        problems.append(
            f"the prompt has tokens up to {max(prompt)}, but the model knows only {model.config.vocab_size}: "
            "use the tokenizer it was trained with"
        )
    if not (temperature >= 0 and math.isfinite(temperature)):
        problems.append(f"--temperature={temperature} must be a number from 0 on (0: always the likeliest)")
    if top_k is not None and top_k < 1:
        problems.append(f"--top_k={top_k} must be at least 1")
    if top_p is not None and not 0 < top_p <= 1:
        problems.append(f"--top_p={top_p} must be above 0 and at most 1")
    if problems:
        raise UserError(problems)


def _generator(seed: int, number: int) -> torch.Generator:
    """On the CPU, so that every device draws the same."""
    if number > 0:  # mixed, so that sample 1 of a seed is not sample 0 of the next seed
        seed = int(np.random.SeedSequence([seed % 2**64, number]).generate_state(1)[0])
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def _write(
    model: GPT,
    prompt: list[int],
    count: int,
    samples: int,
    draw: Callable[[Tensor], Tensor],
    use_cache: bool,
    graph: bool,
) -> Iterator[list[int]]:
    was_training = model.training
    model.eval()
    start, end = len(prompt), len(prompt) + count
    texts = torch.zeros(samples, end, dtype=torch.long, device=model.lm_head.weight.device)
    texts[:, :start] = torch.tensor(prompt)
    try:
        ready = prepared(model)
        window = WindowReader(ready, graph)
        reader = CacheReader(ready, end, samples, graph) if use_cache else window
        for length in range(start, end):
            if length > model.config.block_size:
                # Full. The oldest token drops out, and each that stays moves to another position and can no
                # longer have seen the dropped one: none of their keys and values would be the same again.
                reader = window
            known = texts[: 1 if length == start else samples, :length]  # the prompt is read once
            texts[:, length] = draw(reader.read(known))
            yield _checked(texts[:, length].tolist())
    finally:
        model.train(was_training)


def _checked(tokens: list[int]) -> list[int]:
    if min(tokens) < 0:
        raise UserError("the model's output is not a number: its training went wrong before this checkpoint")
    return tokens


def _draw(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generators: Sequence[torch.Generator],
) -> Tensor:
    """One token per generator, each from its row of the logits; or all from the only row there is. Where the
    logits are no numbers, -1: to ask them here would make a GPU wait.
    """
    logits = logits.expand(len(generators), -1)
    if temperature < _COLDEST:
        most, likeliest = logits.max(-1)  # of what is no number, that is the most
        return likeliest.where(most.isfinite(), -1)
    ids = None
    if top_k is not None and top_k < logits.shape[-1]:
        logits, ids = logits.topk(top_k)
        # In the order of ids: where two likely ones swap places by rounding, no draw changes.
        ids, order = ids.sort()
        logits = logits.gather(-1, order)
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # the likeliest is 0: no infinities
    probabilities = logits.softmax(-1)
    good = probabilities.isfinite().all(-1)
    if top_p is not None and top_p < 1:
        probabilities = _nucleus(probabilities, top_p)
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
