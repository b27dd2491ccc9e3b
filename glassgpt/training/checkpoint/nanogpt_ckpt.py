"""nanoGPT's checkpoint, ckpt.pt: weights, optimizer state and settings under our names.

It is loaded with `weights_only`, so nothing in it is executed. Every key is accounted for: the prefixes of
torch.compile and DDP are stripped, causal masks that old versions stored are skipped, and any other key that
does not fit is an error.

    ckpt = read_nanogpt_ckpt(Path("out/ckpt.pt"))
"""

from __future__ import annotations

import errno
import mmap
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, first_message_line, raise_if_any
from glassgpt.files import regular_file_opener
from glassgpt.flags import check_settings, known_settings
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.model.weights import (
    CAUSAL_MASK_SUFFIXES,
    MODEL_SIZES,
    WEIGHT_DTYPES,
    check_state_dict,
    read_gpt_config,
    weight_problems,
    with_tied_head,
)
from glassgpt.record.machine import available_memory_bytes
from glassgpt.training.checkpoint.checkpoints import LoadedCheckpoint

ADAMW_STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")
_PREFIXES = ("_orig_mod.", "module.")  # of torch.compile and DDP, in any order and number
# Settings of the machine and the command it was trained with: a run that starts from it chooses its own.
_NOT_INHERITED_SETTINGS = ("out_dir", "init_from", "eval_only", "device", "dtype", "compile", "backend")
_MAX_UNZIP_RATIO = 10  # torch does not compress; weights that somebody compressed shrink by less

# What torch.load raises on files that it did not write, or that would execute something.
_TORCH_LOAD_ERRORS = (
    zipfile.BadZipFile, RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError,
    AssertionError,
)  # fmt: skip


def read_nanogpt_ckpt(path: Path) -> LoadedCheckpoint:
    """A ckpt.pt, checked. What the file lacks is empty, or None."""
    content = _load(path)
    if not isinstance(content, dict) or not {"model", "model_args"} <= content.keys():
        raise UserError(f"{path} is not a checkpoint of nanoGPT: it has no 'model' and 'model_args'")
    try:
        model_config = _parse_model_args(content["model_args"])
        weights = _parse_weights(content["model"], model_config)
        with torch.device("meta"):
            model = GPT(model_config)
        check_state_dict(model, weights, "it")
        optimizer = _parse_optimizer(content["optimizer"], model) if "optimizer" in content else {}
        best_val_loss = content.get("best_val_loss")
        inherited = {
            name: value
            for name, value in known_settings(content.get("config", {})).items()
            if name not in _NOT_INHERITED_SETTINGS
        }
        settings, problems = check_settings(inherited, TrainConfig, " in its config")
        raise_if_any(problems)
        return LoadedCheckpoint(
            str(path),
            model_config,
            weights,
            path.parent,
            optimizer,
            iter=max(0, int(content.get("iter_num", 0))),
            val_loss=None if best_val_loss is None else float(best_val_loss),
            settings=settings,
            kind="nanogpt",
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{path} is not as nanoGPT writes it: {error!r}") from None
    except UserError as error:
        raise UserError([f"{path}: {problem}" for problem in error.problems]) from None


# --- loading the file ---


def _load(path: Path) -> Any:
    """torch.load, without executing anything in the file."""
    try:
        with open(path, "rb", opener=regular_file_opener) as file:
            is_zip_or_pickle = file.read(2) in (b"PK", b"\x80\x02")  # old versions of torch wrote pickles
        if not is_zip_or_pickle:
            raise UserError(f"{path} is not a checkpoint: neither a run of ours nor nanoGPT's ckpt.pt")
        _check_archive(path)
        with torch.serialization.safe_globals(_NUMPY_STAND_INS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        if error.errno == errno.EINVAL:  # a seek to before the start of the file
            raise UserError(f"{path} is damaged: a part of it is missing") from None
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} is damaged, or holds more than tensors and plain values: loading it would execute what "
            "is in it, so it is refused"
        ) from None
    except _TORCH_LOAD_ERRORS as error:
        raise UserError(f"{path} is damaged: {first_message_line(error)}") from None


def _check_archive(path: Path) -> None:
    """Before torch reads it: how much memory the file needs, and its checksums."""
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            _check_pickle(content)
        return
    with zipfile.ZipFile(path) as archive:
        unpacked_bytes = sum(part.file_size for part in archive.infolist())
        max_bytes = min(_MAX_UNZIP_RATIO * path.stat().st_size, available_memory_bytes())
        if unpacked_bytes > max_bytes:
            raise UserError(
                f"{path} is refused: it unpacks to {unpacked_bytes:,} bytes, and at most {max_bytes:,} are "
                "allowed"
            )
        # torch writes a checksum of every part, but does not check it when it reads.
        if (part := archive.testzip()) is not None:
            raise UserError(f"{path} is damaged: the checksum of {part} is wrong")
        for name in archive.namelist():
            if name.endswith(".pkl"):
                _check_pickle(archive.read(name))


def _check_pickle(content: bytes | mmap.mmap) -> None:
    """torch would allocate a bytearray as large as the pickle asks for. No checkpoint has one."""
    if content.find(b"bytearray") >= 0:
        raise pickle.UnpicklingError("it asks for a bytearray")


class _Dtype:
    """Stands in for numpy.dtype while a file is read: numpy's own accepts much more than a type's name."""

    def __init__(self, name: str, *_: Any) -> None:
        self.name, self.order = name, "<"

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.order = state[1] if state[1] in ("<", ">") else "<"


def _numpy_number(dtype: _Dtype, content: bytes) -> int | float:
    """Stands in for numpy's scalar constructor: a loss may have been saved as a numpy scalar."""
    if dtype.name not in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"):
        raise ValueError(f"a numpy scalar of type {dtype.name!r}")
    (number,) = np.frombuffer(content, dtype.order + dtype.name).tolist()
    return cast("int | float", number)


_NUMPY_STAND_INS: list[Any] = [
    (_Dtype, "numpy.dtype"),
    (_numpy_number, "numpy.core.multiarray.scalar"),
    (_numpy_number, "numpy._core.multiarray.scalar"),
]


# --- parsing its content ---


def _parse_model_args(arguments: Mapping[str, Any]) -> GPTConfig:
    sizes = {name: int(arguments[name]) for name in MODEL_SIZES}
    bias = bool(arguments.get("bias", True))  # versions without this argument always had biases
    return read_gpt_config(sizes | {"dropout": float(arguments.get("dropout", 0.0)), "bias": bias})


def _parse_weights(state_dict: Mapping[str, Tensor], model_config: GPTConfig) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for key, tensor in state_dict.items():
        name = key
        while name.startswith(_PREFIXES):
            name = name.partition(".")[2]
        if name.endswith(CAUSAL_MASK_SUFFIXES):
            continue
        if name in weights:
            raise UserError(f"it has {name} twice, once as {key}")
        if problem := _tensor_problem(tensor):
            raise UserError(f"{name} {problem}")
        weights[name] = tensor
    raise_if_any(weight_problems(model_config, weights))
    return with_tied_head(weights)


def _tensor_problem(tensor: Any) -> str | None:
    """Why it cannot be a weight, or None."""
    if not isinstance(tensor, Tensor):
        return f"is a {type(tensor).__name__}, not a tensor"
    if tensor.dtype not in WEIGHT_DTYPES or tensor.layout is not torch.strided:
        kind = tensor.dtype if tensor.layout is torch.strided else tensor.layout
        return f"is of {kind}; only float32, bfloat16 and float16 are read"
    if tensor.is_meta:
        return "has a shape and no numbers: it was saved from the meta device"
    if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
        return f"says that it is {tuple(tensor.shape)}, and the file has fewer numbers than that"
    return None


def _parse_optimizer(state_dict: Mapping[str, Any], model: GPT) -> dict[str, Tensor]:
    """AdamW's state by parameter name. nanoGPT stores it by position: matrices first, then vectors."""
    parameters = dict(model.named_parameters())
    matrices = [name for name, parameter in parameters.items() if parameter.dim() >= 2]
    names = matrices + [name for name in parameters if name not in matrices]
    positions = [position for group in state_dict["param_groups"] for position in group["params"]]
    if len(positions) != len(names):
        raise UserError(f"its optimizer has {len(positions)} parameters, the model {len(names)}")
    tensors: dict[str, Tensor] = {}
    for name, position in zip(names, positions, strict=True):
        state = state_dict["state"].get(position, {})
        if state_dict["state"] and state.keys() != set(ADAMW_STATE_KEYS):
            raise UserError(f"its optimizer has {sorted(state)} for {name}, not {sorted(ADAMW_STATE_KEYS)}")
        for key, value in state.items():
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
