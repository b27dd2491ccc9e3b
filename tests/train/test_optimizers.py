"""AdamW as torch has it, decay where it belongs, and state that finds its way home."""

from __future__ import annotations

import pytest
import torch
from tiny import bits

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.train.optimizers import load_optimizers, make_optimizers, optimizer_tensors

CONFIG = TrainConfig(learning_rate=1e-2, weight_decay=0.3, beta1=0.8, beta2=0.9)


def make_model(arch: str = "gpt2") -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16, bias=True, arch=arch))


def give_gradients(model: GPT, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_matrices_are_decayed_and_vectors_are_not(arch: str) -> None:
    model = make_model(arch)
    (optimizer,) = make_optimizers(model, CONFIG, torch.float32)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if name.endswith("bias") or "ln_" in name else 0.3), name


def test_updates_are_torchs_plain_adamw() -> None:
    ours, theirs = make_model(), make_model()
    (optimizer,) = make_optimizers(ours, CONFIG, torch.float32)
    decayed = [p for p in theirs.parameters() if p.dim() >= 2]
    others = [p for p in theirs.parameters() if p.dim() < 2]
    plain = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.8, 0.9),
        fused=False,
        foreach=False,
    )
    start = {name: parameter.clone() for name, parameter in ours.named_parameters()}
    for seed in range(3):
        for model, its in ((ours, optimizer), (theirs, plain)):
            give_gradients(model, seed)
            its.step()
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, atol=1e-7, rtol=1e-6)
            assert (mine - start[name]).abs().max() > 1e-3


def test_state_is_named_after_parameters_and_comes_back_whole() -> None:
    model = make_model()
    (optimizer,) = make_optimizers(model, CONFIG, torch.float32)
    assert optimizer_tensors(model, [optimizer]) == {}
    for seed in range(3):
        give_gradients(model, seed)
        optimizer.step()
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(model, [optimizer]).items()}
    assert "transformer.h.1.mlp.c_fc.weight:exp_avg_sq" in saved
    assert saved["transformer.wte.weight:step"].item() == 3
    assert len(saved) == 3 * len(list(model.parameters()))

    twin = make_model()
    twin.load_state_dict(model.state_dict())
    (restored,) = make_optimizers(twin, CONFIG, torch.float32)
    load_optimizers(twin, [restored], saved)
    for model_, its in ((model, optimizer), (twin, restored)):
        give_gradients(model_, 9)
        its.step()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert bits(mine) == bits(other)


def test_state_without_a_home_is_an_error() -> None:
    model = make_model("modern")
    with pytest.raises(UserError, match=r"state for transformer\.wpe\.weight, which this model does not"):
        load_optimizers(
            model,
            make_optimizers(model, CONFIG, torch.float32),
            {"transformer.wpe.weight:exp_avg": torch.zeros(1)},
        )


def test_the_learning_rate_reaches_every_group() -> None:
    (optimizer,) = make_optimizers(make_model(), CONFIG, torch.float32)
    optimizer.set_learning_rate(0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]
