"""AdamW as torch has it, Muon as its paper says, and state that finds its way home."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import tensor_bytes

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.training.optimizers import (
    Muon,
    load_optimizer_state,
    make_optimizers,
    optimizer_tensors,
    orthogonalize,
)

CONFIG = TrainConfig(learning_rate=1e-2, weight_decay=0.3, beta1=0.8, beta2=0.9)


def make_model(arch: str = "gpt2") -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16, bias=True, arch=arch))


def give_gradients(model: GPT, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_matrices_are_decayed_and_vectors_are_not(arch: str) -> None:
    model = make_model(arch)
    (optimizer,) = make_optimizers(model, CONFIG, torch.float32)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if name.endswith("bias") or "ln_" in name else 0.3), name


def test_updates_are_torchs_plain_adamw() -> None:
    model, reference = make_model(), make_model()
    (optimizer,) = make_optimizers(model, CONFIG, torch.float32)
    optimizer.set_learning_rate(CONFIG.learning_rate)
    decayed = [p for p in reference.parameters() if p.dim() >= 2]
    others = [p for p in reference.parameters() if p.dim() < 2]
    plain = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.8, 0.9),
        fused=False,
        foreach=False,
    )
    start = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for seed in range(3):
        for trained, its in ((model, optimizer), (reference, plain)):
            give_gradients(trained, seed)
            its.step()
        for (name, parameter), expected in zip(model.named_parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(parameter, expected, atol=1e-7, rtol=1e-6)
            assert (parameter - start[name]).abs().max() > 1e-3


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
    load_optimizer_state(twin, [restored], saved)
    for model_, its in ((model, optimizer), (twin, restored)):
        give_gradients(model_, 9)
        its.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert tensor_bytes(one) == tensor_bytes(other)


def test_state_without_a_home_is_an_error() -> None:
    model = make_model("modern")
    with pytest.raises(UserError, match=r"state for transformer\.wpe\.weight, which this model does not"):
        load_optimizer_state(
            model,
            make_optimizers(model, CONFIG, torch.float32),
            {"transformer.wpe.weight:exp_avg": torch.zeros(1)},
        )


def test_the_learning_rate_reaches_every_group() -> None:
    (optimizer,) = make_optimizers(make_model(), CONFIG, torch.float32)
    optimizer.set_learning_rate(0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]


def test_the_compiler_is_not_imported_to_train() -> None:
    """torch's own optimizers import it at their first use: seconds of every start."""
    code = (
        "import sys, torch; from glassgpt.config import TrainConfig; "
        "from glassgpt.model.gpt import GPT, GPTConfig; "
        "from glassgpt.training.optimizers import make_optimizers; "
        "model = GPT(GPTConfig(11, 8, 1, 1, 8)); "
        "(one,) = make_optimizers(model, TrainConfig(), torch.float32); "
        "model(torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long)).backward(); "
        "one.step(); print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- Muon ---

MUON = TrainConfig(
    optimizer="muon", learning_rate=1e-2, matrix_lr=0.05, muon_momentum=0.8, weight_decay=0.0, arch="modern"
)


def muon_of(model: GPT, config: TrainConfig = MUON) -> Muon:
    muon, _ = make_optimizers(model, config, torch.float32)
    assert isinstance(muon, Muon)
    muon.set_learning_rate(config.learning_rate)
    return muon


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 8, 32), (1, 32, 8), (3, 12, 6)])
def test_orthogonal_keeps_directions_and_evens_out_lengths(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    orthogonal = orthogonalize(matrix, 5, torch.float32)
    assert (torch.linalg.svdvals(orthogonal) - 1).abs().max() < 0.35
    along = (orthogonal * (u @ v)).sum((-2, -1)) / (
        orthogonal.norm(dim=(-2, -1)) * (u @ v).norm(dim=(-2, -1))
    )
    assert along.min() > 0.99
    assert orthogonalize(torch.zeros(1, 4, 4), 5, torch.float32).abs().max() == 0


def test_muon_has_the_blocks_matrices_and_adamw_the_rest() -> None:
    model = make_model("modern")
    muon, adamw = make_optimizers(model, MUON, torch.float32)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    taken = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    assert taken == {name for name in names.values() if ".h." in name and "ln_" not in name}
    rest = {names[id(p)] for group in adamw.param_groups for p in group["params"]}
    assert taken | rest == set(names.values())
    assert not taken & rest


def test_the_embedding_has_its_own_rate_if_it_is_not_the_head() -> None:
    config = replace(MUON, embedding_lr=0.3, tie_embeddings=False)
    torch.manual_seed(0)
    model = GPT(GPTConfig(11, 8, 1, 2, 16, arch="modern", tie_embeddings=False))
    muon, adamw = make_optimizers(model, config, torch.float32)
    for optimizer in (muon, adamw):
        optimizer.set_learning_rate(0.005)  # half way down
    rates = {
        id(p): group["lr"] for one in (muon, adamw) for group in one.param_groups for p in group["params"]
    }
    assert rates[id(model.transformer.wte.weight)] == pytest.approx(0.15)
    assert rates[id(model.lm_head.weight)] == pytest.approx(0.005)
    assert rates[id(dict(model.named_parameters())["transformer.h.0.mlp.c_fc.weight"])] == pytest.approx(
        0.025
    )


def test_muons_steps_are_the_papers() -> None:
    """Nesterov's momentum, made orthogonal map by map, times the rate and the shape's factor."""
    model = make_model("modern")
    muon, parameters = muon_of(model), dict(model.named_parameters())
    weight = parameters["transformer.h.0.attn.c_attn.weight"]
    average = torch.zeros_like(weight)
    for seed in range(3):
        give_gradients(model, seed)
        before, gradient = weight.detach().clone(), weight.grad
        assert gradient is not None
        average = 0.8 * average + 0.2 * gradient
        ahead = 0.2 * gradient + 0.8 * average
        muon.step()
        for part in range(3):
            rows = slice(16 * part, 16 * part + 16)
            wanted = before[rows] - 0.05 * orthogonalize(ahead[None, rows], 5, torch.float32)[0]
            torch.testing.assert_close(weight.detach()[rows], wanted, atol=1e-5, rtol=1e-5)
    tall = parameters["transformer.h.1.mlp.c_fc.weight"]  # 64 x 16: a step twice as long
    start = tall.detach().clone()
    muon.step()
    assert torch.linalg.svdvals(tall.detach() - start).median() == pytest.approx(0.05 * 2, rel=0.35)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_skipped_step_changes_nothing(optimizer: Any) -> None:
    model = make_model("modern")
    config = replace(MUON, optimizer=optimizer, weight_decay=0.1)
    both = make_optimizers(model, config, torch.float32)
    give_gradients(model, 0)
    for one in both:
        one.set_learning_rate(config.learning_rate)
        one.found_inf = torch.zeros(())
        one.step()
    weights = {name: tensor_bytes(parameter) for name, parameter in model.named_parameters()}
    state = {name: tensor_bytes(tensor) for name, tensor in optimizer_tensors(model, both).items()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    for one in both:
        assert one.found_inf is not None
        one.found_inf.fill_(1.0)
        one.step()
    assert {name: tensor_bytes(parameter) for name, parameter in model.named_parameters()} == weights
    assert {name: tensor_bytes(tensor) for name, tensor in optimizer_tensors(model, both).items()} == state


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_card_takes_the_steps_of_a_cpu(optimizer: Any) -> None:
    """With its rate on the card, and a step that the card itself skips."""
    config = replace(MUON, optimizer=optimizer, weight_decay=0.1, matrix_lr=0.01)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    ends = []
    for device in ("cpu", "cuda"):
        model = make_model("modern").to(device)
        both = make_optimizers(model, config, torch.float32)
        for seed in range(4):
            give_gradients(model, seed)
            for one in both:
                one.set_learning_rate(config.learning_rate / (1 + seed))
                one.found_inf = torch.full((), float(seed == 2), device=device)
                one.step()
        state = optimizer_tensors(model, both)
        ends.append({**dict(model.named_parameters()), **state})
    torch.set_float32_matmul_precision(precision)
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name].detach().cpu(), tensor.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("before", "now"), [("adamw", "muon"), ("muon", "adamw")])
def test_another_optimizer_begins_without_the_memory_of_the_one_before(before: Any, now: Any) -> None:
    model = make_model("modern")
    previous = make_optimizers(model, replace(MUON, optimizer=before), torch.float32)
    give_gradients(model, 0)
    for one in previous:
        one.step()
    current = make_optimizers(model, replace(MUON, optimizer=now), torch.float32)
    warnings = load_optimizer_state(model, current, optimizer_tensors(model, previous))
    assert warnings == ["the optimizer has changed: it starts without state for 8 parameters"]
    for one in current:
        one.step()
