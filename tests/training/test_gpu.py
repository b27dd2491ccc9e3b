"""The same promises on a CUDA device. Without one these tests skip, and say so."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import (
    MakeConfig,
    assert_same_tensors,
    capture_learners,
    choices,
    inject_non_finite,
    last_tensors,
    records,
    resume,
    run_evals,
    run_losses,
    run_until_crash,
    weights,
)

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate import overheads
from glassgpt.model import loss_chunks
from glassgpt.model.generate import generate
from glassgpt.model.gpt import attend
from glassgpt.model.token_sampler import TokenSampler
from glassgpt.sample.sample_options import SampleOptions
from glassgpt.sample.sampler import load_sampler
from glassgpt.training import probe
from glassgpt.training.checkpoint.checkpoints import committed_paths, load_tensors, read_checkpoint
from glassgpt.training.checkpoint.saver import Saver
from glassgpt.training.session import train

pytestmark = pytest.mark.gpu


@pytest.fixture
def on_gpu(tiny: MakeConfig) -> MakeConfig:
    def make(name: str = "gpu", **changes: Any) -> TrainConfig:
        settings: dict[str, Any] = {
            "device": "cuda",
            "dtype": "auto",
            "n_embd": 32,
            "block_size": 16,
            "batch_size": 8,
        }
        return tiny(name, **settings | changes)

    return make


def test_a_slow_host_does_not_decide_about_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel takes is the card's time: a host that launches late changes nothing."""

    def slow(*arguments: Any) -> torch.Tensor:
        time.sleep(0.001)
        return attend(*arguments)

    config = TrainConfig(n_layer=1, n_head=12, n_embd=768, block_size=1024)
    usual = probe.attention_times(config, torch.device("cuda"), "bfloat16")
    monkeypatch.setattr(probe, "attend", slow)
    late = probe.attention_times(config, torch.device("cuda"), "bfloat16")
    assert usual.keys() == late.keys()
    # Counted, a millisecond a call would make each two or three times as long; the rest is for a busy card.
    assert late == pytest.approx(usual, rel=0.5)


def test_a_full_card_says_what_to_do(on_gpu: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "glassgpt.training.out_of_memory._MAX_OVERCOMMIT_RATIO", math.inf
    )  # so that it is tried
    torch.cuda.set_per_process_memory_fraction(4 * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.raises(UserError) as raised:
            train(on_gpu("full", n_embd=256, batch_size=2**16))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    (message,) = raised.value.problems
    assert message.startswith("out of memory at update 1 (CUDA out of memory.")
    proposed = re.search(
        r"--batch_size=(\d+) --gradient_accumulation_steps=(\d+), which is the same", message
    )
    assert proposed is not None
    assert int(proposed[1]) <= 2**15
    assert int(proposed[1]) * int(proposed[2]) == 2**16
    assert train(on_gpu("smaller", n_embd=256, max_iters=2)).exit_code == 0


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_float32_is_that_of_the_cpu(on_gpu: MakeConfig, monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    # "high" would mean TF32, which has ten bits of precision.
    original = torch.set_float32_matmul_precision
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: original("highest"))
    gpu = on_gpu("gpu", arch=arch, dtype="float32", gradient_accumulation_steps=2)
    cpu = on_gpu("cpu", arch=arch, dtype="float32", gradient_accumulation_steps=2, device="cpu")
    train(gpu)
    train(cpu)
    assert run_losses(gpu.out_dir) == pytest.approx(run_losses(cpu.out_dir), abs=1e-3)
    assert run_evals(gpu.out_dir) == pytest.approx(run_evals(cpu.out_dir), abs=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_it_trains_and_resumes_exactly(on_gpu: MakeConfig, dtype: str) -> None:
    settings: dict[str, Any] = {
        "dtype": dtype,
        "max_iters": 40,
        "dropout": 0.1,
        "gradient_accumulation_steps": 2,
        "checkpoint_interval": 17,
        "log_interval": 3,
    }
    whole, config = on_gpu("whole", **settings), on_gpu("stopped", **settings)
    run = train(whole)
    assert run.exit_code == 0
    assert run.best_val_loss < run_evals(whole.out_dir)[0, "val"] - 0.3
    run_until_crash(config, 23)
    resume(config)
    assert run_losses(config.out_dir) == run_losses(whole.out_dir)
    assert run_evals(config.out_dir) == run_evals(whole.out_dir)
    assert_same_tensors(last_tensors(config.out_dir), last_tensors(whole.out_dir))
    steps = records(whole.out_dir, "step")
    assert all(("loss_scale" in step) == (dtype == "float16") for step in steps)


@pytest.mark.parametrize(("optimizer", "kernels"), [("adamw", "plain"), ("muon", "triton")])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_recorded_it_is_the_same_run(
    on_gpu: MakeConfig, optimizer: str, kernels: str, checkpointing: bool
) -> None:
    settings: dict[str, Any] = {
        "optimizer": optimizer,
        "kernels": kernels,
        "arch": "modern",
        "dtype": "float32",
        "dropout": 0.0 if checkpointing else 0.1,
        "gradient_accumulation_steps": 2,
        "activation_checkpointing": checkpointing,
    }
    graphed, usual = (on_gpu(name, graph=name, **settings) for name in ("on", "off"))
    train(graphed)
    train(usual)
    assert records(graphed.out_dir, "finding") == []
    assert run_losses(graphed.out_dir) == pytest.approx(run_losses(usual.out_dir), abs=2e-3)


@pytest.mark.gpu(float8=True)
@pytest.mark.parametrize("arch", ["gpt2", "modern"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("graph", ["on", "off"])
def test_in_8_bits_it_trains_and_resumes(
    on_gpu: MakeConfig, monkeypatch: pytest.MonkeyPatch, arch: str, checkpointing: bool, graph: str
) -> None:
    monkeypatch.setattr(
        loss_chunks, "MAX_UNCHUNKED_LOGIT_BYTES", 0
    )  # the head too, where its vocabulary fits
    monkeypatch.setattr(overheads, "MIN_FLOAT8_TOKENS", 0)
    settings: dict[str, Any] = {
        "arch": arch, "fp8": True, "graph": graph, "activation_checkpointing": checkpointing,
        "gradient_accumulation_steps": 2, "max_iters": 40,
    }  # fmt: skip
    whole, cut = on_gpu("whole", **settings), on_gpu("cut", **settings)
    run = train(whole)
    assert run.best_val_loss < run_evals(whole.out_dir)[0, "val"] - 0.3
    assert records(whole.out_dir, "finding") == []
    run_until_crash(cut, 23)
    resume(cut)
    assert run_losses(cut.out_dir) == pytest.approx(run_losses(whole.out_dir), abs=2e-2)
    exact = on_gpu("exact", **settings | {"fp8": False})
    assert train(exact).best_val_loss == pytest.approx(run.best_val_loss, abs=0.1)


@pytest.mark.parametrize("graph", ["on", "off"])
def test_muon_and_our_kernels_resume_where_they_were(on_gpu: MakeConfig, graph: str) -> None:
    settings: dict[str, Any] = {
        "optimizer": "muon", "kernels": "triton", "arch": "modern", "dropout": 0.1, "graph": graph,
    }  # fmt: skip
    whole, cut = on_gpu("whole", max_iters=20, **settings), on_gpu("cut", max_iters=20, **settings)
    train(whole)
    run_until_crash(cut, 13)
    resume(cut)
    assert run_losses(cut.out_dir) == pytest.approx(run_losses(whole.out_dir), abs=2e-2)


def test_the_dtype_is_decided_by_the_card(on_gpu: MakeConfig) -> None:
    config = on_gpu(max_iters=2)
    train(config)
    value, reason = choices(config.out_dir)["dtype"]
    major, minor = torch.cuda.get_device_capability()
    assert value == ("bfloat16" if major >= 8 else "float16" if major == 7 else "float32")
    assert f"{major}.{minor}" in reason


def test_every_second_is_in_the_ledger(on_gpu: MakeConfig) -> None:
    config = on_gpu(max_iters=300, eval_interval=100, log_interval=10)
    train(config)
    end = records(config.out_dir, "end")[-1]
    assert sum(end["ledger"].values()) == pytest.approx(end["wall_s"], rel=1e-9)
    assert end["ledger"]["other"] < 0.02 * end["wall_s"] + 0.02  # a run of half a second
    assert all(seconds >= 0 for seconds in end["ledger"].values())


def test_memory_and_the_wait_for_data_come_from_the_card(on_gpu: MakeConfig) -> None:
    config = on_gpu(max_iters=60, log_interval=10, gradient_accumulation_steps=2)
    train(config)
    for step in records(config.out_dir, "step"):
        assert step["memory"]["allocated_peak"] > 10**4
        # Not during a capture, which begins by releasing unused memory.
        assert step["iter"] <= 10 or step["memory"]["reserved"] >= step["memory"]["allocated_peak"]
        # Two copies of a kilobyte an update: the card waits, but for well under the whole step.
        assert step["phases"]["data"] > 0
        if step["step_ms"] is not None:
            assert step["phases"]["data"] + step["phases"]["train"] >= 0.9 * step["step_ms"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_it_is_the_same_run(on_gpu: MakeConfig, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(
        loss_chunks, "MAX_UNCHUNKED_LOGIT_BYTES", 0
    )  # the loss in pieces, as large vocabularies have it
    compiled, eager = (on_gpu(name, compile=name, dtype=dtype, n_layer=1) for name in ("on", "off"))
    train(compiled)
    train(eager)
    assert records(compiled.out_dir, "finding") == []
    assert run_losses(compiled.out_dir) == pytest.approx(run_losses(eager.out_dir), abs=0.02)
    ledger = records(compiled.out_dir, "end")[-1]["ledger"]
    assert ledger["compile"] > records(eager.out_dir, "end")[-1]["ledger"]["compile"]
    assert all(step["step_ms"] < 1000 for step in records(compiled.out_dir, "step")[1:])


# An infinite gradient is routine in float16: the scaler skips that update and goes on (below).
@pytest.mark.parametrize(
    ("dtype", "what"), [("bfloat16", "loss"), ("bfloat16", "gradient"), ("float16", "loss")]
)
def test_nothing_bad_is_applied_while_nobody_looks(
    on_gpu: MakeConfig, monkeypatch: pytest.MonkeyPatch, dtype: str, what: str
) -> None:
    graph = "on" if what == "gradient" else "off"  # a replayed loss cannot be tampered with
    steps = 2 if graph == "on" else 1  # of one micro-step no gradient outlives a replay
    config = on_gpu(
        dtype=dtype,
        max_iters=40,
        log_interval=10,
        eval_interval=20,
        checkpoint_interval=10,
        graph=graph,
        gradient_accumulation_steps=steps,
    )
    learners = capture_learners(monkeypatch)
    before = inject_non_finite(monkeypatch, 23, what)
    run = train(config)
    assert (run.reason, run.exit_code, run.iter) == ("not finite", 3, 23)
    end = records(config.out_dir, "end")[-1]
    assert end["bad_iter"] == 24
    assert end["last_checkpoint"] == str(committed_paths(Path(config.out_dir))[-1])
    assert read_checkpoint(committed_paths(Path(config.out_dir))[-1]).iter == 20
    assert_same_tensors({"model": weights(learners[0])}, {"model": before})


def test_a_scaler_that_overflows_goes_on(on_gpu: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = on_gpu(dtype="float16", max_iters=20)
    inject_non_finite(monkeypatch, 5, "gradient")
    run = train(config)
    assert run.reason == "finished"
    scales = {step["iter"]: step["loss_scale"] for step in records(config.out_dir, "step")}
    assert scales[6] == scales[5] / 2


def test_a_run_moves_to_the_cpu_and_back(on_gpu: MakeConfig) -> None:
    config = on_gpu(max_iters=10, dtype="float32")
    train(config)
    resume(config, device="cpu", max_iters=15)
    run = resume(config, max_iters=20)
    assert (run.reason, run.iter) == ("finished", 20)


def test_a_save_does_not_hold_up_the_run_and_is_what_it_was(
    on_gpu: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is made on the card; updates that follow at once do not reach it."""
    config = on_gpu(max_iters=6, eval_interval=3, keep_checkpoints=9)
    seen: dict[int, Any] = {}
    original = Saver.save

    def save(saver: Saver, tensors: Any, state: Any, *rest: Any) -> None:
        seen[state["iter"]] = {name: tensor.cpu().clone() for name, tensor in tensors["model"].items()}
        original(saver, tensors, state, *rest)

    monkeypatch.setattr(Saver, "save", save)
    train(config)
    points = [read_checkpoint(path) for path in committed_paths(Path(config.out_dir))]
    assert [point.iter for point in points] == [3, 6]
    for point in points:
        tensors = load_tensors(point)["model"]
        assert all(torch.equal(tensors[name], tensor) for name, tensor in seen[point.iter].items())


def test_without_room_on_the_card_the_copy_is_made_in_main_memory(
    on_gpu: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy, tight = (
        on_gpu("roomy", max_iters=4, eval_interval=2),
        on_gpu("tight", max_iters=4, eval_interval=2),
    )
    train(roomy)
    monkeypatch.setattr("glassgpt.training.checkpoint.saver._fits_beside", lambda tensors, device: False)
    train(tight)
    assert_same_tensors(last_tensors(roomy.out_dir), last_tensors(tight.out_dir))


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_text_is_that_of_the_cpu_with_and_without_cache(on_gpu: MakeConfig, arch: str) -> None:
    run_dir = str(train(on_gpu(arch=arch, max_iters=30)).out_dir)
    options = SampleOptions(num_samples=3, max_new_tokens=40, temperature=0.0, dtype="float32")
    texts = {}
    for device in ("cuda", "cpu"):
        writer = load_sampler(run_dir, replace(options, device=device))
        prompt = writer.encode("the ")
        texts[device] = [
            "".join(parts) for parts in zip(*filter(None, writer.sample(prompt, options)), strict=True)
        ]
        likeliest = TokenSampler(writer.tokenizer.vocab_size, temperature=0.0)
        plain = generate(writer.model, prompt, 40, likeliest, use_cache=False)
        assert texts[device] == [writer.tokenizer.decode(plain)] * 3
    assert texts["cuda"] == texts["cpu"]
    half = load_sampler(run_dir, replace(options, device="cuda", dtype="bfloat16"))
    assert len(list(half.sample(half.encode("the "), replace(options, temperature=1.0)))) == 42
