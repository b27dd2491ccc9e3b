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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from glassgpt.data.digests import check_recorded_sha256
from glassgpt.errors import UserError, error_type_and_message
from glassgpt.files import expand_user_path, read_small_file, regular_file_opener
from glassgpt.model.gpt import ROPE_THETA, GPTConfig
from glassgpt.model.ops import NORM_EPSILON
from glassgpt.model.weights import WEIGHT_DTYPES, from_nanochat, from_transformers, with_tied_head

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
        _read_settings(folder / CONFIG_FILE)  # first: for another architecture, missing weights do not matter
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
            _read_settings(folder / CONFIG_FILE)  # refuse another architecture before downloading gigabytes
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
    """An architecture of `transformers`: the keys of its config.json and their defaults."""

    arch: str
    size_keys: Mapping[str, str]  # our name: its key
    mlp_width: tuple[str, int | None]  # key and default; None means 4 times n_embd
    activation: tuple[str, str]  # key and default
    ties_embeddings: bool  # by default
    embedding: str  # its name of wte
    required_settings: Mapping[str, tuple[Any, Any]]  # key: its default, and the only value that our GPT has


_HF_ARCHITECTURES = {
    "gpt2": _HFArchitecture(
        "gpt2",
        {name: name for name in ("vocab_size", "n_layer", "n_head", "n_embd")}
        | {"block_size": "n_positions"},
        ("n_inner", None),
        ("activation_function", "gelu_new"),
        True,
        "wte",
        {
            "layer_norm_epsilon": (1e-5, NORM_EPSILON["layer"]),
            "scale_attn_weights": (True, True),
            "scale_attn_by_inverse_layer_idx": (False, False),
            "add_cross_attention": (False, False),
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
        },
        ("intermediate_size", 8192),
        ("hidden_act", "relu2"),
        False,
        "embed_tokens",
        {
            "rms_norm_eps": (1e-6, NORM_EPSILON["rms"]),
            "final_logit_softcapping": (15.0, None),
            "attention_bias": (False, False),
        },
    ),
}
GLASSGPT_MODEL_TYPE = "glassgpt"  # model_type of a folder that `glass export --to glass` wrote


def read_pretrained(folder: Path) -> tuple[GPTConfig, dict[str, Tensor]]:
    """The model's config and its float32 weights under our names. Whatever does not fit is an error."""
    settings = _read_settings(folder / CONFIG_FILE)
    architecture = _HF_ARCHITECTURES.get(settings["model_type"])
    if architecture is None:
        config = _read_glassgpt_config(folder / CONFIG_FILE, settings)
    else:
        config = GPTConfig(
            **{name: settings[key] for name, key in architecture.size_keys.items()},
            bias=architecture.arch == "gpt2",
            arch=architecture.arch,
            activation=_ACTIVATIONS[settings.get(*architecture.activation)],
            tie_embeddings=settings.get("tie_word_embeddings", architecture.ties_embeddings),
        )
    stored: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        try:
            open(path, "rb", opener=regular_file_opener).close()  # refuses a pipe, which would block
            check_recorded_sha256(path)
            stored |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path} cannot be read ({error}): download it again") from None
    if architecture is None:
        state = with_tied_head(stored)
    else:
        state = from_transformers(stored) if architecture.arch == "gpt2" else from_nanochat(stored, config)
    problems = list(_weight_problems(config, state, architecture or _HF_ARCHITECTURES["gpt2"]))
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


def _read_settings(path: Path) -> dict[str, Any]:
    """config.json, checked. For an unknown architecture that is the only problem reported."""
    settings = _read_json_object(path)
    model_type = settings.get("model_type")
    if model_type == GLASSGPT_MODEL_TYPE:
        return settings
    if not isinstance(model_type, str) or model_type not in _HF_ARCHITECTURES:
        raise UserError(
            f"{path}: model_type is {_json(model_type)}, another architecture; only models of GPT-2's kind "
            '(model_type "gpt2") and of NanoChat\'s ("nanochat") can be read'
        )
    problems = list(_config_problems(settings, _HF_ARCHITECTURES[model_type]))
    if problems:
        raise UserError([f"{path}: {problem}" for problem in problems])
    return settings


_SIZE_FIELDS = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")


def _read_glassgpt_config(path: Path, settings: Mapping[str, Any]) -> GPTConfig:
    """Reads what `glass export --to glass` wrote: the fields of GPTConfig by name."""
    values = {field.name: settings.get(field.name, field.default) for field in dataclasses.fields(GPTConfig)}
    sizes = [values[name] for name in _SIZE_FIELDS]
    valid = (
        all(type(size) is int and 0 < size < 10**9 for size in sizes)
        and values["n_embd"] % values["n_head"] == 0
        and type(values["bias"]) is type(values["tie_embeddings"]) is bool
        and values["arch"] in ("gpt2", "modern")
        and values["activation"] in ("gelu", "gelu_new", "relu2")
    )
    if not valid:
        raise UserError(f"{path} does not describe a model as `glass export` does: export it again")
    return GPTConfig(**values | {"dropout": 0.0})


def _config_problems(settings: Mapping[str, Any], architecture: _HFArchitecture) -> Iterator[str]:
    """Settings that are malformed, or that our GPT does not implement."""
    size_keys = architecture.size_keys.values()
    bad_sizes = [key for key in size_keys if type(settings.get(key)) is not int or settings[key] < 1]
    for key in bad_sizes:
        yield f"{key} is {_json(settings.get(key))}, not a positive whole number"
    if not bad_sizes:
        yield from _size_problems(settings, architecture)
    activation = settings.get(*architecture.activation)
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        key, known = architecture.activation[0], ", ".join(_ACTIVATIONS)
        yield f"{key} is {_json(activation)}; only {known} are implemented"
    if type(settings.get("tie_word_embeddings", architecture.ties_embeddings)) is not bool:
        yield f"tie_word_embeddings is {_json(settings['tie_word_embeddings'])}, neither true nor false"
    for key, (default, required) in architecture.required_settings.items():
        if settings.get(key, default) != required:
            yield f"{key} is {_json(settings.get(key, default))}; only {_json(required)} is implemented"
    if architecture.arch != "modern":
        return
    # RoPE: `rope_parameters` since transformers 5, the other two before.
    supported = {"rope_type": "default", "rope_theta": ROPE_THETA}
    for key in ("rope_parameters", "rope_scaling"):
        rope = settings.get(key)
        if rope is not None and not (isinstance(rope, dict) and supported | rope == supported):
            yield f"{key} is {_json(rope)}; only {json.dumps(supported)} is implemented"
    if settings.get("rope_theta", ROPE_THETA) != ROPE_THETA:
        yield f"rope_theta is {_json(settings['rope_theta'])}; only {_json(ROPE_THETA)} is implemented"


def _size_problems(settings: Mapping[str, Any], architecture: _HFArchitecture) -> Iterator[str]:
    """Widths of heads and MLP that our GPT does not implement."""
    width_key, heads_key = architecture.size_keys["n_embd"], architecture.size_keys["n_head"]
    n_embd, n_head = settings[width_key], settings[heads_key]
    if n_embd % n_head:
        yield f"{width_key} is {_json(n_embd)}, not a multiple of {heads_key} {_json(n_head)}"
    mlp_width = settings.get(*architecture.mlp_width)
    if mlp_width != 4 * n_embd and not (mlp_width is architecture.mlp_width[1] is None):
        yield f"{architecture.mlp_width[0]} is {_json(mlp_width)}; only 4 times {width_key} is implemented"
    if architecture.arch == "gpt2" or n_embd % n_head:
        return
    if n_embd // n_head % 2:
        yield f"{width_key} / {heads_key} is {n_embd // n_head}; only even heads can be rotated"
    for key, value in (("num_key_value_heads", n_head), ("head_dim", n_embd // n_head)):
        if settings.get(key) not in (None, value):
            only = f"only {_json(value)} is implemented with this {heads_key}"
            yield f"{key} is {_json(settings[key])}; {only}"


def _json(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _weight_problems(
    config: GPTConfig, state: Mapping[str, Tensor], architecture: _HFArchitecture
) -> Iterator[str]:
    """Contradictions between config.json and the weights that `load_weights` would not find, or only late."""
    layers = len({name.split(".")[2] for name in state if name.startswith("transformer.h.")})
    if layers != config.n_layer:
        stated = f"{architecture.size_keys['n_layer']} {_json(config.n_layer)}"
        yield f"it has {layers} layers, but {CONFIG_FILE} says {stated}"
    embeddings = {"wte": (architecture.embedding, "vocab_size", config.vocab_size)}
    if config.arch == "gpt2":
        embeddings["wpe"] = ("wpe", architecture.size_keys["block_size"], config.block_size)
    for our_name, (name, key, rows) in embeddings.items():
        tensor = state.get(f"transformer.{our_name}.weight")
        if tensor is None:
            yield f"it has no {name}.weight"
        elif tensor.shape != (rows, config.n_embd):
            stated = f"{key} {_json(rows)} and {architecture.size_keys['n_embd']} {_json(config.n_embd)}"
            yield f"{name}.weight is {tuple(tensor.shape)}, but {CONFIG_FILE} says {stated}"
    unreadable = [name for name, tensor in state.items() if tensor.dtype not in WEIGHT_DTYPES]
    if unreadable:
        name = unreadable[0]
        yield f"{name} is {state[name].dtype}; only float32, bfloat16 and float16 are read"
    head, embedding = state.get("lm_head.weight"), state.get("transformer.wte.weight")
    if head is None or embedding is None or not config.tie_embeddings:
        return
    if not torch.equal(head.float(), embedding.float()):
        name = architecture.embedding
        yield f"lm_head.weight is not {name}.weight, but {CONFIG_FILE} says that they are one"
