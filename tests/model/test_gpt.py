"""What the model computes: counted, causal, the same by every road."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import (
    CONTEXT,
    VOCABULARY,
    little_config,
    little_gpt,
    loss_and_gradients,
    some_batch,
    some_tokens,
)
from torch import Tensor
from torch.nn import functional as F

from glassgpt.data.batches import IGNORED_TARGET
from glassgpt.estimate import flops
from glassgpt.model.gpt import GPT, GPTConfig, _rope_tables
from glassgpt.model.ops import _rotate

ARCHS = ["gpt2", "modern"]
both = pytest.mark.parametrize("arch", ARCHS)
few = settings(max_examples=40, deadline=None)


# --- how large it is ---


def counted(config: GPTConfig, positions: bool = True) -> int:
    return flops.count_parameters(
        vocab_size=config.vocab_size,
        block_size=config.block_size,
        n_layer=config.n_layer,
        n_embd=config.n_embd,
        arch=config.arch,
        bias=config.bias,
        positions=positions,
    )


def shapes_only(config: GPTConfig) -> GPT:
    with torch.device("meta"):
        return GPT(config)


@both
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(1, 8), (2, 24), (5, 40)])
def test_parameters_are_as_many_as_flops_says(arch: str, bias: bool, size: tuple[int, int]) -> None:
    config = little_config(arch=arch, bias=bias, n_layer=size[0], n_embd=size[1])
    model = shapes_only(config)
    assert model.parameter_count() == counted(config)
    assert model.parameter_count(positions=False) == counted(config, positions=False)
    assert model.parameter_count() == sum(p.numel() for p in dict(model.named_parameters()).values())


@pytest.mark.parametrize(
    ("config", "millions", "mflops"),
    [
        (GPTConfig(vocab_size=50304, block_size=1024, n_layer=12, n_head=12, n_embd=768), "123.59", "854.8"),
        (GPTConfig(vocab_size=65, block_size=256, n_layer=6, n_head=6, n_embd=384), "10.65", "71.0"),
    ],
)
def test_known_models_have_their_known_sizes(config: GPTConfig, millions: str, mflops: str) -> None:
    without_positions = shapes_only(config).parameter_count(positions=False)
    per_token = flops.flops_per_token(without_positions, config.n_layer, config.n_embd, config.block_size)
    assert f"{without_positions / 1e6:.2f}" == millions
    assert f"{per_token / 1e6:.1f}" == mflops


def test_modern_has_no_positions_and_no_biases() -> None:
    names = [name for name, _ in little_gpt(arch="modern").named_parameters()]
    assert not [name for name in names if "wpe" in name or name.endswith("bias")]
    assert "transformer.wpe.weight" in dict(little_gpt().named_parameters())


@both
def test_the_embedding_is_the_head(arch: str) -> None:
    model = little_gpt(arch=arch)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert set(dict(model.named_parameters())) | {"lm_head.weight"} == set(model.state_dict())


@pytest.fixture
def memory_that_is_nan() -> Iterator[None]:
    """Until somebody writes to it."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize(("arch", "bias"), [("gpt2", True), ("gpt2", False), ("modern", False)])
@pytest.mark.usefixtures("memory_that_is_nan")
def test_every_weight_is_drawn(arch: str, bias: bool, tie: bool) -> None:
    config = little_config(arch=arch, bias=bias, tie_embeddings=tie)
    assert not any(weight.isfinite().any() for weight in GPT(config, empty=True).parameters())
    assert all(weight.isfinite().all() for weight in GPT(config).parameters())


def test_weights_start_as_gpt2s_do() -> None:
    torch.manual_seed(0)
    model = GPT(little_config(n_layer=8, n_embd=64, vocab_size=500))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        elif parameter.dim() == 1:
            assert (parameter == 1).all()
        else:
            std = 0.02 / 4 if name.endswith("c_proj.weight") else 0.02  # sqrt(2 x 8 layers) is 4
            assert parameter.std().item() == pytest.approx(std, rel=0.05), name


# --- what it computes ---


@both
def test_fused_attention_is_textbook_attention(arch: str) -> None:
    model = little_gpt(arch=arch)
    tokens, targets = some_batch()
    fused_loss, fused = loss_and_gradients(model, tokens, targets)
    model.backend.attention = "manual"
    loss, textbook = loss_and_gradients(model, tokens, targets)
    assert loss == pytest.approx(fused_loss, abs=1e-5)
    assert fused.keys() == textbook.keys() == dict(model.named_parameters()).keys()
    for name in fused:
        torch.testing.assert_close(fused[name], textbook[name], atol=1e-5, rtol=0)


def plain_kernel(q: Tensor, k: Tensor, v: Tensor, dropout: float, backend: str) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


@both
@pytest.mark.parametrize("sharp", [1, 3, 8])
def test_textbook_attention_in_bfloat16_is_as_near_to_float32_as_fused(arch: str, sharp: int) -> None:
    """And what a CPU computes as near as PyTorch's kernel in bfloat16. A trained model's attention is sharper
    than that of random weights, and rounded scores are felt there."""
    errors = {"sdpa": 0.0, "manual": 0.0, "kernel": 0.0}
    for seed in range(16):
        model = little_gpt(seed, arch=arch)
        for name, parameter in model.named_parameters():
            if "c_attn.weight" in name:
                parameter.data *= sharp
        tokens, targets = some_batch(rows=8)
        _, exact = loss_and_gradients(model, tokens, targets)
        for how in errors:
            model.backend.attention = "manual" if how == "manual" else "sdpa"
            with torch.autocast("cpu", torch.bfloat16), pytest.MonkeyPatch.context() as patch:
                if how == "kernel":
                    patch.setattr("glassgpt.model.gpt.attend", plain_kernel)
                _, found = loss_and_gradients(model, tokens, targets)
            errors[how] += sum(float((found[name] - exact[name]).square().sum()) for name in exact)
        model.backend.attention = "sdpa"
    assert 0 < errors["manual"] < 1.1**2 * errors["kernel"]
    assert 0 < errors["sdpa"] < 1.02**2 * errors["kernel"]


@both
@pytest.mark.parametrize("fused", [True, False])
@few
@given(st.integers(1, CONTEXT - 1), st.integers(0, VOCABULARY - 1))
@torch.no_grad()
def test_a_later_token_changes_no_earlier_logit(arch: str, fused: bool, place: int, token: int) -> None:
    model = little_gpt(arch=arch).eval()
    model.backend.attention = "sdpa" if fused else "manual"
    tokens = some_tokens(rows=1)
    changed = tokens.clone()
    changed[0, place] = token
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :place], after[:, :place], atol=1e-6, rtol=0)
    if token != tokens[0, place]:
        assert (before[:, place:] - after[:, place:]).abs().max() > 1e-3


@few
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 9))
def test_rotary_scores_depend_on_the_distance_only(i: int, j: int, shift: int, seed: int) -> None:
    table = _rope_tables(64, 8)
    draw = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 8, generator=draw)

    def score(at_q: int, at_k: int) -> float:
        turned_q, turned_k = (_rotate(x.expand(64, 1, 1, 8), table)[:, 0, 0] for x in (q, k))
        return float(turned_q[at_q] @ turned_k[at_k])

    assert score(i + shift, j + shift) == pytest.approx(score(i, j), abs=1e-4)
    assert score(i, i) == pytest.approx(float(q @ k), abs=1e-4)


def test_rotary_tells_distances_apart() -> None:
    x = torch.ones(64, 1, 1, 8)
    turned = _rotate(x, _rope_tables(64, 8))[:, 0, 0]
    scores = [float(turned[0] @ turned[distance]) for distance in range(4)]
    assert scores[0] == pytest.approx(8)
    assert len({round(score, 2) for score in scores}) == 4


@both
@torch.no_grad()
def test_order_matters(arch: str) -> None:
    """Without positions the last logits would not see the order of the tokens before."""
    model = little_gpt(arch=arch, n_layer=1).eval()
    tokens = torch.tensor([[1, 2, 3, 4]])
    swapped = torch.tensor([[2, 1, 3, 4]])
    assert (model(tokens)[0, -1] - model(swapped)[0, -1]).abs().max() > 1e-3


@both
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_activation_checkpointing_changes_no_gradient(arch: str, dropout: float) -> None:
    model = little_gpt(arch=arch, dropout=dropout).train()
    tokens, targets = some_batch()
    results = []
    for wanted in (False, True):
        model.activation_checkpointing = wanted
        torch.manual_seed(5)
        results.append(loss_and_gradients(model, tokens, targets))
    (plain_loss, plain), (loss, checkpointed) = results
    assert loss == plain_loss
    assert plain.keys() == checkpointed.keys()
    for name in plain:
        torch.testing.assert_close(plain[name], checkpointed[name], atol=1e-7, rtol=0)


def test_activation_checkpointing_does_recompute() -> None:
    model = little_gpt()
    calls = []
    model.transformer.h[0].register_forward_pre_hook(lambda module, inputs: calls.append(1))
    for wanted, expected in ((False, 1), (True, 2)):
        model.activation_checkpointing = wanted
        calls.clear()
        loss_and_gradients(model, *some_batch())
        assert len(calls) == expected


@both
@pytest.mark.parametrize("fused", [True, False])
@torch.no_grad()
def test_dropout_is_for_training_only(arch: str, fused: bool) -> None:
    plain, dropping = little_gpt(arch=arch), little_gpt(arch=arch, dropout=0.3)
    dropping.backend.attention = "sdpa" if fused else "manual"
    tokens = some_tokens()
    assert not torch.allclose(dropping.train()(tokens), dropping(tokens))
    assert torch.equal(dropping.eval()(tokens), dropping(tokens))
    torch.testing.assert_close(dropping(tokens), plain.eval()(tokens), atol=1e-5, rtol=0)


# --- the loss ---


@both
@torch.no_grad()
def test_the_loss_is_cross_entropy_of_the_logits(arch: str) -> None:
    model = little_gpt(arch=arch).eval()
    tokens, targets = some_batch()
    logp = F.log_softmax(model(tokens).double(), dim=-1)
    by_hand = -logp.gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(model(tokens, targets, "none").double(), by_hand, atol=1e-5, rtol=0)
    assert model(tokens, targets).item() == pytest.approx(by_hand.mean().item(), abs=1e-5)


@torch.no_grad()
def test_ignored_targets_count_nothing() -> None:
    model = little_gpt().eval()
    tokens, targets = some_batch()
    full = model(tokens, targets, "none")
    targets = targets.clone()
    targets[:, 5:] = IGNORED_TARGET
    part = model(tokens, targets, "none")
    assert torch.equal(part[:, :5], full[:, :5])
    assert not part[:, 5:].any()
    assert model(tokens, targets).item() == pytest.approx(full[:, :5].mean().item(), abs=1e-6)


def activation_outputs(**changes: Any) -> torch.Tensor:
    with torch.no_grad():
        return little_gpt(**changes).eval()(some_tokens())  # type: ignore[no-any-return]


def test_each_activation_is_another_function() -> None:
    outputs = [activation_outputs(activation=name) for name in ("gelu", "gelu_new", "relu2")]
    assert not torch.equal(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[1], atol=0.1, rtol=0)  # tanh only approximates
    assert (outputs[0] - outputs[2]).abs().max() > 0.1
