"""A model under our own names: safetensors and JSON that a page of plain torch can read (docs/export.md).

config.json          model_type "glassgpt", and the fields of GPTConfig
model.safetensors    float32, under the model's own names; a head that is the embedding is not repeated
tokenizer.json       see data/tokenizer_json.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from safetensors.torch import save_file

from glassgpt.data.tokenizer_json import dump_tokenizer
from glassgpt.data.tokenizers import TOKENIZER_JSON
from glassgpt.exchange.exportable import Parcel
from glassgpt.exchange.free_space import written_to_disk
from glassgpt.exchange.to_huggingface import write_json
from glassgpt.model.pretrained import CONFIG, OUR_TYPE, WEIGHTS


def write(folder: Path, parcel: Parcel) -> None:
    shape = parcel.shape
    weights = {
        name: tensor.contiguous()
        for name, tensor in parcel.weights.items()
        if not (shape.tie_embeddings and name == "lm_head.weight")
    }
    with written_to_disk():
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    write_json(folder / CONFIG, {"model_type": OUR_TYPE, **dataclasses.asdict(shape)})
    (folder / TOKENIZER_JSON).write_bytes(dump_tokenizer(parcel.tokenizer))
