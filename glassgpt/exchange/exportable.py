"""What is handed over: a model's weights without padding, its tokenizer, and where they come from."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from glassgpt.data.tokenizers import Tokenizer
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.model.weights import model_of
from glassgpt.training.init_weights import find_tokenizer
from glassgpt.training.weight_source import Origin, open_origin

_BY_TOKEN = ("transformer.wte.weight", "lm_head.weight")


@dataclass(frozen=True)
class Parcel:
    origin: Origin
    shape: GPTConfig  # its vocabulary is the tokenizer's
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    padding: int  # rows that were left behind: they stand for no token

    @property
    def name(self) -> str:
        """Of the run, or of the weights; no path, which may say whose it is."""
        origin = self.origin
        name = Path(origin.what).name if origin.kind == "gpt2" else origin.folder.resolve().name
        return re.sub(r"[^\w.-]+", "-", name).strip("-") or "model"

    def model(self) -> GPT:
        return model_of(self.shape, self.weights, self.origin.what).eval()


def open_parcel(source: str, data_dir: str = "") -> Parcel:
    """`source` is whatever `glass sample` takes."""
    origin = open_origin(source, which="best")
    tokenizer = find_tokenizer(origin, data_dir)
    rows = tokenizer.vocab_size
    return Parcel(
        origin,
        dataclasses.replace(origin.shape, vocab_size=rows),
        without_padding(origin.weights, rows),
        tokenizer,
        origin.shape.vocab_size - rows,
    )


def without_padding(weights: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    return {
        name: tensor[:rows].contiguous() if name in _BY_TOKEN else tensor for name, tensor in weights.items()
    }
