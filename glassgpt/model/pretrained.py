"""Pretrained weights: Hugging Face's `config.json` and `model.safetensors`, of GPT-2 or NanoChat.

    config, weights = read_pretrained(find_pretrained("gpt2"))

GPT-2 is our arch=gpt2, NanoChat is our arch=modern. A model is named by:

    gpt2, gpt2-medium, gpt2-large, gpt2-xl       OpenAI's
    owner/name                                   any repository with a GPT-2 or NanoChat model
    folder                                       a folder with these two files

The weights may be in several files with an index. Names are looked up in Hugging Face's cache, and downloaded
if they are not there. A folder that `glass export --to glass` wrote is read too. A `pytorch_model.bin` is
never opened: it is a pickle, and loading one can execute anything.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from glassgpt.data.digests import check_recorded_sha256
from glassgpt.errors import UserError, error_type_and_message, raise_if_any
from glassgpt.files import expand_user_path, read_small_file, regular_file_opener
from glassgpt.model.gpt import ROPE_THETA, GPTConfig
from glassgpt.model.ops import NORM_EPSILON
from glassgpt.model.weights import (
    WEIGHT_DTYPES,
    from_nanochat,
    from_transformers,
    read_gpt_config,
    weight_problems,
    with_tied_head,
)

GPT2_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"
_WEIGHT_SHARDS_GLOB = "model-*-of-*.safetensors"  # the usual names in an index
_TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json")
_REACHABLE_TIMEOUT_S = 5.0
_CACHE_VARIABLES = {  # environment variable: subfolder of its value
    "HF_HUB_CACHE": "",
    "HUGGINGFACE_HUB_CACHE": "",
    "HF_HOME": "hub",
    "XDG_CACHE_HOME": "huggingface/hub",
}
_GPT2_OWNERS = ("openai-community/", "")  # of OpenAI's four: now, and until 2024
_REPOSITORY_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


# --- where the files are ---


def is_repository(name: str) -> bool:
    """Whether `name` is `owner/name` on Hugging Face, and `owner` is not a local folder."""
    return bool(_REPOSITORY_PATTERN.fullmatch(name)) and not expand_user_path(name.partition("/")[0]).exists()


def find_pretrained(name: str) -> Path:
    """The folder of a path or of a name, which is downloaded if it is not in the cache."""
    folder = expand_user_path(name)
    has_config = (folder / CONFIG_FILE).is_file()
    if name in GPT2_NAMES and not has_config:
        return _in_cache(*(owner + name for owner in _GPT2_OWNERS)) or _download(_GPT2_OWNERS[0] + name, name)
    if is_repository(name):
        return _in_cache(name) or _download(name, name)
    if has_config:
        _read_config(folder / CONFIG_FILE)  # first: for another architecture, missing weights do not matter
    if has_config_and_weights(folder):
        return folder
    missing = [] if has_config else [CONFIG_FILE]
    missing += [] if _has_weights(folder) else [WEIGHTS_FILE]
    fix = f"give a folder with both, or one of {', '.join(GPT2_NAMES)}"
    if (folder / "pytorch_model.bin").is_file():
        fix = (
            f"pytorch_model.bin is not read, as loading it could execute anything; get {WEIGHTS_FILE} instead"
        )
    raise UserError(f"{name} has no {' and no '.join(missing)}: {fix}")


def has_config_and_weights(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() and _has_weights(folder)


def _has_weights(folder: Path) -> bool:
    return (folder / WEIGHTS_FILE).is_file() or (folder / WEIGHTS_INDEX_FILE).is_file()


def _in_cache(*repositories: str) -> Path | None:
    """A complete snapshot in Hugging Face's cache: the last downloaded `main` first, then any other."""
    for name in repositories:
        repository = _cache_folder() / f"models--{name}".replace("/", "--")
        try:
            main = (repository / "refs" / "main").read_text().strip()
        except (OSError, ValueError):
            main = ""
        snapshots = repository.glob("snapshots/*/")
        for snapshot in sorted(snapshots, key=lambda path: (path.name != main, path.name)):
            if has_config_and_weights(snapshot) and all(path.is_file() for path in _weight_files(snapshot)):
                return snapshot
    return None


def _cache_folder() -> Path:
    """Hugging Face's cache; the first of its environment variables that is set decides."""
    for variable, subfolder in _CACHE_VARIABLES.items():
        if os.environ.get(variable):
            return expand_user_path(os.environ[variable]) / subfolder
    return expand_user_path("~/.cache/huggingface/hub")


def _download(repository: str, name: str) -> Path:
    """With huggingface_hub, which handles tokens, proxies and interrupted downloads."""
    try:
        from huggingface_hub import model_info, snapshot_download
    except ImportError:
        raise UserError(
            f"the weights of {name} are not on this machine, and downloading them needs huggingface_hub: "
            f'pip install "glassgpt[data]"; or {_BRING_FILES_HINT}'
        ) from None
    try:
        model_info(repository, timeout=_REACHABLE_TIMEOUT_S)  # offline, the download would retry for long
        folder = Path(snapshot_download(repository, allow_patterns=[CONFIG_FILE], cache_dir=_cache_folder()))
        if (folder / CONFIG_FILE).is_file():
            _read_config(folder / CONFIG_FILE)  # refuse another architecture before downloading gigabytes
        folder = Path(
            snapshot_download(repository, allow_patterns=_DOWNLOADED_FILES, cache_dir=_cache_folder())
        )
    except UserError:
        raise
    except Exception as error:
        reason = error_type_and_message(error)[:200]
        raise UserError(
            f"the weights of {name} are not on this machine and could not be downloaded ({reason}): "
            f"{_BRING_FILES_HINT}{_HINTS_BY_ERROR.get(type(error).__name__, '')}"
        ) from error
    return find_pretrained(str(folder))


_DOWNLOADED_FILES = [CONFIG_FILE, WEIGHTS_FILE, WEIGHTS_INDEX_FILE, _WEIGHT_SHARDS_GLOB, *_TOKENIZER_FILES]
_BRING_FILES_HINT = (
    f"download the folder with {CONFIG_FILE}, {WEIGHTS_FILE}, vocab.json and merges.txt elsewhere and give "
    "its path as --init_from=FOLDER"
)
_TOKEN_HINT = "; if it is private or gated, log in with `hf auth login` or set HF_TOKEN"
_HINTS_BY_ERROR = {  # by class name, as huggingface_hub is optional
    "RepositoryNotFoundError": f"; look at how the repository is written: OWNER/NAME{_TOKEN_HINT}",
    "GatedRepoError": _TOKEN_HINT,
    "OfflineModeIsEnabled": "; or unset HF_HUB_OFFLINE",
}


# --- reading them ---

# Name in `transformers`: ours.
_ACTIVATIONS = {"gelu_new": "gelu_new", "gelu": "gelu", "relu2": "relu2", "gelu_pytorch_tanh": "gelu_new"}


@dataclass(frozen=True)
class _HFArchitecture:
    """An architecture of `transformers`: what its config.json says, and what of that our GPT implements."""

    arch: str
    keys: Mapping[str, str]  # by field of GPTConfig
    defaults: Mapping[str, Any]  # where config.json says nothing
    implemented: Callable[[GPTConfig], Mapping[str, Sequence[Any]]]  # values by key; the first by default


_ROPE = {"rope_type": "default", "rope_theta": ROPE_THETA}
_HF_ARCHITECTURES = {
    "gpt2": _HFArchitecture(
        "gpt2",
        {name: name for name in ("vocab_size", "n_layer", "n_head", "n_embd")}
        | {
            "block_size": "n_positions",
            "activation": "activation_function",
            "tie_embeddings": "tie_word_embeddings",
        },
        {"activation_function": "gelu_new", "tie_word_embeddings": True},
        lambda config: {
            "n_inner": (None, 4 * config.n_embd),
            "layer_norm_epsilon": (NORM_EPSILON["layer"],),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
    ),
    "nanochat": _HFArchitecture(
        "modern",
        {
            "vocab_size": "vocab_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_embd": "hidden_size",
            "block_size": "max_position_embeddings",
            "activation": "hidden_act",
            "tie_embeddings": "tie_word_embeddings",
        },
        {
            "hidden_act": "relu2",
            "tie_word_embeddings": False,
            "intermediate_size": 8192,
            "rms_norm_eps": 1e-6,
            "final_logit_softcapping": 15.0,
        },
        lambda config: {
            "intermediate_size": (4 * config.n_embd,),
            "num_key_value_heads": (None, config.n_head),
            "head_dim": (None, config.n_embd // config.n_head),
            "rms_norm_eps": (NORM_EPSILON["rms"],),
            "final_logit_softcapping": (None,),
            "attention_bias": (False,),
            "rope_parameters": (None, _ROPE),  # since transformers 5; the other two before
            "rope_scaling": (None, _ROPE),
            "rope_theta": (None, ROPE_THETA),
        },
    ),
}
GLASSGPT_MODEL_TYPE = "glassgpt"  # model_type of a folder that `glass export --to glass` wrote


def read_pretrained(folder: Path) -> tuple[GPTConfig, dict[str, Tensor]]:
    """The model's config and its float32 weights under our names. Whatever does not fit is an error."""
    model_type, config = _read_config(folder / CONFIG_FILE)
    stored: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        try:
            open(path, "rb", opener=regular_file_opener).close()  # refuses a pipe, which would block
            check_recorded_sha256(path)
            stored |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path} cannot be read ({error}): download it again") from None
    if model_type == GLASSGPT_MODEL_TYPE:
        state = with_tied_head(stored)
    else:
        state = from_transformers(stored) if model_type == "gpt2" else from_nanochat(stored, config)
    problems = weight_problems(config, state)
    unreadable = [name for name, tensor in state.items() if tensor.dtype not in WEIGHT_DTYPES]
    if unreadable:
        dtype = state[unreadable[0]].dtype
        problems.append(f"{unreadable[0]} is {dtype}; only float32, bfloat16 and float16 are read")
    if not config.tie_embeddings and "lm_head.weight" not in stored:
        problems.append(f"it has no lm_head.weight, but {CONFIG_FILE} says that it is not the embedding")
    if problems:
        path = folder / (WEIGHTS_FILE if (folder / WEIGHTS_FILE).is_file() else WEIGHTS_INDEX_FILE)
        raise UserError([f"{path}: {problem}" for problem in problems])
    return config, {name: tensor.float() for name, tensor in state.items()}


def _weight_files(folder: Path) -> list[Path]:
    """model.safetensors, or the files that the index names."""
    if (folder / WEIGHTS_FILE).is_file() or not (folder / WEIGHTS_INDEX_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    path = folder / WEIGHTS_INDEX_FILE
    weight_map = _read_json_object(path).get("weight_map")
    names = sorted({str(name) for name in weight_map.values()}) if isinstance(weight_map, dict) else []
    # Only files beside the index: a name must not lead out of the folder.
    if not names or any(not re.fullmatch(r"[\w.-]+\.safetensors", name) for name in names):
        raise UserError(f"{path} does not say which .safetensors files hold the weights: download it again")
    return [folder / name for name in names]


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        check_recorded_sha256(path)
        content = json.loads(read_small_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a model's configuration: download it again")
    return content


def _read_config(path: Path) -> tuple[str, GPTConfig]:
    """`model_type` and the model. For an unknown architecture that is the only problem reported."""
    settings = _read_json_object(path)
    model_type = settings.get("model_type")
    architecture = _HF_ARCHITECTURES.get(model_type) if isinstance(model_type, str) else None
    try:
        if model_type == GLASSGPT_MODEL_TYPE:
            names = {field.name for field in dataclasses.fields(GPTConfig)}
            values = {name: value for name, value in settings.items() if name in names}
            return GLASSGPT_MODEL_TYPE, read_gpt_config(values | {"dropout": 0.0})
        if architecture is None:
            raise UserError(
                f"model_type is {_json(model_type)}, another architecture; only models of GPT-2's kind "
                '(model_type "gpt2") and of NanoChat\'s ("nanochat") can be read'
            )
        known = {**architecture.defaults, **settings}
        values = {name: known[key] for name, key in architecture.keys.items() if key in known}
        if isinstance(values["activation"], str):
            values["activation"] = _ACTIVATIONS.get(values["activation"], values["activation"])
        config = read_gpt_config(values | {"arch": architecture.arch, "bias": architecture.arch == "gpt2"})
        problems = []
        head_dim = config.n_embd // config.n_head
        if architecture.arch == "modern" and head_dim % 2:
            problems.append(f"it has heads of {head_dim} channels; only even ones can be rotated")
        for key, implemented in architecture.implemented(config).items():
            value = known.get(key, implemented[0])
            if (_ROPE | value if isinstance(value, dict) else value) not in implemented:
                problems.append(f"{key} is {_json(value)}; only {_json(implemented[-1])} is implemented")
        raise_if_any(problems)
        return str(model_type), config
    except UserError as error:
        raise UserError([f"{path}: {problem}" for problem in error.problems]) from None


def _json(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
