"""A little GPT-2 in files as `transformers` writes them, and the loss that it computes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassgpt.data.bpe import train_bpe


def write_gpt2(folder: Path, text: str, shape: dict[str, int], **saving: Any) -> Path:
    """With a tokenizer of `text` that has the shape's `vocab_size`."""
    transformers = pytest.importorskip("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, initializer_range=0.3))
    model.save_pretrained(folder, **saving)
    for name, content in train_bpe([text], shape["vocab_size"]).files.items():
        (folder / name).write_bytes(content)
    return folder


@torch.no_grad()
def transformers_loss(folder: Path, tokens: Tensor, context: int) -> float:
    """Each token is predicted once, from at most context - 1 before it in its window."""
    model = pytest.importorskip("transformers").GPT2LMHeadModel.from_pretrained(folder).eval()
    total = 0.0
    for start in range(0, len(tokens) - 1, context):
        window = tokens[start : start + context + 1]
        logits = model(window[None, :-1]).logits[0]
        total += torch.nn.functional.cross_entropy(logits.double(), window[1:], reduction="sum").item()
    return total / (len(tokens) - 1)
