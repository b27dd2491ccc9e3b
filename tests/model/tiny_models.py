"""Little GPTs whose every parameter is random: nothing hides behind a gain of 1 or a bias of 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from glassgpt.model.gpt import GPT, GPTConfig

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

VOCABULARY, CONTEXT = 23, 16


def little_config(**changes: Any) -> GPTConfig:
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "block_size": CONTEXT,
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 24,
        "bias": True,
    }
    return GPTConfig(**settings | changes)


def little_gpt(seed: int = 0, **changes: Any) -> GPT:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GPT(little_config(**changes))
    perturb_weights(model, seed)
    return model


def perturb_weights(model: torch.nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))


def some_tokens(rows: int = 3, length: int = CONTEXT, seed: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def some_batch(rows: int = 3) -> tuple[Tensor, Tensor]:
    tokens = some_tokens(rows, CONTEXT + 1)
    return tokens[:, :-1], tokens[:, 1:]


def loss_and_gradients(model: GPT, tokens: Tensor, targets: Tensor) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad()
    loss = model(tokens, targets)
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return loss.item(), {name: gradient.clone() for name, gradient in found.items() if gradient is not None}


def hf_gpt2(
    n_head: int = 2, activation: str = "gelu_new", tie_word_embeddings: bool = True
) -> GPT2LMHeadModel:
    """GPT-2 as `transformers` computes it, of the same size."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=24,
        n_layer=2,
        n_head=n_head,
        activation_function=activation,
        tie_word_embeddings=tie_word_embeddings,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: GPT2LMHeadModel = transformers.GPT2LMHeadModel(config).eval()
    perturb_weights(model)
    return model


def hf_nanochat(seed: int = 0, **changes: Any) -> Any:
    """NanoChat as `transformers` computes it, of the same size, as far as ours computes it too."""
    transformers = pytest.importorskip("transformers", minversion="5")
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "hidden_size": 24,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "rms_norm_eps": 1.2e-7,
        "final_logit_softcapping": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    model = transformers.NanoChatForCausalLM(transformers.NanoChatConfig(**settings | changes)).eval()
    perturb_weights(model, seed)
    return model


def change_config(folder: Path, **changes: Any) -> None:
    """Of a folder with a model's files."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
