"""Runs of three updates with every kind of tokenizer, handing them over, and what they compute."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassgpt.config import TrainConfig
from glassgpt.data.prepare import PrepareOptions, prepare
from glassgpt.data.tokenizers import train_bpe
from glassgpt.exchange.export import Exported, export
from glassgpt.exchange.options import ExportOptions
from glassgpt.model.gpt import GPT
from glassgpt.model.weights import load_weights
from glassgpt.train.origin import open_origin
from glassgpt.train.session import train

LINE = "glass, कांच का घर, بيت من زجاج 🦊🐕 don't  you'll\t see\n"
TEXT = LINE * 60
TOKENIZERS = ("char", "byte", "bpe:300", "gpt2")
CONTEXT = 12


def prepared(folder: Path, tokenizer: str, text: str = TEXT) -> Path:
    name = tokenizer.partition(":")[0]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    files = ""
    if tokenizer == "gpt2":
        files = str(folder / "table")
        Path(files).mkdir()
        for file, content in train_bpe([text], 290).files.items():
            (Path(files) / file).write_bytes(content)
    request = PrepareOptions(
        str(folder / "text.txt"),
        tokenizer=tokenizer,
        tokenizer_files=files,
        out_dir=str(folder / "data" / name),
    )
    prepare(request, say=lambda line: None, progress=False)
    return folder / "data" / name


def trained(out_dir: Path, data_dir: Path, **changes: Any) -> Path:
    settings: dict[str, Any] = {
        "out_dir": str(out_dir),
        "data_dir": str(data_dir),
        "dataset": data_dir.name,
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 16,
        "block_size": CONTEXT,
        "batch_size": 4,
        "learning_rate": 0.05,
        "warmup_iters": 0,
        "max_iters": 3,
        "eval_interval": 1,
        "eval_tokens": 48,
        "keep_checkpoints": 9,
        "device": "cpu",
        "dtype": "float32",
        "compile": "off",
        "probe_seconds": 0.0,
    }
    return train(TrainConfig(**settings | changes)).out_dir


def train_with_each(tokenizers: Iterable[str], folder: Path) -> None:
    """A run in runs/NAME for each of them."""
    for tokenizer in tokenizers:
        name = tokenizer.partition(":")[0]
        trained(folder / "runs" / name, prepared(folder / name, tokenizer))


def sent(source: Path | str, out: Path, to: Any = "hf") -> Exported:
    return export(str(source), ExportOptions(to=to, out=str(out)))


@torch.no_grad()
def own_logits(source: Path | str, tokens: Tensor) -> Tensor:
    origin = open_origin(str(source), "best")
    model = GPT(origin.shape).eval()
    load_weights(model, origin.weights, "it")
    logits: Tensor = model(tokens)
    return logits


def some_tokens(vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (3, CONTEXT), generator=torch.Generator().manual_seed(4))
