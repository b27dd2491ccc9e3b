"""GPT-2 as OpenAI trained it, or anybody else: Hugging Face's `config.json` and `model.safetensors`.

Two kinds of model are read: GPT-2, which is our arch=gpt2, and NanoChat, which is our arch=modern.

    gpt2, gpt2-medium, gpt2-large, gpt2-xl       OpenAI's
    owner/name                                   any repository with a model of GPT-2's or NanoChat's kind
    folder                                       the files, wherever they came from

A folder with these two files will do; the weights may be in several files with an index beside them. Names
are looked for in Hugging Face's cache, and downloaded if they are not there. A folder that `glass export --to
glass` wrote is read too. A `pytorch_model.bin` is never opened: it is a pickle, and loading one can execute
anything.
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
from glassgpt.model.fused import NORM_EPSILON
from glassgpt.model.gpt import ROPE_THETA, GPTConfig
from glassgpt.model.weights import from_nanochat, from_transformers, with_tied_head

GPT2_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
CONFIG_FILE, WEIGHTS_FILE, WEIGHTS_INDEX_FILE = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
)
_WEIGHT_SHARDS_GLOB = "model-*-of-*.safetensors"  # what the index names, as a rule
_TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json")
_PROBE_SECONDS = 5.0
_CACHE_VARIABLES = {
    "HF_HUB_CACHE": "",
    "HUGGINGFACE_HUB_CACHE": "",
    "HF_HOME": "hub",
    "XDG_CACHE_HOME": "huggingface/hub",
}
_GPT2_OWNERS = ("openai-community/", "")  # where the four live now, and where they were until 2024
_REPOSITORY_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


# --- finding ---


def is_repository(name: str) -> bool:
    """Whether it is a repository's name: `owner/name`, and nothing of the kind is a folder here."""
    return bool(_REPOSITORY_PATTERN.fullmatch(name)) and not expand_user_path(name.partition("/")[0]).exists()


def find_pretrained(name: str) -> Path:
    """The folder that `name` means: a path, or a name, and then it may be downloaded now."""
    folder = expand_user_path(name)
    if name in GPT2_NAMES and not (folder / CONFIG_FILE).is_file():
        return _in_cache(*(home + name for home in _GPT2_OWNERS)) or _download(_GPT2_OWNERS[0] + name, name)
    if is_repository(name):
        return _in_cache(name) or _download(name, name)
    if (folder / CONFIG_FILE).is_file():
        _read_settings(
            folder / CONFIG_FILE
        )  # of another kind of model it does not matter what else is missing
    if not has_config_and_weights(folder):
        missing = [
            wanted
            for wanted, there in (
                (CONFIG_FILE, (folder / CONFIG_FILE).is_file()),
                (WEIGHTS_FILE, _has_weights(folder)),
            )
            if not there
        ]
        raise UserError(f"{name} has no {' and no '.join(missing)}: {_what_is_needed(folder)}")
    return folder


def has_config_and_weights(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() and _has_weights(folder)


def _has_weights(folder: Path) -> bool:
    return (folder / WEIGHTS_FILE).is_file() or (folder / WEIGHTS_INDEX_FILE).is_file()


def _what_is_needed(folder: Path) -> str:
    if (folder / "pytorch_model.bin").is_file():
        return (
            f"pytorch_model.bin is not read, as loading it could execute anything; get {WEIGHTS_FILE} instead"
        )
    return f"give a folder with both, or one of {', '.join(GPT2_NAMES)}"


def _in_cache(*repositories: str) -> Path | None:
    for name in repositories:
        repository = _cache_folder() / f"models--{name}".replace("/", "--")
        for snapshot in _snapshots(repository):
            if has_config_and_weights(snapshot) and all(path.is_file() for path in _weight_files(snapshot)):
                return snapshot
    return None


def _cache_folder() -> Path:
    """Where Hugging Face's libraries keep downloads; the first of their variables that is set decides."""
    for variable, below in _CACHE_VARIABLES.items():
        if os.environ.get(variable):
            return expand_user_path(os.environ[variable]) / below
    return expand_user_path("~/.cache/huggingface/hub")


def _snapshots(repository: Path) -> list[Path]:
    """The one that `main` stood for at the last download first, then any other."""
    try:
        main = (repository / "refs" / "main").read_text().strip()
    except (OSError, ValueError):
        main = ""
    return sorted(repository.glob("snapshots/*/"), key=lambda path: (path.name != main, path.name))


def _download(repository: str, name: str) -> Path:
    """Through huggingface_hub, which knows about tokens, proxies and downloads that were cut off."""
    try:
        from huggingface_hub import model_info, snapshot_download
    except ImportError:
        raise UserError(
            f"the weights of {name} are not on this machine, and downloading them needs huggingface_hub: "
            f'pip install "glassgpt[data]"; or {_BRING_FILES_HINT}'
        ) from None
    try:
        model_info(repository, timeout=_PROBE_SECONDS)  # without a network the download would retry for long
        folder = Path(snapshot_download(repository, allow_patterns=[CONFIG_FILE], cache_dir=_cache_folder()))
        if (folder / CONFIG_FILE).is_file():
            _read_settings(folder / CONFIG_FILE)  # before gigabytes come that are of no use
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
    f"download the folder with {CONFIG_FILE}, {WEIGHTS_FILE}, vocab.json and merges.txt elsewhere and give its path as "
    "--init_from=FOLDER"
)
_TOKEN_HINT = "; if it is private or gated, log in with `hf auth login` or set HF_TOKEN"
_HINTS_BY_ERROR = {  # by the names of huggingface_hub's errors
    "RepositoryNotFoundError": f"; look at how the repository is written: OWNER/NAME{_TOKEN_HINT}",
    "GatedRepoError": _TOKEN_HINT,
    "OfflineModeIsEnabled": "; or unset HF_HUB_OFFLINE",
}


# --- reading ---

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# By their names in `transformers`; two of them are one.
_ACTIVATIONS = {"gelu_new": "gelu_new", "gelu": "gelu", "relu2": "relu2", "gelu_pytorch_tanh": "gelu_new"}


@dataclass(frozen=True)
class _HFArchitecture:
    """A kind of model in `transformers`: what its config.json calls our settings, and the defaults there."""

    arch: str
    size_keys: Mapping[str, str]  # by our names
    mlp_width: tuple[str, int | None]  # width of the MLP; None means 4 times n_embd
    activation: tuple[str, str]
    ties_embeddings: bool
    embedding: str
    # What our GPT computes, after the default of a file that does not say.
    required_settings: Mapping[str, tuple[Any, Any]]


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
    """The model's shape, and its weights under our names, float32. All that does not fit is an error."""
    settings = _read_settings(folder / CONFIG_FILE)
    kind = _HF_ARCHITECTURES.get(settings["model_type"])
    config = _read_glassgpt_config(folder / CONFIG_FILE, settings) if kind is None else _shape(settings, kind)
    stored = _read_weights(folder)
    if kind is None:
        state = with_tied_head(stored)
    else:
        state = from_transformers(stored) if kind.arch == "gpt2" else from_nanochat(stored, config)
    problems = list(_contradictions(config, state, kind or _HF_ARCHITECTURES["gpt2"]))
    if not config.tie_embeddings and "lm_head.weight" not in stored:
        problems.append(f"it has no lm_head.weight, but {CONFIG_FILE} says that it is not the embedding")
    if problems:
        where = folder / (WEIGHTS_FILE if (folder / WEIGHTS_FILE).is_file() else WEIGHTS_INDEX_FILE)
        raise UserError([f"{where}: {problem}" for problem in problems])
    return config, {name: tensor.float() for name, tensor in state.items()}


def _read_weights(folder: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        try:
            open(path, "rb", opener=regular_file_opener).close()  # a pipe would be waited for
            check_recorded_sha256(path)
            state |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path} cannot be read ({error}): download it again") from None
    return state


def _weight_files(folder: Path) -> list[Path]:
    """One, or those that the index names."""
    if (folder / WEIGHTS_FILE).is_file() or not (folder / WEIGHTS_INDEX_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    path = folder / WEIGHTS_INDEX_FILE
    places = _read_object(path).get("weight_map")
    names = sorted({str(name) for name in places.values()}) if isinstance(places, dict) else []
    # A name is one of a file beside the index, and no way out of the folder.
    if not names or any(not re.fullmatch(r"[\w.-]+\.safetensors", name) for name in names):
        raise UserError(f"{path} does not say which .safetensors files hold the weights: download it again")
    return [folder / name for name in names]


def _read_object(path: Path) -> dict[str, Any]:
    try:
        check_recorded_sha256(path)
        content = json.loads(read_small_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a model's configuration: download it again")
    return content


def _read_settings(path: Path) -> dict[str, Any]:
    """A model's configuration; of another architecture that is the one thing to be said."""
    settings = _read_object(path)
    kind = settings.get("model_type")
    if kind == GLASSGPT_MODEL_TYPE:
        return settings
    if not isinstance(kind, str) or kind not in _HF_ARCHITECTURES:
        raise UserError(
            f"{path}: model_type is {_short(kind)}, another architecture; only models of GPT-2's kind "
            '(model_type "gpt2") and of NanoChat\'s ("nanochat") can be read'
        )
    problems = list(_config_problems(settings, _HF_ARCHITECTURES[kind]))
    if problems:
        raise UserError([f"{path}: {problem}" for problem in problems])
    return settings


def _shape(settings: Mapping[str, Any], kind: _HFArchitecture) -> GPTConfig:
    return GPTConfig(
        **{ours: settings[theirs] for ours, theirs in kind.size_keys.items()},
        bias=kind.arch == "gpt2",
        arch=kind.arch,
        activation=_ACTIVATIONS[settings.get(*kind.activation)],
        tie_embeddings=settings.get("tie_word_embeddings", kind.ties_embeddings),
    )


_SIZE_FIELDS = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")


def _read_glassgpt_config(path: Path, settings: Mapping[str, Any]) -> GPTConfig:
    """The fields of a GPTConfig, by their names."""
    given = {field.name: settings.get(field.name, field.default) for field in dataclasses.fields(GPTConfig)}
    sizes = [given[name] for name in _SIZE_FIELDS]
    good = (
        all(type(size) is int and 0 < size < 10**9 for size in sizes)
        and given["n_embd"] % given["n_head"] == 0
        and type(given["bias"]) is type(given["tie_embeddings"]) is bool
        and given["arch"] in ("gpt2", "modern")
        and given["activation"] in ("gelu", "gelu_new", "relu2")
    )
    if not good:
        raise UserError(f"{path} does not describe a model as `glass export` does: export it again")
    return GPTConfig(**given | {"dropout": 0.0})


def _config_problems(settings: Mapping[str, Any], kind: _HFArchitecture) -> Iterator[str]:
    wrong = [
        name for name in kind.size_keys.values() if type(settings.get(name)) is not int or settings[name] < 1
    ]
    for name in wrong:
        yield f"{name} is {_short(settings.get(name))}, not a positive whole number"
    if not wrong:
        yield from _size_problems(settings, kind)
    activation = settings.get(*kind.activation)
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        name, known = kind.activation[0], ", ".join(_ACTIVATIONS)
        yield f"{name} is {_short(activation)}; only {known} are implemented"
    if type(settings.get("tie_word_embeddings", kind.ties_embeddings)) is not bool:
        yield f"tie_word_embeddings is {_short(settings['tie_word_embeddings'])}, neither true nor false"
    for name, (default, value) in kind.required_settings.items():
        if settings.get(name, default) != value:
            yield f"{name} is {_short(settings.get(name, default))}; only {_short(value)} is implemented"
    if kind.arch == "modern":
        yield from _rope_problems(settings)


def _size_problems(settings: Mapping[str, Any], kind: _HFArchitecture) -> Iterator[str]:
    width, heads = kind.size_keys["n_embd"], kind.size_keys["n_head"]
    n_embd, n_head = settings[width], settings[heads]
    if n_embd % n_head:
        yield f"{width} is {_short(n_embd)}, not a multiple of {heads} {_short(n_head)}"
    inner = settings.get(*kind.mlp_width)
    if inner != 4 * n_embd and not (inner is kind.mlp_width[1] is None):
        yield f"{kind.mlp_width[0]} is {_short(inner)}; only 4 times {width} is implemented"
    if kind.arch == "gpt2" or n_embd % n_head:
        return
    if n_embd // n_head % 2:
        yield f"{width} / {heads} is {n_embd // n_head}; only even heads can be rotated"
    for name, value in (("num_key_value_heads", n_head), ("head_dim", n_embd // n_head)):
        if settings.get(name) not in (None, value):
            yield f"{name} is {_short(settings[name])}; only {_short(value)} is implemented with this {heads}"


def _rope_problems(settings: Mapping[str, Any]) -> Iterator[str]:
    """Under its name since transformers 5, or the older two."""
    usual = {"rope_type": "default", "rope_theta": ROPE_THETA}
    for name in ("rope_parameters", "rope_scaling"):
        rope = settings.get(name)
        if rope is not None and not (isinstance(rope, dict) and usual | rope == usual):
            yield f"{name} is {_short(rope)}; only {json.dumps(usual)} is implemented"
    if settings.get("rope_theta", ROPE_THETA) != ROPE_THETA:
        yield f"rope_theta is {_short(settings['rope_theta'])}; only {_short(ROPE_THETA)} is implemented"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _contradictions(config: GPTConfig, state: Mapping[str, Tensor], kind: _HFArchitecture) -> Iterator[str]:
    """Between the two files, as far as `load_weights` would not see it, or only after building the model."""
    layers = len({name.split(".")[2] for name in state if name.startswith("transformer.h.")})
    if layers != config.n_layer:
        yield f"it has {layers} layers, but {CONFIG_FILE} says {kind.size_keys['n_layer']} {_short(config.n_layer)}"
    tables = {"wte": (kind.embedding, "vocab_size", config.vocab_size)}
    if config.arch == "gpt2":
        tables["wpe"] = ("wpe", kind.size_keys["block_size"], config.block_size)
    for table, (name, setting, rows) in tables.items():
        tensor = state.get(f"transformer.{table}.weight")
        if tensor is None:
            yield f"it has no {name}.weight"
        elif tensor.shape != (rows, config.n_embd):
            expected = f"{setting} {_short(rows)} and {kind.size_keys['n_embd']} {_short(config.n_embd)}"
            yield f"{name}.weight is {tuple(tensor.shape)}, but {CONFIG_FILE} says {expected}"
    others = [name for name, tensor in state.items() if tensor.dtype not in _DTYPES]
    if others:
        yield f"{others[0]} is {state[others[0]].dtype}; only float32, bfloat16 and float16 are read"
    head, embedding = state.get("lm_head.weight"), state.get("transformer.wte.weight")
    if head is None or embedding is None or not config.tie_embeddings:
        return
    if not torch.equal(head.float(), embedding.float()):
        yield f"lm_head.weight is not {kind.embedding}.weight, but {CONFIG_FILE} says that they are one"
