"""One evaluator for both trainers: the mean loss of a checkpoint over a whole split.

The split is cut into windows that do not overlap, every token but the first is predicted once, in float32
with TF32 off. nanoGPT's checkpoints are run by nanoGPT's own model, ours by ours; the rest is the same for
both, and none of it is GlassGPT's own evaluation.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.peers import load_nanogpt_model
from glassgpt.model.gpt import GPT
from glassgpt.training.weight_source import load_init_from

LogitsFunction = Callable[[Tensor, Tensor], Tensor]  # of (tokens, targets), both (B, T)

_BATCH_TOKENS = {"cpu": 4096}  # whose caches are small
_MAX_BATCH_TOKENS = 16_384  # 3.3 GB of float32 logits at GPT-2's vocabulary


def whole_split_loss(logits_of: LogitsFunction, tokens: np.ndarray, context: int, device: str) -> float:
    """The mean over all tokens but the first, summed in float64."""
    whole = (len(tokens) - 1) // context
    windows = [(start * context, context) for start in range(whole)]
    rest = (len(tokens) - 1) % context
    rows = max(1, _BATCH_TOKENS.get(device, _MAX_BATCH_TOKENS) // context)
    batches = [windows[i : i + rows] for i in range(0, whole, rows)]
    batches += [[(whole * context, rest)]] if rest else []
    total = torch.zeros((), dtype=torch.float64, device=device)
    for batch in batches:
        length = batch[0][1]
        ids = np.stack([tokens[start : start + length + 1] for start, _ in batch]).astype(np.int64)
        window = torch.from_numpy(ids).to(device)
        total += _sum_of_losses(logits_of, window[:, :-1].contiguous(), window[:, 1:].contiguous())
    return float(total) / (len(tokens) - 1)


def _sum_of_losses(logits_of: LogitsFunction, tokens: Tensor, targets: Tensor) -> Tensor:
    with torch.no_grad():
        logits = logits_of(tokens, targets)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return losses.double().sum()


def score(
    model: nn.Module, logits_of: LogitsFunction, tokens: np.ndarray, contexts: Sequence[int], device: str
) -> dict[int, float]:
    """The loss at each context."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        model.to(device=device, dtype=torch.float32).eval()
        return {context: whole_split_loss(logits_of, tokens, context, device) for context in contexts}
    finally:
        torch.set_float32_matmul_precision(precision)


def score_nanogpt(
    checkpoint: Path, checkout: Path, tokens: np.ndarray, device: str, also: int | None = None
) -> dict[int, float]:
    """A ckpt.pt, by nanoGPT's model. At its own context; and at `also`, if it is shorter."""
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    module = load_nanogpt_model(checkout)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its number of parameters
        model = module.GPT(module.GPTConfig(**saved["model_args"]))
    # The prefix that torch.compile adds.
    weights = {name.removeprefix("_orig_mod."): value for name, value in saved["model"].items()}
    model.load_state_dict(weights)

    def logits_of(tokens: Tensor, targets: Tensor) -> Tensor:
        logits: Tensor = model(tokens, targets)[0]  # without targets it computes the last position only
        return logits

    return score(model, logits_of, tokens, _contexts(model.config.block_size, also), device)


def score_glass(
    run: Path, tokens: np.ndarray, device: str, also: int | None = None, which: str = "best"
) -> dict[int, float]:
    """A run's checkpoint. At its own context; and at `also`, if it is shorter."""
    origin = load_init_from(str(run), which)
    model = GPT(origin.model_config)
    model.load_state_dict(origin.weights)

    def logits_of(tokens: Tensor, targets: Tensor) -> Tensor:
        logits: Tensor = model(tokens)
        return logits

    return score(model, logits_of, tokens, _contexts(origin.model_config.block_size, also), device)


def _contexts(own: int, also: int | None) -> list[int]:
    return [own] if also is None or also >= own else [own, also]
