"""FP8: error of the gradients and time of an update, with parts of the model in 8 bits.

    python -m bench.float8 MDN_FOLDER [--updates 150]

GPT-2 124M is trained for a while in bfloat16. Then its gradients on four batches are compared with float32's,
in bfloat16, in 8 bits, and with only parts of the model in 8 bits. What counts is the error of the
mean gradient: noise averages out over batches, a bias does not, and it is the bias that hurts training. Then
updates of 64 x 1024 tokens are timed, in alternation. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from glassgpt.data.dataset import open_dataset
from glassgpt.model import ops
from glassgpt.model.gpt import GPT, MLP, CausalSelfAttention, GPTConfig

BATCHES, SEQUENCES, COMPARED_SEQUENCES = 4, 64, 16
FP8_VARIANTS = {  # in 8 bits: attention, MLP, head; and attention's projection
    "bf16": (False, False, False, False),
    "fp8": (True, True, True, True),
    "fp8, attention's projection not": (True, True, True, False),
    "fp8, attention not": (False, True, True, False),
    "fp8, MLP not": (True, False, True, True),
    "fp8, head not": (True, True, False, True),
}


class TokenWindows:
    """Random windows of the training split."""

    def __init__(self, folder: Path) -> None:
        self._tokens = open_dataset(folder).tokens("train")
        self._draw = np.random.default_rng(0)

    def batch(self, sequences: int) -> tuple[Tensor, Tensor]:
        starts = self._draw.integers(0, len(self._tokens) - 1025, sequences)
        rows = np.stack([self._tokens[start : start + 1025].astype(np.int64) for start in starts])
        tokens = torch.from_numpy(rows).cuda()
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@contextmanager
def float8_parts(model: GPT, attention: bool, mlp: bool, head: bool, projection: bool) -> Iterator[None]:
    layers = [module for module in model.modules() if isinstance(module, CausalSelfAttention | MLP)]
    for layer in layers:
        low = attention if isinstance(layer, CausalSelfAttention) else mlp
        layer.backend = replace(model.backend, float8=low)
    model.backend.float8 = head
    linear = ops.linear

    def linear_without_projection(layer: nn.Linear, x: Tensor, fp8: bool) -> Tensor:
        square = layer.weight.shape[0] == layer.weight.shape[1]  # only attention's projection is square
        return linear(layer, x, fp8 and (projection or not square))

    ops.linear = linear_without_projection
    try:
        yield
    finally:
        ops.linear = linear
        model.backend.float8 = False
        for layer in layers:
            layer.backend = model.backend


def loss_and_gradient(model: GPT, batch: tuple[Tensor, Tensor], exact: bool = False) -> tuple[float, Tensor]:
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=not exact):
        loss = model(*batch)
    loss.backward()
    return loss.item(), torch.cat(
        [p.grad.float().flatten() for p in model.parameters() if p.grad is not None]
    )


def train_model(text: TokenWindows, updates: int) -> tuple[GPT, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = GPT(GPTConfig(50304, 1024, 12, 12, 768, bias=False)).cuda()
    model.backend.kernels = True
    model.backend.attention = "cudnn"
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * min(1, (update + 1) / 30)
        train_step(model, optimizer, text.batch(SEQUENCES))
    return model, optimizer


def train_step(model: GPT, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(*batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def gradient_errors(model: GPT, batches: list[tuple[Tensor, Tensor]]) -> dict[str, dict[str, float]]:
    model.backend.kernels = False
    model.backend.attention = "sdpa"
    exact = [loss_and_gradient(model, batch, exact=True) for batch in batches]
    model.backend.kernels = True
    model.backend.attention = "cudnn"
    exact_mean = torch.stack([gradient for _, gradient in exact]).mean(0)
    found = {}
    for name, parts in FP8_VARIANTS.items():
        with float8_parts(model, *parts):
            low = [loss_and_gradient(model, batch) for batch in batches]
        single = [((b - a).norm() / a.norm()).item() for (_, a), (_, b) in zip(exact, low, strict=True)]
        mean = torch.stack([gradient for _, gradient in low]).mean(0)
        found[name] = {
            "loss": statistics.mean(b - a for (a, _), (b, _) in zip(exact, low, strict=True)),
            "single": statistics.mean(single),
            "mean": ((mean - exact_mean).norm() / exact_mean.norm()).item(),
        }
    return found


def time_ms(work: Callable[[], None], updates: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    work()
    start.record()
    for _ in range(updates):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / updates


def update_times_ms(
    model: GPT, optimizer: torch.optim.Optimizer, text: TokenWindows, rounds: int = 3
) -> dict[str, float]:
    """Milliseconds of an update: the median over alternating rounds, on a warm card."""
    found: dict[str, list[float]] = {name: [] for name in FP8_VARIANTS}
    batch = text.batch(SEQUENCES)
    for _ in range(rounds):
        for name, parts in FP8_VARIANTS.items():
            with float8_parts(model, *parts):
                found[name].append(time_ms(lambda: train_step(model, optimizer, batch), 20))
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mdn", type=Path, help="a folder that `python -m bench.mdn` prepared")
    parser.add_argument("--updates", type=int, default=150, help="training updates before the comparison")
    options = parser.parse_args()
    text = TokenWindows(options.mdn)
    model, optimizer = train_model(text, options.updates)
    errors = gradient_errors(model, [text.batch(COMPARED_SEQUENCES) for _ in range(BATCHES)])
    ms = update_times_ms(model, optimizer, text)
    print(f"{'':34}  loss, more  gradient, off  mean of {BATCHES}, off  update, ms")
    for name, one in errors.items():
        print(
            f"{name:34}  {one['loss']:+10.5f}  {one['single']:13.4f}  {one['mean']:14.4f}  {ms[name]:10.2f}",
            flush=True,
        )
    print(json.dumps({"bench": "float8", "distances": errors, "ms": ms}))


if __name__ == "__main__":
    main()
