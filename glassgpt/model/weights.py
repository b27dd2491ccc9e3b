"""State dicts in other layouts: GPT-2 and NanoChat as `transformers` stores them, to and from ours.

`transformers` stores GPT-2's linear layers input-first (`Conv1D`), we store them output-first (`nn.Linear`),
so those four matrices per block are transposed. NanoChat is arch=modern with two differences. Its norms have
no gains, so each gain is multiplied into the matrix after the norm. It rotates q and k in the other
direction, which swapping the halves of each head undoes. A missing or unexpected key is always an error, so
no layer stays randomly initialised unnoticed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from glassgpt.errors import UserError, raise_if_any
from glassgpt.model.gpt import GPT, GPTConfig

_CONV1D_WEIGHTS = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
WEIGHT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # that are read
CAUSAL_MASK_SUFFIXES = (".attn.bias", ".attn.masked_bias")  # buffers in old files, not weights


MODEL_SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")
_POSSIBLE_VALUES = {
    "bias": (False, True),
    "tie_embeddings": (False, True),
    "arch": ("gpt2", "modern"),
    "activation": ("gelu", "gelu_new", "relu2"),
}


# --- what a file says ---


def read_gpt_config(values: Mapping[str, Any]) -> GPTConfig:
    """From the fields of GPTConfig by name. Raises a UserError if our GPT cannot be like that."""

    def is_possible(name: str, value: Any) -> bool:
        if name in MODEL_SIZES:
            return type(value) is int and 0 < value < 10**6
        if name == "dropout":
            return isinstance(value, int | float) and 0 <= value < 1
        return isinstance(value, str | bool) and value in _POSSIBLE_VALUES.get(name, ())

    problems = [f"it has no {name}" for name in MODEL_SIZES if name not in values]
    wrong = [name for name, value in values.items() if not is_possible(name, value)]
    problems += [f"it has {name}={values[name]!r:.60}" for name in wrong]
    if not problems and values["n_embd"] % values["n_head"]:
        problems.append(f"its n_embd={values['n_embd']} is not divisible by n_head={values['n_head']}")
    raise_if_any(problems)
    return GPTConfig(**values)


def weight_problems(config: GPTConfig, state: Mapping[str, Tensor]) -> list[str]:
    """What has to be compared before a model is built: a small file that says it is large must not fill the
    memory. `check_state_dict` compares the rest."""
    problems = []
    layers = len({name.split(".")[2] for name in state if name.startswith("transformer.h.")})
    if layers != config.n_layer:
        problems.append(f"it has n_layer={config.n_layer}, but weights of {layers}")
    tables = {"wte": config.vocab_size} | ({"wpe": config.block_size} if config.arch == "gpt2" else {})
    for name, rows in tables.items():
        table = state.get(f"transformer.{name}.weight")
        if table is None:
            problems.append(f"it has no {name}.weight")
        elif table.shape != (rows, config.n_embd):
            stated = (rows, config.n_embd)
            problems.append(f"its {name}.weight is {tuple(table.shape)}, but its settings say {stated}")
    ends = [state[name].float() for name in ("lm_head.weight", "transformer.wte.weight") if name in state]
    if config.tie_embeddings and len(ends) == 2 and not torch.equal(*ends):
        problems.append("its lm_head.weight differs from its wte.weight, which are one matrix here")
    return problems


# --- other layouts ---


def from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict of a GPT2LMHeadModel (or GPT2Model)."""
    ours = {}
    for name, tensor in state.items():
        if name.endswith(CAUSAL_MASK_SUFFIXES):
            continue
        name = name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
        # A tensor with another number of dimensions is left for `load_weights` to refuse.
        transposed = name.endswith(_CONV1D_WEIGHTS) and tensor.dim() == 2
        ours[name] = tensor.t().contiguous() if transposed else tensor
    return with_tied_head(ours)


def to_transformers(state: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """The state dict of a GPT2LMHeadModel, which has biases everywhere: a missing bias is zeros."""
    assert config.arch == "gpt2"
    exported = {}
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_embeddings:
            continue
        exported[name] = tensor.t().contiguous() if name.endswith(_CONV1D_WEIGHTS) else tensor.contiguous()
    if not config.bias:
        for name, tensor in state.items():
            if name.startswith(("transformer.h.", "transformer.ln_f.")):
                exported[f"{name.removesuffix('weight')}bias"] = torch.zeros(len(tensor), dtype=tensor.dtype)
    return exported


_NANOCHAT_LAYER_NAMES = {"attn.c_proj": "self_attn.o_proj", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}


def to_nanochat(state: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """The state dict of a NanoChatForCausalLM. The last gain goes into the head, which is then not tied."""
    assert config.arch == "modern"
    exported = {"model.embed_tokens.weight": state["transformer.wte.weight"].contiguous()}
    for number in range(config.n_layer):
        block, layer = f"transformer.h.{number}", f"model.layers.{number}"
        q, k, v = (state[f"{block}.attn.c_attn.weight"] * state[f"{block}.ln_1.weight"]).chunk(3)
        qkv = (_swap_halves(q, config.n_head), _swap_halves(k, config.n_head), v.clone())
        for letter, tensor in zip("qkv", qkv, strict=True):
            exported[f"{layer}.self_attn.{letter}_proj.weight"] = tensor
        for name, nanochat_name in _NANOCHAT_LAYER_NAMES.items():
            exported[f"{layer}.{nanochat_name}.weight"] = state[f"{block}.{name}.weight"].contiguous()
        exported[f"{layer}.mlp.fc1.weight"] = (
            state[f"{block}.mlp.c_fc.weight"] * state[f"{block}.ln_2.weight"]
        )
    gain = state["transformer.ln_f.weight"]
    if not config.tie_embeddings or not bool((gain == 1).all()):
        exported["lm_head.weight"] = state["lm_head.weight"] * gain
    return exported


def from_nanochat(state: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Our state dict of a NanoChatForCausalLM, with gains of 1. Keys that do not fit keep their names, for
    `load_weights` to refuse."""
    rest, ours = dict(state), {}
    if "model.embed_tokens.weight" in rest:
        ours["transformer.wte.weight"] = rest.pop("model.embed_tokens.weight")
        gain = torch.ones(ours["transformer.wte.weight"].shape[-1:])
        ours["transformer.ln_f.weight"] = gain
        for number in {name.split(".")[2] for name in rest if name.startswith("model.layers.")}:
            block, layer = f"transformer.h.{number}", f"model.layers.{number}"
            ours |= {f"{block}.ln_1.weight": gain, f"{block}.ln_2.weight": gain}
            names = [f"{layer}.self_attn.{letter}_proj.weight" for letter in "qkv"]
            if all(name in rest and rest[name].shape == (config.n_embd,) * 2 for name in names):
                q, k, v = (rest.pop(name) for name in names)
                qkv = (_swap_halves(q, config.n_head), _swap_halves(k, config.n_head), v)
                ours[f"{block}.attn.c_attn.weight"] = torch.cat(qkv)
            for name, nanochat_name in _NANOCHAT_LAYER_NAMES.items():
                if f"{layer}.{nanochat_name}.weight" in rest:
                    ours[f"{block}.{name}.weight"] = rest.pop(f"{layer}.{nanochat_name}.weight")
    return with_tied_head(ours | rest)


def _swap_halves(matrix: Tensor, n_head: int) -> Tensor:
    """Swaps the two halves of each head's output channels (rows)."""
    return matrix.view(n_head, 2, -1, matrix.shape[1]).flip(1).reshape(matrix.shape)


# --- into a model ---


def with_tied_head(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With an lm_head.weight: files may store the tied matrix once, as the embedding."""
    state = dict(weights)
    if "transformer.wte.weight" in state:
        state.setdefault("lm_head.weight", state["transformer.wte.weight"])
    return state


def crop_block_size(
    config: GPTConfig, state: Mapping[str, Tensor], block_size: int
) -> tuple[GPTConfig, dict[str, Tensor]]:
    """The same model with a shorter context: positions past `block_size` are dropped."""
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
    """A GPT with these weights. `origin`: where they come from, for error messages."""
    model = GPT(config, empty=True)
    load_weights(model, state, origin)
    return model


def load_weights(model: GPT, state: Mapping[str, Tensor], origin: str) -> None:
    """Like load_state_dict, with an error message for users."""
    check_state_dict(model, state, origin)
    model.load_state_dict(dict(state))


def check_state_dict(model: GPT, state: Mapping[str, Tensor], origin: str) -> None:
    """Raises a UserError that lists the differences in names and shapes."""
    expected = model.state_dict()
    problems = [f"{origin} lacks {name}" for name in expected if name not in state]
    problems += [f"{origin} has {name}, which this model does not" for name in state if name not in expected]
    problems += [
        f"{name} is {tuple(state[name].shape)} in {origin}, but {tuple(expected[name].shape)} here"
        for name in expected
        if name in state and state[name].shape != expected[name].shape
    ]
    if problems:
        raise UserError(problems[:5] + ([f"... and {len(problems) - 5} more"] if len(problems) > 5 else []))
