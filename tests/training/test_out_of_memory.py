"""Memory that is not enough. What a real card says when it is full: test_gpu.py."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import MakeConfig, records

from glassgpt import cli
from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate.batching import plan_batch
from glassgpt.estimate.memory import estimate_memory
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.training import probe
from glassgpt.training.out_of_memory import less_memory_advice
from glassgpt.training.session import train

CARDS_WORDS = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 11.99 GiB"
CPUS_WORDS = (
    "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9000000000 bytes"
)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError(CARDS_WORDS), RuntimeError(CPUS_WORDS), MemoryError()]
)
def test_what_ran_out_says_how_to_do_with_less(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(run: object, state: object) -> None:
        raise error

    monkeypatch.setattr("glassgpt.training.loop.update", full)
    config = tiny(batch_size=6, batch_tokens=None, gradient_accumulation_steps=2)
    with pytest.raises(UserError) as raised:
        train(config)
    (message,) = raised.value.problems
    assert re.match(r"out of memory .*update 1 \(", message)
    assert "try --batch_size=3 --gradient_accumulation_steps=4" in message
    end = records(config.out_dir)[-1]
    assert (end["reason"], end["exit_code"]) == ("crashed", 2)
    assert end["error"].startswith(type(error).__name__)  # as it was: who explains the run knows these words


def test_another_error_is_itself(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: object, state: object) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr("glassgpt.training.loop.update", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        train(tiny())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(CARDS_WORDS), RuntimeError("shapes")])
def test_before_the_first_update(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr("glassgpt.training.session.set_up", full)
    if isinstance(error, torch.OutOfMemoryError):
        with pytest.raises(UserError, match=r"^out of memory before the first update \(CUDA.*--n_layer"):
            train(tiny())
    else:
        with pytest.raises(RuntimeError, match="shapes"):
            train(tiny())


def test_a_model_larger_than_memory_is_not_begun(
    tiny: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(n_embd=2**24, n_head=1)
    with pytest.raises(UserError, match=r"parameters take [\d.]+ TiB, and there are .* try a smaller model"):
        train(config)


def test_what_will_not_fit_is_said_at_the_start(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """About 300 MiB are needed, most of them by the process itself."""
    monkeypatch.setattr(probe, "usable_memory", lambda: (200 * 2**20, False))
    config = tiny(max_iters=2, batch_size=4, batch_tokens=None)
    train(config)
    (finding,) = [one for one in records(config.out_dir, "finding") if one["id"] == "memory-short"]
    assert finding["severity"] == "warning"
    assert finding["title"].endswith(" of 200 MiB")
    assert "--batch_size=1 --gradient_accumulation_steps=4" in finding["advice"]
    assert records(config.out_dir)[-1]["reason"] == "finished"


@pytest.fixture
def nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: object) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr("glassgpt.training.setup._build_model", built)


def test_what_cannot_fit_is_refused_before_work(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, nothing_built: None
) -> None:
    """With settings that do fit, for the same tokens an update."""
    monkeypatch.setattr(probe, "usable_memory", lambda: (24 * 2**30, False))
    config = tiny(n_embd=256, batch_size=2**24, gradient_accumulation_steps=2)
    with pytest.raises(UserError) as raised:
        train(config)
    assert raised.value.problems[0].startswith("--batch_size=16777216 needs about ")
    assert not Path(config.out_dir).exists()
    proposed = {name: int(value) for name, value in (flag[2:].split("=") for flag in _flags(raised.value))}
    assert proposed["batch_size"] * proposed["gradient_accumulation_steps"] == 2**25
    work = TrainingWorkload(config=config, vocab_size=64, batch_size=proposed["batch_size"], micro_steps=2,
                device_type="cpu", dtype="float32", kernels=False, has_checkpoint_copy=True)  # fmt: skip
    assert 5 * 2**30 < estimate_memory(work).total_bytes < 24 * 2**30  # it fits, and is not far too small
    # A card is as strict, with what is free on it.
    monkeypatch.setattr(probe, "free_and_total_bytes", lambda device: (12 * 2**30, 16 * 2**30))
    with pytest.raises(UserError, match=r"there are 12\.\d GiB free on the card"):
        train(config)


def _flags(error: UserError) -> list[str]:
    return re.findall(r"--\w+=\w+", error.problems[0].partition("; try ")[2])


def test_a_model_of_which_no_sequence_fits_is_refused(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, nothing_built: None
) -> None:
    monkeypatch.setattr(probe, "usable_memory", lambda: (2**30, False))
    config = tiny(n_layer=64, n_embd=512, batch_size=64, block_size=2000)
    with pytest.raises(UserError, match=r"^this model with --batch_size=64 needs .* try a smaller model"):
        train(config)
    # With less to keep for the backward pass, some do.
    config = tiny(n_layer=32, n_embd=128, batch_size=64, block_size=2000)
    with pytest.raises(UserError) as raised:
        train(config)
    proposed = dict(flag[2:].split("=") for flag in _flags(raised.value))
    assert proposed["activation_checkpointing"] == "True"
    assert int(proposed["batch_size"]) * int(proposed["gradient_accumulation_steps"]) == 64


def test_what_fits_is_not_spoken_of(tiny: MakeConfig) -> None:
    config = tiny(max_iters=2)
    train(config)
    assert not [one for one in records(config.out_dir, "finding") if one["id"] == "memory-short"]


def test_the_same_run_in_less(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"batch_size": 12}, "--batch_size=6 --gradient_accumulation_steps=2, which is the same run"),
        ({"batch_size": 5}, "--batch_size=1 --gradient_accumulation_steps=5, which is the same run"),
        ({"batch_tokens": 64 * 48, "batch_size": 12}, "--batch_size=6, which is the same run"),
        ({"batch_size": 1}, "--activation_checkpointing=True, which computes more and keeps less"),
        ({"batch_size": 1, "activation_checkpointing": True}, "a shorter --block_size, or a smaller model"),
    ]
    for settings, advice in cases:
        with subtests.test(repr(settings)):
            config = replace(TrainConfig(block_size=64), **settings)
            plan, _ = plan_batch(config, "cpu", None)
            assert less_memory_advice(config, plan).startswith(advice)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_same_run_has_the_same_tokens(ranks: int) -> None:
    """What is proposed, when it is done."""
    config = TrainConfig(block_size=64, batch_size=12, gradient_accumulation_steps=2 * ranks)
    plan, _ = plan_batch(config, "cpu", None, ranks)
    words = less_memory_advice(config, plan).partition(",")[0].split()
    proposed: Any = {name: int(value) for name, value in (word[2:].split("=") for word in words)}
    changed, _ = plan_batch(replace(config, **proposed), "cpu", None, ranks)
    assert changed.batch_size < plan.batch_size
    assert (changed.tokens, changed.ranks) == (plan.tokens, plan.ranks)


@pytest.mark.parametrize(("command", "fix"), [("sample", "fewer --num_samples"), ("export", "end what else")])
def test_other_commands_have_no_traceback_either(
    command: str, fix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(words: object) -> int:
        raise torch.OutOfMemoryError(CARDS_WORDS)

    monkeypatch.setattr(cli, "_dispatch", full)
    assert cli.main([command, "runs/x"]) == 2
    assert capsys.readouterr().err.startswith(f"error: out of memory ({CARDS_WORDS}): try {fix}")


# --- threads ---


def test_a_thread_that_the_system_refuses_is_no_traceback(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `ulimit -u` and `ulimit -v` have it: a checkpoint is written by threads."""

    def refused(*_: object) -> str:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("glassgpt.training.checkpoint.saver.write_packed", refused)
    config = tiny(max_iters=2)
    with pytest.raises(UserError, match=r"refused to start a thread: .*ulimit -u"):
        train(config)
    end = records(config.out_dir, "end")[-1]
    assert (end["reason"], end["exit_code"]) == ("crashed", 2)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("can't start new thread"), "error: the system refused to start a thread: allow more"),
        (
            ImportError("libtorch_cpu.so: failed to map segment from shared object"),
            "error: out of memory (libtorch_cpu.so: failed to map segment from shared object): try ",
        ),
    ],
)
def test_a_program_that_may_not_even_load(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_other_imports_that_fail_are_not_called_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: list[str]) -> int:
        raise ImportError("No module named 'torch'")

    monkeypatch.setattr(cli, "_dispatch", fail)
    with pytest.raises(ImportError):
        cli.main(["train"])
