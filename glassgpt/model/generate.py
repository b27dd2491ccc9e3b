"""Writing text: one token after the other, from the model's own distribution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from glassgpt.model.gpt import GPT


@torch.no_grad()
def generate(
    model: GPT,
    prompt: Sequence[int],
    count: int,
    *,
    vocab_size: int,
    temperature: float = 0.8,
    top_k: int | None = 200,
    seed: int = 1337,
) -> Iterator[int]:
    """Yields `count` tokens that follow `prompt`. Draws from its own generator, never from training's.

    `vocab_size` is the tokenizer's: ids above it exist only as padding of the model's matrices.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device draws the same
    context = list(prompt)
    try:
        for _ in range(count):
            tokens = torch.tensor([context[-model.config.block_size :]], device=device)
            logits = model(tokens)[0, -1, :vocab_size].float().cpu()
            context.append(_draw(logits, temperature, top_k, generator))
            yield context[-1]
    finally:
        model.train(was_training)


def _draw(logits: torch.Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    logits = (logits - logits.max()) / temperature  # so that a tiny temperature cannot make infinities
    if top_k is not None and top_k < logits.numel():
        logits[logits < logits.topk(top_k).values[-1]] = float("-inf")
    return int(torch.multinomial(logits.softmax(-1), 1, generator=generator))
