"""The FLOP count is nanoGPT's, to the last operation."""

from __future__ import annotations

import pytest

from glassgpt.estimate import flops
from glassgpt.estimate.flops import FLOPS_CONVENTION, count_parameters, flops_per_token, six_n_flops_per_token
from glassgpt.model.gpt import GPT, GPTConfig


def gpt2(vocab_size: int = 50304, bias: bool = False, positions: bool = True) -> int:
    return count_parameters(
        vocab_size=vocab_size,
        block_size=1024,
        n_layer=12,
        n_embd=768,
        arch="gpt2",
        bias=bias,
        positions=positions,
    )


def test_gpt2s_own_parameters() -> None:
    # OpenAI's checkpoint: 50257 ids and biases; "124M" with positions.
    assert gpt2(50257, bias=True) == 124_439_808
    # nanoGPT's from-scratch run prints "number of parameters: 123.59M".
    assert gpt2(positions=False) == 123_587_328
    assert gpt2() - gpt2(positions=False) == 1024 * 768


def test_nanogpts_baby_gpt_prints_10_65_million() -> None:
    count = count_parameters(
        vocab_size=65, block_size=256, n_layer=6, n_embd=384, arch="gpt2", bias=False, positions=False
    )
    assert count == 10_646_784


def test_gpt2_takes_854_8_mflop_per_token() -> None:
    found = flops_per_token(gpt2(positions=False), n_layer=12, n_embd=768, context=1024)
    assert found == 6 * 123_587_328 + 12 * 12 * 768 * 1024
    assert found / 1e6 == pytest.approx(854.8, abs=0.05)
    assert "854.8 MFLOP/token" in (flops.__doc__ or "")


def test_it_is_nanogpts_estimate_mfu() -> None:
    # nanoGPT model.py: flops_per_token = 6*N + 12*L*H*Q*T
    N, L, H, Q, T = gpt2(positions=False), 12, 12, 768 // 12, 1024
    assert flops_per_token(N, L, H * Q, T) == 6 * N + 12 * L * H * Q * T


def test_the_plain_rule_leaves_attention_out() -> None:
    N = gpt2(positions=False)
    assert six_n_flops_per_token(N) == 741_523_968
    assert flops_per_token(N, 12, 768, 0) == six_n_flops_per_token(N)
    assert "causal not halved" in FLOPS_CONVENTION


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_the_formula_counts_what_the_model_has(arch: str, bias: bool) -> None:
    shape = GPTConfig(vocab_size=37, block_size=10, n_layer=3, n_head=2, n_embd=12, bias=bias, arch=arch)
    model = GPT(shape)
    for positions in (True, False):
        counted = count_parameters(
            vocab_size=37,
            block_size=10,
            n_layer=3,
            n_embd=12,
            arch=arch,
            bias=bias,
            positions=positions,
        )
        assert counted == model.parameter_count(positions)
    assert sum(weight.numel() for weight in model.parameters()) == model.parameter_count()
