"""Writing text: one token after the other, from the model's own distribution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from glassgpt.errors import UserError
from glassgpt.model.decoding import CachedDecoder, WindowDecoder, prepare_for_decoding
from glassgpt.model.gpt import GPT
from glassgpt.model.sampling import TokenSampler


def generate(
    model: GPT,
    prompt: Sequence[int],
    count: int,
    draws: TokenSampler,
    *,
    use_cache: bool = True,
    graph: bool = False,
) -> Iterator[int]:
    """Yields `count` tokens that follow `prompt`: sample 0 of the draws' seed."""
    steps = generate_samples(model, prompt, count, draws, samples=[0], use_cache=use_cache, graph=graph)
    return (token for (token,) in steps)


def generate_samples(
    model: GPT,
    prompt: Sequence[int],
    count: int,
    draws: TokenSampler,
    *,
    samples: Sequence[int],
    use_cache: bool = True,
    graph: bool = False,
) -> Iterator[list[int]]:
    """Yields `count` times the next token of each sample.

    `samples` are the numbers of those to write, as range(8). A sample is decided by the seed and its number,
    not by how many are written beside it. `graph`: steps are recorded, see Repeated.
    """
    problems = [*_prompt_problems(model, prompt), *draws.problems()]
    if problems:
        raise UserError(problems)
    return _generate_steps(model, list(prompt), count, draws, samples, use_cache, graph)


def _prompt_problems(model: GPT, prompt: Sequence[int]) -> list[str]:
    known = model.config.vocab_size
    if not prompt:
        return ["the prompt is empty: text needs at least one token to begin with"]
    if not 0 <= min(prompt) <= max(prompt) < known:
        return [
            f"the prompt has tokens up to {max(prompt)}, but the model knows only {known}: "
            "use the tokenizer it was trained with"
        ]
    return []


@torch.no_grad()
def _generate_steps(
    model: GPT,
    prompt: list[int],
    count: int,
    draws: TokenSampler,
    samples: Sequence[int],
    use_cache: bool,
    graph: bool,
) -> Iterator[list[int]]:
    generators = [draws.sample_generator(number) for number in samples]
    was_training = model.training
    model.eval()
    start, end = len(prompt), len(prompt) + count
    texts = torch.zeros(len(samples), end, dtype=torch.long, device=model.lm_head.weight.device)
    texts[:, :start] = torch.tensor(prompt)
    try:
        ready = prepare_for_decoding(model)
        window = WindowDecoder(ready, graph)
        reader = CachedDecoder(ready, end, len(samples), graph) if use_cache else window
        for length in range(start, end):
            if length > model.config.block_size:
                # Full. The oldest token drops out, and each that stays moves to another position and can no
                # longer have seen the dropped one: none of their keys and values would be the same again.
                reader = window
            known = texts[: 1 if length == start else len(samples), :length]  # the prompt is read once
            texts[:, length] = draws.next_tokens(reader.next_logits(known), generators)
            yield _checked(texts[:, length].tolist())
    finally:
        model.train(was_training)


def _checked(tokens: list[int]) -> list[int]:
    if min(tokens) < 0:
        raise UserError("the model's output is not a number: its training went wrong before this checkpoint")
    return tokens
