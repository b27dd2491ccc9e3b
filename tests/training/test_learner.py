"""One update: the textbook's, however it is cut; nothing bad is applied; compiling may fail."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny import (
    MakeConfig,
    assert_close_tensors,
    assert_same_tensors,
    capture_learners,
    choices,
    inject_non_finite,
    last_tensors,
    make_learner,
    make_model,
    records,
    run_evals,
    run_losses,
    weights,
    whole_batch,
)
from torch import Tensor

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT
from glassgpt.schedule import learning_rate
from glassgpt.training.learner import Learner
from glassgpt.training.loader import BatchLoader
from glassgpt.training.session import train

# --- against a plain loop ---


def textbook(config: TrainConfig) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Losses, gradient norms and final weights of the same run, written as one would in a notebook."""
    model = make_model(config)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=(config.beta1, config.beta2),
    )
    losses, norms = [], []
    for update in range(config.max_iters):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, update)
        optimizer.zero_grad()
        loss = model(*whole_batch(config, update))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip or math.inf)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms, {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("grad_clip", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_a_run_is_the_textbook_loop(tiny: MakeConfig, arch: str, steps: int, grad_clip: float) -> None:
    config = tiny(
        arch=arch,
        gradient_accumulation_steps=steps,
        grad_clip=grad_clip,
        max_iters=8,
        eval_interval=100,
        bias=True,
        weight_decay=0.2,
    )
    train(config)
    losses, norms, final = textbook(config)
    updates = records(config.out_dir, "step")
    assert [record["iter"] for record in updates] == list(range(1, 9))
    # The loss of a record is that of all micro-batches of its update, not of the last one.
    assert [record["loss"] for record in updates] == pytest.approx(losses, abs=1e-5)
    assert [record["grad_norm"] for record in updates] == pytest.approx(norms, abs=1e-4)
    assert [record["clipped"] for record in updates] == [float(norm > grad_clip > 0) for norm in norms]
    assert [record["lr"] for record in updates] == [learning_rate(config, update) for update in range(8)]
    assert grad_clip != 0.3 or sum(record["clipped"] for record in updates) > 4
    assert_close_tensors(last_tensors(config.out_dir)["model"], final, 1e-4)


def test_accumulation_is_a_larger_batch(tiny: MakeConfig) -> None:
    cuts = [(12, 1), (6, 2), (4, 3), (1, 12)]
    runs = []
    for size, steps in cuts:
        config = tiny(f"{size}x{steps}", batch_size=size, gradient_accumulation_steps=steps, max_iters=6)
        train(config)
        runs.append(config.out_dir)
    whole = last_tensors(runs[0])["model"]
    for other in runs[1:]:
        assert run_losses(other) == pytest.approx(run_losses(runs[0]), abs=1e-6)
        assert_close_tensors(last_tensors(other)["model"], whole, 2e-6)


def test_micro_batches_are_different_sequences(tiny: MakeConfig) -> None:
    config = tiny(gradient_accumulation_steps=4)
    loader = make_learner(config)._loader
    rows = torch.cat([loader.micro_batch(5 * 16 + first, 0)[0] for first in (0, 4, 8, 12)])
    assert rows.tolist() == whole_batch(config, 5)[0].tolist()
    assert len({tuple(row) for row in rows.tolist()}) == 16


def test_dropout_is_a_function_of_update_and_micro_step(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(dropout=0.5, learning_rate=1e-30, gradient_accumulation_steps=2)
    batch = whole_batch(config, 0)  # always the same, so that only the masks differ
    monkeypatch.setattr(BatchLoader, "micro_batch", lambda *_: batch)

    def losses(numbers: list[int]) -> list[float]:
        learner = make_learner(config)
        torch.manual_seed(len(numbers))  # whatever was drawn before must not matter
        for number in numbers:
            learner.update(number, 4 * number)
        return learner.take_losses_and_norms()[0]

    one = losses([0, 1, 2, 3])
    assert len(set(one)) == 4
    assert losses([2, 3]) == one[2:]
    assert losses([3, 3]) == [one[3], one[3]]
    config = dataclasses.replace(config, gradient_accumulation_steps=1)
    assert losses([0]) != [one[0]]  # the second micro-batch had masks of its own
    config = dataclasses.replace(config, dropout=0.0)
    assert len(set(losses([0, 1, 2]))) == 1


# --- nothing bad is applied ---


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_from_the_first_bad_update_on_nothing_is_applied(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    before = inject_non_finite(monkeypatch, 3, what)
    learner = make_learner(tiny())
    for number in range(3):
        learner.update(number, 4 * number)
    state = {name: tensor.clone() for name, tensor in optimizer_state(learner).items()}
    for number in range(3, 7):
        learner.update(number, 4 * number)
    assert learner.finite_check.first_bad_update() == 3
    assert_same_tensors({"model": weights(learner)}, {"model": before})
    assert_same_tensors({"optimizer": optimizer_state(learner)}, {"optimizer": state})
    losses, norms = learner.take_losses_and_norms()
    assert len(losses) == len(norms) == 7
    assert math.isnan(losses[3]) == (what == "loss")
    assert not math.isfinite(norms[3])
    assert all(math.isfinite(value) for value in losses[:3] + norms[:3] + losses[4:] + norms[4:])


def optimizer_state(learner: Learner) -> dict[str, Tensor]:
    return {
        f"{name}:{key}": value
        for name, parameter in learner.model.named_parameters()
        for key, value in learner.optimizers[0].state[parameter].items()
    }


def test_float16_takes_an_infinite_gradient_as_routine(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = inject_non_finite(monkeypatch, 1, "gradient")
    learner = make_learner(tiny(), dtype="float16")
    learner.update(0, 4 * 0)
    scale = learner.scaler.get_scale()
    learner.update(1, 4 * 1)
    assert_same_tensors({"model": weights(learner)}, {"model": before})
    assert learner.scaler.get_scale() == scale / 2
    learner.update(2, 4 * 2)
    assert learner.finite_check.first_bad_update() is None
    assert any(not torch.equal(value, before[name]) for name, value in weights(learner).items())


def test_float16_too_applies_nothing_after_a_bad_loss(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The scaler by itself would skip update 2 only, and apply 3 and 4 all the same.
    before = inject_non_finite(monkeypatch, 2, "loss")
    learner = make_learner(tiny(), dtype="float16")
    for number in range(5):
        learner.update(number, 4 * number)
    assert learner.finite_check.first_bad_update() == 2
    assert_same_tensors({"model": weights(learner)}, {"model": before})


def test_a_float16_scale_that_only_falls_is_noticed(tiny: MakeConfig) -> None:
    learner = make_learner(tiny(), dtype="float16")
    before = weights(learner)
    parameter = next(learner.model.parameters())
    parameter.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[no-untyped-call]
    for number in range(16):  # the scale starts at 65,536 and is halved each time
        learner.update(number, 4 * number)
        assert learner.first_bad_update(number + 1) is None
    learner.update(16, 64)
    assert learner.first_bad_update(17) == 16
    assert_same_tensors({"model": weights(learner)}, {"model": before})


# --- compiling ---


class LazyFailure:
    """What torch.compile returns when it will fail: a callable that only fails when it is called."""

    def __init__(self, hidden: Any, error: Exception, when: str) -> None:
        self.hidden, self.model, self.error, self.when = hidden, hidden.__self__, error, when

    def __call__(self, tokens: Tensor) -> Tensor:
        scoring = not self.model.training
        if self.when == "forward" or self.when == ("score" if scoring else "update"):
            raise self.error
        hidden: Tensor = self.hidden(tokens)
        if self.when == "backward" and not scoring:
            return _FailsBackward.apply(hidden, self.error)  # type: ignore[no-untyped-call, no-any-return]
        if self.when == "late" and not scoring:
            embedding = self.model.transformer.wte.weight
            self.hook = embedding.register_hook(self._fail_late)
        return hidden

    def _fail_late(self, gradient: Tensor) -> None:
        """The embedding's gradient is complete last: all others have been added to by now."""
        self.hook.remove()
        raise self.error


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, error: Exception) -> Tensor:
        ctx.error = error
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise ctx.error


Break = Callable[..., None]


@pytest.fixture
def broken_compiler(monkeypatch: pytest.MonkeyPatch) -> Break:
    def install(when: str, error: Exception) -> None:
        monkeypatch.setattr(torch, "compile", lambda hidden, **_: LazyFailure(hidden, error, when))

    return install


@pytest.mark.parametrize("when", ["forward", "backward", "late", "score", "update"])
def test_a_failing_compiler_costs_speed_only(tiny: MakeConfig, broken_compiler: Break, when: str) -> None:
    settings = {"dropout": 0.1, "gradient_accumulation_steps": 2, "max_iters": 6, "eval_interval": 3}
    plain, config = tiny("plain", **settings), tiny("broken", compile="on", **settings)
    train(plain)
    broken_compiler(when, RuntimeError("fell over\nand a long trace"))
    run = train(config)
    assert run.exit_code == 0
    assert run_losses(config.out_dir) == run_losses(plain.out_dir)
    assert run_evals(config.out_dir) == run_evals(plain.out_dir)
    assert_same_tensors(last_tensors(config.out_dir), last_tensors(plain.out_dir))
    (finding,) = records(config.out_dir, "finding")
    assert finding["id"] == "compile-failed"
    assert finding["evidence"] == "RuntimeError: fell over"
    assert "--compile=off" in finding["advice"]


def test_a_model_that_fails_without_the_compiler_too_is_not_hidden(
    tiny: MakeConfig, broken_compiler: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_compiler("forward", RuntimeError("the compiler"))
    monkeypatch.setattr("glassgpt.model.gpt.GPT.forward_hidden", lambda self, tokens: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(tiny(compile="on"))
    assert records(tiny().out_dir)[-1]["reason"] == "crashed"


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_out_of_memory_is_not_the_compilers_fault(
    tiny: MakeConfig, broken_compiler: Break, when: str
) -> None:
    config = tiny(compile="on")
    broken_compiler(when, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    with pytest.raises(UserError, match="out of memory at update 1 "):
        train(config)
    assert records(config.out_dir, "finding") == []
    end = records(config.out_dir, "end")[-1]
    assert (end["reason"], end["exit_code"]) == ("crashed", 2)
    assert "out of memory" in end["error"]


def test_an_error_later_on_is_an_error(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    class FailsLater:
        def __init__(self, hidden: Any, **_: Any) -> None:
            self.hidden, self.calls = hidden, 0

        def __call__(self, tokens: Tensor) -> Tensor:
            self.calls += self.hidden.__self__.training
            if self.calls > 3:
                raise RuntimeError("a bug in the fourth update")
            return self.hidden(tokens)  # type: ignore[no-any-return]

    monkeypatch.setattr(torch, "compile", FailsLater)
    with pytest.raises(RuntimeError, match="fourth update"):
        train(tiny(compile="on"))
    assert records(tiny().out_dir, "finding") == []


def test_float16_on_a_cpu_becomes_bfloat16_and_says_so(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners = capture_learners(monkeypatch)
    config = tiny(dtype="float16", max_iters=3)
    train(config)
    value, reason = choices(config.out_dir)["dtype"]
    assert value == "bfloat16"
    assert "float16 was asked for" in reason
    assert learners[0].execution.dtype == "bfloat16"
    assert not learners[0].scaler.is_enabled()
    assert all(p.dtype == torch.float32 for p in learners[0].model.parameters())
    train(tiny("same", dtype="bfloat16", max_iters=3))
    assert run_losses(config.out_dir) == run_losses(tiny("same").out_dir)
    train(tiny("full", dtype="float32", max_iters=3))
    full = run_losses(tiny("full").out_dir)
    assert run_losses(config.out_dir) != full
    assert run_losses(config.out_dir) == pytest.approx(full, abs=0.05)


def test_textbook_attention_can_be_asked_for(tiny: MakeConfig) -> None:
    for name in ("sdpa", "manual"):
        train(tiny(name, attention=name, max_iters=5))
    assert run_losses(tiny("manual").out_dir) == pytest.approx(run_losses(tiny("sdpa").out_dir), abs=1e-5)
    assert choices(tiny("manual").out_dir)["attention"] == ("manual", "asked for")


@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_an_overflow_anywhere_skips_the_update_of_every_optimizer(tiny: MakeConfig, factor: float) -> None:
    """In float16 it is routine, and Muon must not step on what AdamW's gradients did to the norm."""
    learner = make_learner(tiny(optimizer="muon", arch="modern"), dtype="float16")
    assert learner.scaler.is_enabled()
    learner.update(0, 0)
    before, scale = weights(learner), learner.scaler.get_scale()
    hook = learner.model.lm_head.weight.register_hook(  # type: ignore[no-untyped-call]
        lambda gradient: gradient * factor
    )
    learner.update(1, 4)
    hook.remove()
    assert_same_tensors({"model": weights(learner)}, {"model": before})
    assert learner.scaler.get_scale() == scale / 2
    learner.update(2, 8)
    after = weights(learner)
    assert all(tensor.isfinite().all() for tensor in after.values())
    assert any(not torch.equal(after[name], before[name]) for name in after)


def test_kernels_that_cannot_be_built_cost_speed_only(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise RuntimeError("no compiler")

    plain, own = tiny("plain", dropout=0.1), tiny("own", dropout=0.1)
    train(plain)
    monkeypatch.setattr("glassgpt.model.ops._kernels", broken)
    monkeypatch.setattr(Learner, "__init__", with_kernels(Learner.__init__))
    train(own)
    assert run_losses(own.out_dir) == run_losses(plain.out_dir)
    (finding,) = records(own.out_dir, "finding")
    assert (finding["id"], finding["values"]["flag"]) == ("kernels-failed", "--kernels=plain")
    assert "no compiler" in finding["evidence"]


def with_kernels(init: Any) -> Any:
    def changed(learner: Learner, model: GPT, *rest: Any) -> None:
        model.backend.kernels = True
        init(learner, model, *rest)

    return changed
