"""Runs of three updates with every kind of tokenizer, handing them over, and what they compute."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import small_runs
import torch
from small_runs import CONTEXT
from torch import Tensor

from glassgpt.data.bpe import gpt2_tokenizer, train_bpe
from glassgpt.exchange.exchange_options import ExportOptions
from glassgpt.exchange.export import ExportResult, export
from glassgpt.model.gpt import GPT
from glassgpt.model.weights import load_weights
from glassgpt.training.weight_source import load_init_from

LINE = "glass, कांच का घर, بيت من زجاج 🦊🐕 don't  you'll\t see\n"
TEXT = LINE * 60
TOKENIZERS = ("char", "byte", "bpe:300", "gpt2")


def prepare_dataset(folder: Path, tokenizer: str, text: str = TEXT) -> Path:
    """A dataset that has the tokenizer's name; for gpt2 with a small table of its own."""
    files = ""
    if tokenizer == "gpt2":
        files = str(folder / "table")
        Path(files).mkdir(parents=True)
        for file, content in gpt2_tokenizer(train_bpe([text], 290).ranks).files.items():
            (Path(files) / file).write_bytes(content)
    name = tokenizer.partition(":")[0]
    return small_runs.prepare_dataset(folder, name, tokenizer, text, tokenizer_files=files)


def train_run(out_dir: Path, data_dir: Path, **changes: Any) -> Path:
    usual: dict[str, Any] = {"dataset": data_dir.name, "n_layer": 2, "dtype": "float32"}
    return small_runs.train_run(out_dir, data_dir, **usual | changes)


def train_with_each(tokenizers: Iterable[str], folder: Path) -> None:
    """A run in runs/NAME for each of them."""
    for tokenizer in tokenizers:
        name = tokenizer.partition(":")[0]
        train_run(folder / "runs" / name, prepare_dataset(folder / name, tokenizer))


def run_export(source: Path | str, out: Path, to: Any = "hf") -> ExportResult:
    return export(str(source), ExportOptions(to=to, out=str(out)))


@torch.no_grad()
def own_logits(source: Path | str, tokens: Tensor) -> Tensor:
    origin = load_init_from(str(source), "best")
    model = GPT(origin.model_config).eval()
    load_weights(model, origin.weights, "it")
    logits: Tensor = model(tokens)
    return logits


def some_tokens(vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (3, CONTEXT), generator=torch.Generator().manual_seed(4))
