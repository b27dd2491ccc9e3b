"""The model's weights under other names: GPT-2 as `transformers` keeps it.

GPT-2's linear layers are stored input-first there (`Conv1D`), ours output-first (`nn.Linear`), so those four
matrices per block are transposed on the way. Every key is accounted for: a missing or left-over one is an
error, never a silently random layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT, GPTConfig

_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
CAUSAL_MASKS = (".attn.bias", ".attn.masked_bias")  # buffers that old files carry along


def from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A GPT2LMHeadModel (or GPT2Model) state dict under our names and in our layout."""
    ours = {}
    for name, tensor in state.items():
        if name.endswith(CAUSAL_MASKS):
            continue
        name = name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
        # One of another number of dimensions is left for `load_weights` to refuse.
        transposed = name.endswith(_TRANSPOSED) and tensor.dim() == 2
        ours[name] = tensor.t().contiguous() if transposed else tensor
    return with_head(ours)


def to_transformers(state: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """The inverse, for a GPT2LMHeadModel, which has biases everywhere: where there are none they are zero."""
    assert config.arch == "gpt2"
    theirs = {}
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_embeddings:
            continue
        theirs[name] = tensor.t().contiguous() if name.endswith(_TRANSPOSED) else tensor.contiguous()
    if not config.bias:
        for name, tensor in state.items():
            if name.startswith(("transformer.h.", "transformer.ln_f.")):
                theirs[f"{name.removesuffix('weight')}bias"] = torch.zeros(len(tensor), dtype=tensor.dtype)
    return theirs


def with_head(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The head and the embedding are one matrix, and files may name it once."""
    whole = dict(weights)
    if "transformer.wte.weight" in whole:
        whole.setdefault("lm_head.weight", whole["transformer.wte.weight"])
    return whole


def crop_block_size(
    config: GPTConfig, state: Mapping[str, Tensor], block_size: int
) -> tuple[GPTConfig, dict[str, Tensor]]:
    """The same model for shorter texts: positions past `block_size` are cut off."""
    if block_size > config.block_size:
        raise UserError(
            f"--block_size={block_size} is more than the {config.block_size} positions that these weights "
            f"know: use at most {config.block_size}"
        )
    cropped = dict(state)
    if "transformer.wpe.weight" in cropped:
        cropped["transformer.wpe.weight"] = cropped["transformer.wpe.weight"][:block_size].clone()
    return dataclasses.replace(config, block_size=block_size), cropped


def model_of(config: GPTConfig, state: Mapping[str, Tensor], origin: str) -> GPT:
    """A model with these weights."""
    model = GPT(config, empty=True)
    load_weights(model, state, origin)
    return model


def load_weights(model: GPT, state: Mapping[str, Tensor], origin: str) -> None:
    """Copies `state` into the model."""
    check_fit(model, state, origin)
    model.load_state_dict(dict(state))


def check_fit(model: GPT, state: Mapping[str, Tensor], origin: str) -> None:
    """Every difference in names or shapes is reported at once."""
    own = model.state_dict()
    problems = [f"{origin} lacks {name}" for name in own if name not in state]
    problems += [f"{origin} has {name}, which this model does not" for name in state if name not in own]
    problems += [
        f"{name} is {tuple(state[name].shape)} in {origin}, but {tuple(own[name].shape)} here"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    if problems:
        raise UserError(problems[:5] + ([f"... and {len(problems) - 5} more"] if len(problems) > 5 else []))
