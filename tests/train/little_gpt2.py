"""GPT-2's files, as `transformers` writes them, of a model of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from glassgpt.data.tokenizers import train_bpe


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
