"""Our GPT computes what GPT-2 computes, and no weight is lost or invented on the way."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tiny_models import CONTEXT, hf_gpt2, hf_nanochat, little_gpt, some_tokens
from torch import Tensor

from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT
from glassgpt.model.weights import build_model, from_nanochat, from_transformers, load_weights, to_nanochat


def ours(**changes: Any) -> GPT:
    return little_gpt(**{"activation": "gelu_new"} | changes).eval()


@pytest.mark.parametrize("n_head", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("activation", ["gelu_new", "gelu"])
@torch.no_grad()
def test_logits_are_those_of_transformers(n_head: int, activation: str) -> None:
    hf_model, model = hf_gpt2(n_head, activation), ours(n_head=n_head, activation=activation)
    load_weights(model, from_transformers(hf_model.state_dict()), "transformers")
    for length in (1, 5, CONTEXT):
        tokens = some_tokens(length=length)
        expected = hf_model(tokens).logits
        assert expected.std() > 0.1
        torch.testing.assert_close(model(tokens), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_file_without_head_prefix_and_with_old_masks_is_understood() -> None:
    hf_model, model = hf_gpt2(), ours()
    state = {name.removeprefix("transformer."): tensor for name, tensor in hf_model.state_dict().items()}
    del state["lm_head.weight"]
    state["h.0.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT).tril()
    state["h.1.attn.masked_bias"] = torch.tensor(-1e4)
    load_weights(model, from_transformers(state), "an old file")
    torch.testing.assert_close(model(some_tokens()), hf_model(some_tokens()).logits, atol=1e-5, rtol=0)


def test_names_and_shapes_are_gpt2s() -> None:
    expected = from_transformers(hf_gpt2().state_dict())
    state = ours().state_dict()
    assert list(state) == list(expected)
    assert {name: tensor.shape for name, tensor in state.items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }


def test_every_difference_is_named_and_nothing_is_loaded() -> None:
    model = ours()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = {name: tensor + 1 for name, tensor in before.items()}
    del state["transformer.h.1.mlp.c_fc.weight"], state["transformer.ln_f.bias"]
    state["transformer.h.2.ln_1.weight"] = torch.zeros(24)
    state["transformer.wpe.weight"] = torch.zeros(99, 24)
    with pytest.raises(UserError) as caught:
        load_weights(model, state, "the file")
    assert sorted(caught.value.problems) == [
        "the file has transformer.h.2.ln_1.weight, which this model does not",
        "the file lacks transformer.h.1.mlp.c_fc.weight",
        "the file lacks transformer.ln_f.bias",
        "transformer.wpe.weight is (99, 24) in the file, but (16, 24) here",
    ]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_wholly_different_file_says_how_different() -> None:
    model = ours()
    count = len(model.state_dict())
    with pytest.raises(UserError) as caught:
        load_weights(model, {}, "the file")
    assert caught.value.problems[-1] == f"... and {count - 5} more"
    assert len(caught.value.problems) == 6


def test_wrong_bias_setting_is_an_error_not_a_random_layer() -> None:
    with pytest.raises(UserError, match=r"has transformer\.h\.0\.ln_1\.bias, which this model does not"):
        load_weights(ours(bias=False), ours().state_dict(), "the file")


# --- NanoChat ---


@torch.no_grad()
def test_modern_is_nanochat_in_both_directions() -> None:
    """With gains that are not 1: each has to be folded into the right matrix."""
    for n_head, tied, activation in (
        (1, True, "relu2"),
        (2, False, "gelu"),
        (3, True, "gelu_new"),
        (4, False, "relu2"),
    ):
        model = ours(arch="modern", n_head=n_head, tie_embeddings=tied, activation=activation)
        state = to_nanochat(model.state_dict(), model.config)
        hf_model = hf_nanochat(num_attention_heads=n_head, hidden_act=activation)
        hf_model.load_state_dict(state)  # strict: no key is missing or left over
        for length in (1, 5, CONTEXT):
            tokens = some_tokens(length=length)
            expected = hf_model(tokens).logits
            assert expected.std() > 0.1
            torch.testing.assert_close(model(tokens), expected, atol=1e-5, rtol=0)
        shape = dataclasses.replace(model.config, tie_embeddings=False)
        back = build_model(shape, from_nanochat(state, shape), "transformers").eval()
        torch.testing.assert_close(back(some_tokens()), model(some_tokens()), atol=1e-5, rtol=0)
        start = some_tokens(rows=1, length=2)
        written = hf_model.generate(start, max_new_tokens=CONTEXT - 2, do_sample=False)
        assert written[0, 2:].tolist() == greedy_tokens(model, start)


def greedy_tokens(model: GPT, start: Tensor) -> list[int]:
    tokens = start
    while tokens.shape[1] < CONTEXT:
        tokens = torch.cat((tokens, model.next_logits(tokens).argmax(-1, keepdim=True)), dim=1)
    return tokens[0, start.shape[1] :].tolist()


def test_one_matrix_stays_one_only_while_the_last_gain_is_1() -> None:
    model = ours(arch="modern")
    assert "lm_head.weight" in to_nanochat(model.state_dict(), model.config)
    torch.nn.init.ones_(model.transformer.ln_f.weight)
    assert "lm_head.weight" not in to_nanochat(model.state_dict(), model.config)
