"""nanoGPT's checkpoint, ckpt.pt: its weights, optimizer state and settings under our names.

It is loaded with `weights_only`, so nothing in it is executed. Every key is accounted for: prefixes that
torch.compile and DDP leave behind are stripped, causal masks that old versions stored are passed over, and
whatever else does not fit is an error.
"""

from __future__ import annotations

import errno
import mmap
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from glassgpt.config import ConfigValue, TrainConfig
from glassgpt.errors import UserError, first_message_line
from glassgpt.files import regular_file_opener
from glassgpt.flags import check_settings, field_types
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.model.weights import CAUSAL_MASK_SUFFIXES, check_state_dict, with_tied_head
from glassgpt.record.machine import available_memory_bytes

MODEL_SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")
_ADAMW_STATE_KEYS = {"step", "exp_avg", "exp_avg_sq"}
_WEIGHT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_PREFIXES = ("_orig_mod.", "module.")  # of torch.compile and DDP, in any order and number
# Decided for the machine and the moment it was trained on; here they are open again.
_NOT_INHERITED_SETTINGS = ("out_dir", "init_from", "eval_only", "device", "dtype", "compile", "backend")
_MAX_UNZIP_RATIO = 10  # torch does not compress; whoever did gains a few times at most

# What torch.load raises on files that are none of its own, or that want something executed.
_TORCH_LOAD_ERRORS = (
    zipfile.BadZipFile, RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError,
    AssertionError,
)  # fmt: skip


@dataclass(frozen=True)
class NanoGPTCheckpoint:
    """A ckpt.pt, checked. What it does not hold is empty, or None."""

    path: Path
    model_config: GPTConfig
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    iter: int
    best_val_loss: float | None
    settings: dict[str, ConfigValue]


def read_nanogpt_ckpt(path: Path) -> NanoGPTCheckpoint:
    content = _load(path)
    if not isinstance(content, dict) or not {"model", "model_args"} <= content.keys():
        raise UserError(f"{path} is not a checkpoint of nanoGPT: it has no 'model' and 'model_args'")
    try:
        return _parse_ckpt(path, content)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{path} is not as nanoGPT writes it: {error!r}") from None
    except UserError as error:
        raise UserError([f"{path}: {problem}" for problem in error.problems]) from None


def _load(path: Path) -> Any:
    """Executes nothing that is in it."""
    try:
        if not _looks_like_torch(path):
            raise UserError(f"{path} is not a checkpoint: neither a run of ours nor nanoGPT's ckpt.pt")
        _check_archive(path)
        with torch.serialization.safe_globals(_NUMPY_STAND_INS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        if error.errno == errno.EINVAL:  # places before the file's beginning were asked for
            raise UserError(f"{path} is damaged: a part of it is missing") from None
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} is damaged, or holds more than tensors and plain values: loading it would execute what "
            "is in it, so it is refused"
        ) from None
    except _TORCH_LOAD_ERRORS as error:
        raise UserError(f"{path} is damaged: {first_message_line(error)}") from None


class _Dtype:
    """Stands in for numpy.dtype while a file is read: numpy's own takes much more than the name of a type."""

    def __init__(self, name: str, *_: Any) -> None:
        self.name, self.order = name, "<"

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.order = state[1] if state[1] in ("<", ">") else "<"


def _numpy_number(dtype: _Dtype, content: bytes) -> int | float:
    """Stands in for what makes numpy's scalars: a loss may have been saved as one."""
    if dtype.name not in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"):
        raise ValueError(f"a numpy scalar of type {dtype.name!r}")
    (number,) = np.frombuffer(content, dtype.order + dtype.name).tolist()
    return cast("int | float", number)


_NUMPY_STAND_INS: list[Any] = [
    (_Dtype, "numpy.dtype"),
    (_numpy_number, "numpy.core.multiarray.scalar"),
    (_numpy_number, "numpy._core.multiarray.scalar"),
]


def _parse_ckpt(path: Path, content: dict[str, Any]) -> NanoGPTCheckpoint:
    shape = _parse_model_args(content["model_args"])
    weights = _parse_weights(content["model"])
    _check_sizes(shape, weights)
    with torch.device("meta"):
        model = GPT(shape)
    check_state_dict(model, weights, "it")
    best = content.get("best_val_loss")
    return NanoGPTCheckpoint(
        path,
        shape,
        weights,
        _parse_optimizer(content["optimizer"], model) if "optimizer" in content else {},
        max(0, int(content.get("iter_num", 0))),
        None if best is None else float(best),
        _parse_settings(content.get("config", {})),
    )


def _looks_like_torch(path: Path) -> bool:
    """A zip archive, or in old files a pickle."""
    with open(path, "rb", opener=regular_file_opener) as file:
        return file.read(2) in (b"PK", b"\x80\x02")


def _check_archive(path: Path) -> None:
    """What has to be known before torch reads it: how much memory it asks for, and that it is not damaged."""
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            _check_pickle(content)
        return
    with zipfile.ZipFile(path) as archive:
        size = sum(part.file_size for part in archive.infolist())
        most = min(_MAX_UNZIP_RATIO * path.stat().st_size, available_memory_bytes())
        if size > most:
            raise UserError(
                f"{path} is refused: it unpacks to {size:,} bytes, and at most {most:,} are allowed"
            )
        # torch writes a checksum of every part, and does not look at it when it reads.
        if (part := archive.testzip()) is not None:
            raise UserError(f"{path} is damaged: the checksum of {part} is wrong")
        for name in archive.namelist():
            if name.endswith(".pkl"):
                _check_pickle(archive.read(name))


def _check_pickle(content: bytes | mmap.mmap) -> None:
    """torch would make a bytearray, as large as the file says. No checkpoint has one."""
    if content.find(b"bytearray") >= 0:
        raise pickle.UnpicklingError("it asks for a bytearray")


def _parse_model_args(arguments: Mapping[str, Any]) -> GPTConfig:
    sizes = {name: int(arguments[name]) for name in MODEL_SIZES}
    if problems := size_problems(sizes):
        raise UserError(problems)
    dropout = float(arguments.get("dropout", 0.0))
    if not 0 <= dropout < 1:
        raise UserError(f"it has dropout={dropout}")
    return GPTConfig(
        vocab_size=sizes["vocab_size"],
        block_size=sizes["block_size"],
        n_layer=sizes["n_layer"],
        n_head=sizes["n_head"],
        n_embd=sizes["n_embd"],
        dropout=dropout,
        bias=bool(arguments.get("bias", True)),  # before there was a choice there were biases
    )


def size_problems(sizes: Mapping[str, int]) -> list[str]:
    """Why no model is of these sizes."""
    wrong = [f"it has {name}={size}" for name, size in sizes.items() if not 0 < size < 10**6]
    if wrong or sizes["n_embd"] % sizes["n_head"] == 0:
        return wrong
    return [f"its n_embd={sizes['n_embd']} is not divisible by n_head={sizes['n_head']}"]


def _parse_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    ours: dict[str, Tensor] = {}
    for key, tensor in state.items():
        name = _without_prefixes(key)
        if name.endswith(CAUSAL_MASK_SUFFIXES):
            continue
        if name in ours:
            raise UserError(f"it has {name} twice, once as {key}")
        if problem := _tensor_problem(tensor):
            raise UserError(f"{name} {problem}")
        ours[name] = tensor
    head, embedding = ours.get("lm_head.weight"), ours.get("transformer.wte.weight")
    if head is not None and embedding is not None and not torch.equal(head, embedding):
        raise UserError("lm_head.weight differs from transformer.wte.weight, which are one matrix here")
    return with_tied_head(ours)


def _tensor_problem(tensor: Any) -> str | None:
    """Why it cannot be a weight, or None."""
    if not isinstance(tensor, Tensor):
        return f"is a {type(tensor).__name__}, not a tensor"
    if tensor.dtype not in _WEIGHT_DTYPES or tensor.layout is not torch.strided:
        kind = tensor.dtype if tensor.layout is torch.strided else tensor.layout
        return f"is of {kind}; only float32, bfloat16 and float16 are read"
    if tensor.is_meta:
        return "has a shape and no numbers: it was saved from the meta device"
    if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
        return f"says that it is {tuple(tensor.shape)}, and the file has fewer numbers than that"
    return None


def _check_sizes(shape: GPTConfig, weights: Mapping[str, Tensor]) -> None:
    """Before anything of that size is built; the rest is compared when weights are loaded."""
    layers = len({name.split(".")[2] for name in weights if name.startswith("transformer.h.")})
    problems = [f"it has n_layer={shape.n_layer}, but weights of {layers}"] if layers != shape.n_layer else []
    for table, rows in (("wte", shape.vocab_size), ("wpe", shape.block_size)):
        tensor = weights.get(f"transformer.{table}.weight")
        if tensor is not None and tensor.shape != (rows, shape.n_embd):
            problems.append(
                f"its {table}.weight is {tuple(tensor.shape)}, but its settings say {(rows, shape.n_embd)}"
            )
    if problems:
        raise UserError(problems)


def _without_prefixes(key: str) -> str:
    while key.startswith(_PREFIXES):
        key = key.partition(".")[2]
    return key


def _parse_optimizer(state: Mapping[str, Any], model: GPT) -> dict[str, Tensor]:
    """AdamW's state, which nanoGPT keeps by position: matrices, then vectors, as the model lists them."""
    parameters = dict(model.named_parameters())
    matrices = [name for name, parameter in parameters.items() if parameter.dim() >= 2]
    names = matrices + [name for name in parameters if name not in matrices]
    positions = _positions(state["param_groups"])
    if len(positions) != len(names):
        raise UserError(f"its optimizer has {len(positions)} parameters, the model {len(names)}")
    tensors: dict[str, Tensor] = {}
    for name, position in zip(names, positions, strict=True):
        kept = state["state"].get(position, {})
        if state["state"] and kept.keys() != _ADAMW_STATE_KEYS:
            raise UserError(f"its optimizer has {sorted(kept)} for {name}, not {sorted(_ADAMW_STATE_KEYS)}")
        for key, value in kept.items():
            tensor = torch.as_tensor(value, dtype=torch.float32)
            if problem := _tensor_problem(tensor):
                raise UserError(f"its optimizer state {position} {problem}")
            if key != "step" and tensor.shape != parameters[name].shape:
                raise UserError(
                    f"its optimizer state {position} is {tuple(tensor.shape)}, but {name} is "
                    f"{tuple(parameters[name].shape)}"
                )
            tensors[f"{name}:{key}"] = tensor
    return tensors


def _positions(groups: Sequence[Mapping[str, Any]]) -> list[int]:
    return [position for group in groups for position in group["params"]]


def _parse_settings(config: Mapping[str, Any]) -> dict[str, ConfigValue]:
    """The settings it was trained with that are settings here; people add others of their own."""
    known = {
        name: value
        for name, value in config.items()
        if name in field_types(TrainConfig) and name not in _NOT_INHERITED_SETTINGS
    }
    checked, problems = check_settings(known, TrainConfig, " in its config")
    if problems:
        raise UserError(problems)
    return checked
