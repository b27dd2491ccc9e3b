"""A model under our own names: safetensors and JSON that a page of plain torch can read (docs/export.md).

config.json          model_type "glassgpt", and the fields of GPTConfig
model.safetensors    float32, under the model's own names; a head that is the embedding is not repeated
tokenizer.json       see data/tokenizer_json.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from safetensors.torch import save_file

from glassgpt.data.bpe import TOKENIZER_JSON
from glassgpt.data.tokenizer_json import dump_tokenizer
from glassgpt.exchange.exportable import ExportableModel
from glassgpt.exchange.free_space import disk_errors_as_os_error
from glassgpt.exchange.to_huggingface import write_json
from glassgpt.model.pretrained import CONFIG_FILE, GLASSGPT_MODEL_TYPE, WEIGHTS_FILE


def write(folder: Path, parcel: ExportableModel) -> None:
    shape = parcel.shape
    weights = {
        name: tensor.contiguous()
        for name, tensor in parcel.weights.items()
        if not (shape.tie_embeddings and name == "lm_head.weight")
    }
    with disk_errors_as_os_error():
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    write_json(folder / CONFIG_FILE, {"model_type": GLASSGPT_MODEL_TYPE, **dataclasses.asdict(shape)})
    (folder / TOKENIZER_JSON).write_bytes(dump_tokenizer(parcel.tokenizer))
