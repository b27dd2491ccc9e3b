"""GPT-2 as OpenAI trained it, from Hugging Face's `config.json` and `model.safetensors`.

A folder with these two files will do, wherever it came from. The four known names are looked for in Hugging
Face's cache, and downloaded if they are not there. A `pytorch_model.bin` is never opened: it is a pickle, and
loading one can execute anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from glassgpt.data.dataset import user_path
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPTConfig
from glassgpt.model.weights import from_transformers

GPT2_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
CONFIG, WEIGHTS = "config.json", "model.safetensors"
_TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json")
_PROBE_SECONDS = 5.0
_CACHE_VARIABLES = {
    "HF_HUB_CACHE": "",
    "HUGGINGFACE_HUB_CACHE": "",
    "HF_HOME": "hub",
    "XDG_CACHE_HOME": "huggingface/hub",
}
_HOMES = ("openai-community/", "")  # where the four live now, and where they were until 2024


# --- finding ---


def find_pretrained(name: str) -> Path:
    """The folder that `name` means: a path, or one of GPT2_NAMES, which may be downloaded now."""
    folder = user_path(name)
    if name in GPT2_NAMES and not (folder / CONFIG).is_file():
        return _in_cache(name) or _download(name)
    missing = [file for file in (CONFIG, WEIGHTS) if not (folder / file).is_file()]
    if missing:
        raise UserError(f"{name} has no {' and no '.join(missing)}: {_what_is_needed(folder)}")
    return folder


def _what_is_needed(folder: Path) -> str:
    if (folder / "pytorch_model.bin").is_file():
        return f"pytorch_model.bin is not read, as loading it could execute anything; get {WEIGHTS} instead"
    return f"give a folder with both, or one of {', '.join(GPT2_NAMES)}"


def _in_cache(name: str) -> Path | None:
    for home in _HOMES:
        repository = _cache_folder() / f"models--{home}{name}".replace("/", "--")
        for snapshot in _snapshots(repository):
            if (snapshot / CONFIG).is_file() and (snapshot / WEIGHTS).is_file():
                return snapshot
    return None


def _cache_folder() -> Path:
    """Where Hugging Face's libraries keep downloads; the first of their variables that is set decides."""
    for variable, below in _CACHE_VARIABLES.items():
        if os.environ.get(variable):
            return user_path(os.environ[variable]) / below
    return user_path("~/.cache/huggingface/hub")


def _snapshots(repository: Path) -> list[Path]:
    """The one that `main` stood for at the last download first, then any other."""
    try:
        main = (repository / "refs" / "main").read_text().strip()
    except (OSError, ValueError):
        main = ""
    return sorted(repository.glob("snapshots/*/"), key=lambda path: (path.name != main, path.name))


def _download(name: str) -> Path:
    repository = _HOMES[0] + name
    try:
        from huggingface_hub import model_info, snapshot_download

        model_info(repository, timeout=_PROBE_SECONDS)  # without a network the download would retry for long
        files = [CONFIG, WEIGHTS, *_TOKENIZER_FILES]
        folder = snapshot_download(repository, allow_patterns=files, cache_dir=_cache_folder())
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise UserError(
            f"the weights of {name} are not on this machine and could not be downloaded ({reason}): download "
            f"the folder with {CONFIG}, {WEIGHTS}, vocab.json and merges.txt elsewhere and give its path as "
            "--init_from=FOLDER"
        ) from error
    return find_pretrained(str(folder))


# --- reading ---

_SIZES = ("vocab_size", "n_positions", "n_layer", "n_head", "n_embd")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_ACTIVATIONS = ("gelu_new", "gelu")  # called the same here and there
# What our GPT computes. Each is also the default in `transformers`, so a file need not say it.
_IMPLEMENTED: Mapping[str, Any] = {
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}


def read_pretrained(folder: Path) -> tuple[GPTConfig, dict[str, Tensor]]:
    """The model's shape, and its weights under our names, float32. All that does not fit is an error."""
    config = _read_config(folder / CONFIG)
    path = folder / WEIGHTS
    try:
        state = from_transformers(load_file(path))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from None
    problems = list(_contradictions(config, state))
    if problems:
        raise UserError([f"{path}: {problem}" for problem in problems])
    return config, {name: tensor.float() for name, tensor in state.items()}


def _read_config(path: Path) -> GPTConfig:
    try:
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path} is not a model's configuration: download it again")
    problems = list(_config_problems(settings))
    if problems:
        raise UserError([f"{path}: {problem}" for problem in problems])
    return GPTConfig(
        vocab_size=settings["vocab_size"],
        block_size=settings["n_positions"],
        n_layer=settings["n_layer"],
        n_head=settings["n_head"],
        n_embd=settings["n_embd"],
        bias=True,
        activation=settings.get("activation_function", "gelu_new"),
    )


def _config_problems(settings: Mapping[str, Any]) -> Iterator[str]:
    if settings.get("model_type") != "gpt2":
        yield f"model_type is {_short(settings.get('model_type'))}; only gpt2 can be read"
    wrong = [name for name in _SIZES if type(settings.get(name)) is not int or settings[name] < 1]
    for name in wrong:
        yield f"{name} is {_short(settings.get(name))}, not a positive whole number"
    if not wrong and settings["n_embd"] % settings["n_head"]:
        yield f"n_embd is {_short(settings['n_embd'])}, not a multiple of n_head {_short(settings['n_head'])}"
    if not wrong and settings.get("n_inner") not in (None, 4 * settings["n_embd"]):
        yield f"n_inner is {_short(settings['n_inner'])}; only 4 times n_embd is implemented"
    if settings.get("activation_function", "gelu_new") not in _ACTIVATIONS:
        yield (
            f"activation_function is {_short(settings['activation_function'])}; "
            f"only {' and '.join(_ACTIVATIONS)} are implemented"
        )
    for name, value in _IMPLEMENTED.items():
        if settings.get(name, value) != value:
            yield f"{name} is {_short(settings[name])}; only {_short(value)} is implemented"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _contradictions(config: GPTConfig, state: Mapping[str, Tensor]) -> Iterator[str]:
    """Between the two files, as far as `load_weights` would not see it, or only after building the model."""
    layers = len({name.split(".")[2] for name in state if name.startswith("transformer.h.")})
    if layers != config.n_layer:
        yield f"it has {layers} layers, but {CONFIG} says n_layer {_short(config.n_layer)}"
    tables = {"wte": ("vocab_size", config.vocab_size), "wpe": ("n_positions", config.block_size)}
    for table, (setting, rows) in tables.items():
        tensor = state.get(f"transformer.{table}.weight")
        if tensor is None:
            yield f"it has no {table}.weight"
        elif tensor.shape != (rows, config.n_embd):
            expected = f"{setting} {_short(rows)} and n_embd {_short(config.n_embd)}"
            yield f"{table}.weight is {tuple(tensor.shape)}, but {CONFIG} says {expected}"
    others = [name for name, tensor in state.items() if tensor.dtype not in _DTYPES]
    if others:
        yield f"{others[0]} is {state[others[0]].dtype}; only float32, bfloat16 and float16 are read"
    head, embedding = state.get("lm_head.weight"), state.get("transformer.wte.weight")
    if head is not None and embedding is not None and not torch.equal(head.float(), embedding.float()):
        yield "lm_head.weight is not wte.weight; only a head tied to it is implemented"
