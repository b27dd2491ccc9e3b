"""The model to export, and the three export formats.

hf        for `transformers`: AutoModelForCausalLM and AutoTokenizer load it without our code. arch=gpt2
          becomes GPT-2, arch=modern becomes NanoChat (since transformers 5).
          config.json, generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json
glass     our parameter names, for code that needs only torch (docs/export.md): config.json with model_type
          "glassgpt" and the fields of GPTConfig, model.safetensors in float32, tokenizer.json
nanogpt   ckpt.pt for its sample.py and train.py: model, model_args, iter_num, best_val_loss, config, and
          AdamW's state if the run has one. meta.pkl with the text of each id, unless they are GPT-2's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from glassgpt.config import DEFAULT_BATCH_SIZE, TrainConfig, dataset_folder
from glassgpt.data.bpe import TOKENIZER_JSON
from glassgpt.data.bpe_table import END_OF_TEXT
from glassgpt.data.nanogpt_bin import META_FILE
from glassgpt.data.tokenizer_json import dump_tokenizer
from glassgpt.data.tokenizers import ByteTokenizer, Tokenizer
from glassgpt.errors import error_type_and_message
from glassgpt.flags import known_settings
from glassgpt.model.gpt import GPT, ROPE_THETA, GPTConfig
from glassgpt.model.ops import NORM_EPSILON
from glassgpt.model.pretrained import CONFIG_FILE, GLASSGPT_MODEL_TYPE, WEIGHTS_FILE
from glassgpt.model.weights import build_model, to_nanochat, to_transformers
from glassgpt.record.run_dir import NANOGPT_CKPT_FILE
from glassgpt.schedule import schedule_of
from glassgpt.training.checkpoint.checkpoints import LoadedCheckpoint
from glassgpt.training.checkpoint.nanogpt_ckpt import ADAMW_STATE_KEYS
from glassgpt.training.weight_source import find_tokenizer, load_init_from

_VOCAB_WEIGHTS = ("transformer.wte.weight", "lm_head.weight")


@dataclass(frozen=True)
class ExportableModel:
    """A model without vocabulary padding, its tokenizer, and the checkpoint they come from."""

    origin: LoadedCheckpoint
    shape: GPTConfig  # with the tokenizer's vocab_size
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    padding_rows: int  # vocabulary rows that were dropped, because no token uses them

    @property
    def name(self) -> str:
        """The name of the run or of the weights. Not a path, which may reveal a user's name."""
        loaded = self.origin
        name = Path(loaded.description).name if loaded.kind == "huggingface" else loaded.folder.resolve().name
        return re.sub(r"[^\w.-]+", "-", name).strip("-") or "model"

    def model(self) -> GPT:
        return build_model(self.shape, self.weights, self.origin.description).eval()


def load_exportable_model(source: str, data_dir: str = "") -> ExportableModel:
    """`source`: as for `glass sample`."""
    loaded = load_init_from(source, which="best")
    tokenizer = find_tokenizer(loaded, data_dir)
    rows = tokenizer.vocab_size
    return ExportableModel(
        loaded,
        dataclasses.replace(loaded.model_config, vocab_size=rows),
        strip_vocab_padding(loaded.weights, rows),
        tokenizer,
        loaded.model_config.vocab_size - rows,
    )


def strip_vocab_padding(weights: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    return {
        name: tensor[:rows].contiguous() if name in _VOCAB_WEIGHTS else tensor
        for name, tensor in weights.items()
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def disk_errors_as_os_error() -> Iterator[None]:
    """safetensors and torch raise their own exceptions when the disk is full. Raises an OSError instead."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        raise OSError(f"the disk may be full; {error_type_and_message(error)}") from error


# --- hf ---


def write_huggingface(folder: Path, exportable: ExportableModel) -> None:
    shape, tokenizer = exportable.shape, exportable.tokenizer
    convert = to_transformers if shape.arch == "gpt2" else to_nanochat
    weights = convert(exportable.weights, shape)
    with disk_errors_as_os_error():
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = _transformers_config(shape)
    config |= {"initializer_range": 0.02, "torch_dtype": "float32", "use_cache": True}
    config["tie_word_embeddings"] = "lm_head.weight" not in weights
    special_ids = {"bos_token_id": tokenizer.eot, "eos_token_id": tokenizer.eot}
    write_json(folder / CONFIG_FILE, config | special_ids)
    write_json(folder / "generation_config.json", special_ids)
    (folder / TOKENIZER_JSON).write_bytes(dump_tokenizer(tokenizer))
    special_tokens = ("bos_token", "eos_token", "unk_token") if tokenizer.eot is not None else ()
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # uses tokenizer.json as it is
        "model_max_length": shape.block_size,
        "clean_up_tokenization_spaces": False,
    } | dict.fromkeys(special_tokens, END_OF_TEXT)
    write_json(folder / "tokenizer_config.json", tokenizer_config)


def _transformers_config(shape: GPTConfig) -> dict[str, Any]:
    if shape.arch == "gpt2":
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
    # Every setting is written: some of NanoChat's defaults differ from ours.
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
        "attention_dropout": shape.dropout,  # NanoChat has no other dropout
        "attention_bias": False,
        "rms_norm_eps": NORM_EPSILON["rms"],
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "final_logit_softcapping": None,
        "pad_token_id": None,  # the default is token 1, whose embedding would then never be trained
    }


# --- glass ---


def write_glass(folder: Path, exportable: ExportableModel) -> None:
    shape = exportable.shape
    weights = {
        name: tensor.contiguous()
        for name, tensor in exportable.weights.items()
        if not (shape.tie_embeddings and name == "lm_head.weight")
    }
    with disk_errors_as_os_error():
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    write_json(folder / CONFIG_FILE, {"model_type": GLASSGPT_MODEL_TYPE, **dataclasses.asdict(shape)})
    (folder / TOKENIZER_JSON).write_bytes(dump_tokenizer(exportable.tokenizer))


# --- nanogpt ---

_MODEL_ARGS = ("n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size", "dropout")
# Settings that nanoGPT's train.py has too, without device, paths and logging, which a new run chooses.
_TRAIN_SETTINGS = (
    "dataset", "gradient_accumulation_steps", "batch_size", "learning_rate", "max_iters", "weight_decay",
    "beta1", "beta2", "grad_clip", "decay_lr", "eval_interval", "log_interval", "always_save_checkpoint",
)  # fmt: skip
_UNMEASURED_VAL_LOSS = 1e9  # nanoGPT's best_val_loss before the first evaluation


def nanogpt_problems(exportable: ExportableModel) -> list[str]:
    """Why nanoGPT's model.py cannot run this model."""
    shape, name = exportable.shape, exportable.origin.description
    if shape.arch != "gpt2":
        return [
            f"--to=nanogpt is for arch=gpt2, and {name} has arch={shape.arch}, which nanoGPT's model.py does "
            "not support; --to=hf writes it for transformers, --to=glass as safetensors with our names"
        ]
    problems = []
    if not shape.tie_embeddings:
        problems.append(f"{name} has tie_embeddings=False, and nanoGPT's model.py ties them")
    if shape.activation == "relu2":
        problems.append(f"{name} has activation=relu2, and nanoGPT's model.py computes GELU")
    return [f"{problem}; --to=hf supports it" for problem in problems]


def write_nanogpt(folder: Path, exportable: ExportableModel) -> None:
    loaded, tokenizer, config = exportable.origin, exportable.tokenizer, _train_config(exportable)
    val_loss = loaded.val_loss
    batch_size = config.batch_size or DEFAULT_BATCH_SIZE
    if config.batch_tokens is None:
        micro_steps = config.gradient_accumulation_steps or 1
    else:
        micro_steps = max(1, config.batch_tokens // (config.block_size * batch_size))
    model_args = {name: getattr(exportable.shape, name) for name in _MODEL_ARGS}
    schedule = schedule_of(config)
    derived = {
        "dataset": dataset_name(exportable),
        "gradient_accumulation_steps": micro_steps,
        "batch_size": batch_size,
        "warmup_iters": schedule.warmup_iters,
        "lr_decay_iters": schedule.decay_iters,
        "min_lr": schedule.min_lr,
    }
    shape = {name: value for name, value in model_args.items() if name != "vocab_size"}
    content: dict[str, Any] = {
        "model": {name: tensor.clone() for name, tensor in exportable.weights.items()},
        "model_args": model_args,
        "iter_num": loaded.iter or 0,
        "best_val_loss": val_loss
        if val_loss is not None and math.isfinite(val_loss)
        else _UNMEASURED_VAL_LOSS,
        "config": {name: getattr(config, name) for name in _TRAIN_SETTINGS} | derived | shape,
    }
    adamw = adamw_state(exportable)
    if adamw is not None:
        content["optimizer"] = _nanogpt_optimizer_state(exportable, adamw, config)
    with disk_errors_as_os_error():
        torch.save(content, folder / NANOGPT_CKPT_FILE)
    if not needs_meta(tokenizer):
        return
    # meta.pkl has the text of each id. sample.py encodes a prompt character by character.
    if isinstance(tokenizer, ByteTokenizer):
        texts = [chr(byte) for byte in range(256)]
    else:
        token_bytes = (tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size))
        texts = [piece.decode("utf-8", errors="replace") for piece in token_bytes]
    stoi: dict[str, int] = {}
    for id, text in enumerate(texts):
        stoi.setdefault(text, id)
    with (folder / META_FILE).open("wb") as file:
        pickle.dump({"vocab_size": len(texts), "itos": dict(enumerate(texts)), "stoi": stoi}, file)


def needs_meta(tokenizer: Tokenizer) -> bool:
    return tokenizer.name != "gpt2"


def _train_config(exportable: ExportableModel) -> TrainConfig:
    return TrainConfig(**known_settings(exportable.origin.settings))


def dataset_name(exportable: ExportableModel) -> str:
    """nanoGPT's sample.py looks for meta.pkl in data/NAME."""
    if not exportable.origin.settings:
        return exportable.name
    return dataset_folder(_train_config(exportable)).name


def adamw_state(exportable: ExportableModel) -> dict[str, Tensor] | None:
    """AdamW's state of every parameter, if the checkpoint has it. nanoGPT cannot use Muon's."""
    state = exportable.origin.optimizer
    names = [name for name in exportable.weights if name != "lm_head.weight"]
    return state if all(f"{name}:{key}" in state for name in names for key in ADAMW_STATE_KEYS) else None


def _nanogpt_optimizer_state(
    exportable: ExportableModel, adamw: dict[str, Tensor], config: TrainConfig
) -> dict[str, Any]:
    """The state dict of nanoGPT's AdamW: one group of matrices, one of vectors, each in the model's order."""
    parameters = dict(exportable.model().named_parameters())
    matrices = [name for name, parameter in parameters.items() if parameter.dim() >= 2]
    vectors = [name for name in parameters if name not in matrices]
    groups = [
        {"params": [parameters[name] for name in matrices], "weight_decay": config.weight_decay},
        {"params": [parameters[name] for name in vectors], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
    )
    for name, parameter in parameters.items():
        state = {key: adamw[f"{name}:{key}"] for key in ADAMW_STATE_KEYS}
        for key in ("exp_avg", "exp_avg_sq"):
            state[key] = strip_vocab_padding({name: state[key]}, exportable.shape.vocab_size)[name]
        optimizer.state[parameter] = state
    return optimizer.state_dict()


def with_exact_gelu(exportable: ExportableModel) -> ExportableModel:
    """The model as nanoGPT computes it: with the exact GELU, also for GPT-2's own weights."""
    return dataclasses.replace(exportable, shape=dataclasses.replace(exportable.shape, activation="gelu"))
