"""A model as `transformers` keeps GPT-2: AutoModelForCausalLM and AutoTokenizer load it without code of ours.

config.json                 shape, activation, which id ends a text
generation_config.json      the same id, for generate()
model.safetensors           GPT-2's names and layout, float32
tokenizer.json              see data/tokenizer_json.py
tokenizer_config.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from glassgpt.data.ranks import END_OF_TEXT
from glassgpt.data.tokenizer_json import dump_tokenizer
from glassgpt.data.tokenizers import TOKENIZER_JSON
from glassgpt.exchange.disk import written_to_disk
from glassgpt.exchange.parcel import Parcel
from glassgpt.model.pretrained import CONFIG, WEIGHTS
from glassgpt.model.weights import to_transformers


def problems(parcel: Parcel) -> list[str]:
    """Why `transformers` cannot have this model."""
    if parcel.shape.arch == "gpt2":
        return []
    return [
        f"--to=hf is for arch=gpt2, and {parcel.origin.what} has arch={parcel.shape.arch}, which no model in "
        "transformers computes; --to=glass writes safetensors with a loader of a few lines"
    ]


def write(folder: Path, parcel: Parcel) -> None:
    weights = to_transformers(parcel.weights, parcel.shape)
    with written_to_disk():
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    ends = {"bos_token_id": parcel.tokenizer.eot, "eos_token_id": parcel.tokenizer.eot}
    write_json(folder / CONFIG, _config(parcel) | ends)
    write_json(folder / "generation_config.json", ends)
    (folder / TOKENIZER_JSON).write_bytes(dump_tokenizer(parcel.tokenizer))
    write_json(folder / "tokenizer_config.json", _tokenizer_config(parcel))


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _config(parcel: Parcel) -> dict[str, Any]:
    shape = parcel.shape
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": shape.vocab_size,
        "n_positions": shape.block_size,
        "n_ctx": shape.block_size,
        "n_embd": shape.n_embd,
        "n_layer": shape.n_layer,
        "n_head": shape.n_head,
        "n_inner": None,
        "activation_function": shape.activation,
        "resid_pdrop": shape.dropout,
        "embd_pdrop": shape.dropout,
        "attn_pdrop": shape.dropout,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": shape.tie_embeddings,
        "torch_dtype": "float32",
        "use_cache": True,
    }


def _tokenizer_config(parcel: Parcel) -> dict[str, Any]:
    """The plain class that does what tokenizer.json says, and nothing to the text before or after."""
    names = ("bos_token", "eos_token", "unk_token") if parcel.tokenizer.eot is not None else ()
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": parcel.shape.block_size,
        "clean_up_tokenization_spaces": False,
    } | dict.fromkeys(names, END_OF_TEXT)
