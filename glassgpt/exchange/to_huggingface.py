"""A model for `transformers`: AutoModelForCausalLM and AutoTokenizer load it without code of ours.

arch=gpt2 is GPT-2 there, arch=modern is NanoChat (since transformers 5).

config.json                 shape, activation, which id ends a text
generation_config.json      the same id, for generate()
model.safetensors           GPT-2's or NanoChat's names and layout, float32
tokenizer.json              see data/tokenizer_json.py
tokenizer_config.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from glassgpt.data.bpe import TOKENIZER_JSON
from glassgpt.data.bpe_table import END_OF_TEXT
from glassgpt.data.tokenizer_json import dump_tokenizer
from glassgpt.exchange.exportable import ExportableModel
from glassgpt.exchange.free_space import disk_errors_as_os_error
from glassgpt.model.fused import NORM_EPSILON
from glassgpt.model.gpt import ROPE_THETA, GPTConfig
from glassgpt.model.pretrained import CONFIG_FILE, WEIGHTS_FILE
from glassgpt.model.weights import to_nanochat, to_transformers


def write(folder: Path, parcel: ExportableModel) -> None:
    convert, config = (to_transformers, _gpt2) if parcel.shape.arch == "gpt2" else (to_nanochat, _nanochat)
    weights = convert(parcel.weights, parcel.shape)
    with disk_errors_as_os_error():
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    ends = {"bos_token_id": parcel.tokenizer.eot, "eos_token_id": parcel.tokenizer.eot}
    tied = {"tie_word_embeddings": "lm_head.weight" not in weights}
    write_json(folder / CONFIG_FILE, config(parcel.shape) | _COMMON_CONFIG | tied | ends)
    write_json(folder / "generation_config.json", ends)
    (folder / TOKENIZER_JSON).write_bytes(dump_tokenizer(parcel.tokenizer))
    write_json(folder / "tokenizer_config.json", _tokenizer_config(parcel))


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


_COMMON_CONFIG = {"initializer_range": 0.02, "torch_dtype": "float32", "use_cache": True}


def _gpt2(shape: GPTConfig) -> dict[str, Any]:
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
        "layer_norm_epsilon": NORM_EPSILON["layer"],
    }


def _nanochat(shape: GPTConfig) -> dict[str, Any]:
    """Every setting is written: some of NanoChat's defaults are not ours."""
    return {
        "architectures": ["NanoChatForCausalLM"],
        "model_type": "nanochat",
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.block_size,
        "hidden_size": shape.n_embd,
        "intermediate_size": 4 * shape.n_embd,
        "num_hidden_layers": shape.n_layer,
        "num_attention_heads": shape.n_head,
        "num_key_value_heads": shape.n_head,
        "hidden_act": shape.activation,
        "attention_dropout": shape.dropout,  # it has no dropout elsewhere
        "attention_bias": False,
        "rms_norm_eps": NORM_EPSILON["rms"],
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "final_logit_softcapping": None,
        "pad_token_id": None,  # by default token 1, whose embedding would then never learn
    }


def _tokenizer_config(parcel: ExportableModel) -> dict[str, Any]:
    """The plain class that does what tokenizer.json says, and nothing to the text before or after."""
    names = ("bos_token", "eos_token", "unk_token") if parcel.tokenizer.eot is not None else ()
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": parcel.shape.block_size,
        "clean_up_tokenization_spaces": False,
    } | dict.fromkeys(names, END_OF_TEXT)
