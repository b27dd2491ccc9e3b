"""The model's weights under other names: GPT-2 and NanoChat as `transformers` keeps them.

GPT-2's linear layers are stored input-first there (`Conv1D`), ours output-first (`nn.Linear`), so those four
matrices per block are transposed on the way. NanoChat is arch=modern, but for two things: its norms have no
gains, so each gain is multiplied into the matrix that reads the norm; and it rotates q and k the other way,
which is undone by swapping the halves of each head. Every key is accounted for: a missing or left-over one is
an error, never a silently random layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT, GPTConfig

_CONV1D_WEIGHTS = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
CAUSAL_MASK_SUFFIXES = (".attn.bias", ".attn.masked_bias")  # buffers that old files carry along


def from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A GPT2LMHeadModel (or GPT2Model) state dict under our names and in our layout."""
    ours = {}
    for name, tensor in state.items():
        if name.endswith(CAUSAL_MASK_SUFFIXES):
            continue
        name = name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
        # One of another number of dimensions is left for `load_weights` to refuse.
        transposed = name.endswith(_CONV1D_WEIGHTS) and tensor.dim() == 2
        ours[name] = tensor.t().contiguous() if transposed else tensor
    return with_tied_head(ours)


def to_transformers(state: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """The inverse, for a GPT2LMHeadModel, which has biases everywhere: where there are none they are zero."""
    assert config.arch == "gpt2"
    theirs = {}
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_embeddings:
            continue
        theirs[name] = tensor.t().contiguous() if name.endswith(_CONV1D_WEIGHTS) else tensor.contiguous()
    if not config.bias:
        for name, tensor in state.items():
            if name.startswith(("transformer.h.", "transformer.ln_f.")):
                theirs[f"{name.removesuffix('weight')}bias"] = torch.zeros(len(tensor), dtype=tensor.dtype)
    return theirs


_NANOCHAT_LAYER_NAMES = {"attn.c_proj": "self_attn.o_proj", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}


def to_nanochat(state: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """For a NanoChatForCausalLM. The last gain goes into the head, which then is not the embedding."""
    assert config.arch == "modern"
    theirs = {"model.embed_tokens.weight": state["transformer.wte.weight"].contiguous()}
    for layer in range(config.n_layer):
        block, there = f"transformer.h.{layer}", f"model.layers.{layer}"
        q, k, v = (state[f"{block}.attn.c_attn.weight"] * state[f"{block}.ln_1.weight"]).chunk(3)
        parts = (_swap_halves(q, config.n_head), _swap_halves(k, config.n_head), v.clone())
        for part, tensor in zip("qkv", parts, strict=True):
            theirs[f"{there}.self_attn.{part}_proj.weight"] = tensor
        for name, their_name in _NANOCHAT_LAYER_NAMES.items():
            theirs[f"{there}.{their_name}.weight"] = state[f"{block}.{name}.weight"].contiguous()
        theirs[f"{there}.mlp.fc1.weight"] = state[f"{block}.mlp.c_fc.weight"] * state[f"{block}.ln_2.weight"]
    gain = state["transformer.ln_f.weight"]
    if not config.tie_embeddings or not bool((gain == 1).all()):
        theirs["lm_head.weight"] = state["lm_head.weight"] * gain
    return theirs


def from_nanochat(state: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """The inverse, with gains of 1. What does not fit keeps its name, for `load_weights` to refuse."""
    theirs, ours = dict(state), {}
    if "model.embed_tokens.weight" in theirs:
        ours["transformer.wte.weight"] = theirs.pop("model.embed_tokens.weight")
        gain = torch.ones(ours["transformer.wte.weight"].shape[-1:])
        ours["transformer.ln_f.weight"] = gain
        for layer in {name.split(".")[2] for name in theirs if name.startswith("model.layers.")}:
            block, there = f"transformer.h.{layer}", f"model.layers.{layer}"
            ours |= {f"{block}.ln_1.weight": gain, f"{block}.ln_2.weight": gain}
            names = [f"{there}.self_attn.{part}_proj.weight" for part in "qkv"]
            if all(name in theirs and theirs[name].shape == (config.n_embd,) * 2 for name in names):
                q, k, v = (theirs.pop(name) for name in names)
                qkv = (_swap_halves(q, config.n_head), _swap_halves(k, config.n_head), v)
                ours[f"{block}.attn.c_attn.weight"] = torch.cat(qkv)
            for name, their_name in _NANOCHAT_LAYER_NAMES.items():
                if f"{there}.{their_name}.weight" in theirs:
                    ours[f"{block}.{name}.weight"] = theirs.pop(f"{there}.{their_name}.weight")
    return with_tied_head(ours | theirs)


def _swap_halves(matrix: Tensor, heads: int) -> Tensor:
    """Of the output channels (rows) of each head."""
    return matrix.view(heads, 2, -1, matrix.shape[1]).flip(1).reshape(matrix.shape)


def with_tied_head(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
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


def build_model(config: GPTConfig, state: Mapping[str, Tensor], origin: str) -> GPT:
    """A model with these weights."""
    model = GPT(config, empty=True)
    load_weights(model, state, origin)
    return model


def load_weights(model: GPT, state: Mapping[str, Tensor], origin: str) -> None:
    """Copies `state` into the model."""
    check_state_dict(model, state, origin)
    model.load_state_dict(dict(state))


def check_state_dict(model: GPT, state: Mapping[str, Tensor], origin: str) -> None:
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
