"""What is handed over: a model's weights without padding, its tokenizer, and where they come from."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from glassgpt.data.tokenizers import Tokenizer
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.model.weights import build_model
from glassgpt.training.weight_source import LoadedCheckpoint, find_tokenizer, load_init_from

_VOCAB_WEIGHTS = ("transformer.wte.weight", "lm_head.weight")


@dataclass(frozen=True)
class ExportableModel:
    origin: LoadedCheckpoint
    shape: GPTConfig  # its vocabulary is the tokenizer's
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    padding_rows: int  # rows that were left behind: they stand for no token

    @property
    def name(self) -> str:
        """Of the run, or of the weights; no path, which may say whose it is."""
        origin = self.origin
        name = Path(origin.description).name if origin.kind == "gpt2" else origin.folder.resolve().name
        return re.sub(r"[^\w.-]+", "-", name).strip("-") or "model"

    def model(self) -> GPT:
        return build_model(self.shape, self.weights, self.origin.description).eval()


def load_exportable_model(source: str, data_dir: str = "") -> ExportableModel:
    """`source` is whatever `glass sample` takes."""
    origin = load_init_from(source, which="best")
    tokenizer = find_tokenizer(origin, data_dir)
    rows = tokenizer.vocab_size
    return ExportableModel(
        origin,
        dataclasses.replace(origin.model_config, vocab_size=rows),
        strip_vocab_padding(origin.weights, rows),
        tokenizer,
        origin.model_config.vocab_size - rows,
    )


def strip_vocab_padding(weights: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    return {
        name: tensor[:rows].contiguous() if name in _VOCAB_WEIGHTS else tensor
        for name, tensor in weights.items()
    }
