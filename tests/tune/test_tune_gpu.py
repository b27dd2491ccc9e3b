"""Tuning on a CUDA device. Without one these tests skip, and say so."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from conftest import MakeConfig

from glassgpt.config import TrainConfig
from glassgpt.record import journal
from glassgpt.training.session import train
from glassgpt.tune.speed_settings import SpeedSettings, TuneContext
from glassgpt.tune.trial_run import inspect_machine, prepare_trial_setup, release_device_memory, run_trial
from glassgpt.tune.trial_runner import TrialRunner
from glassgpt.tune.tuning import tune

pytestmark = pytest.mark.gpu


@pytest.fixture
def on_gpu(tiny: MakeConfig) -> MakeConfig:
    release_device_memory()  # other tests of this process may have left working memory

    def make(name: str = "gpu", **changes: Any) -> TrainConfig:
        settings: dict[str, Any] = {
            "device": "cuda", "dtype": "auto", "n_layer": 2, "n_embd": 128, "n_head": 2, "block_size": 64,
            "batch_size": 16, "gradient_accumulation_steps": 4,
        }  # fmt: skip
        return tiny(name, **settings | changes)

    return make


def test_the_context_of_a_card(on_gpu: MakeConfig) -> None:
    context = inspect_machine(prepare_trial_setup(on_gpu(), None))
    assert (context.device_type, context.sequences, context.automatic_batch) == ("cuda", 64, 16)
    assert context.micro_batches == (1, 2, 4, 8, 16, 32, 64)
    assert context.automatic_setting.data_on_card
    assert context.automatic_setting.graph  # so small a model is all asking
    assert 10**9 < context.free_bytes <= torch.cuda.get_device_properties(0).total_memory


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("on_card", [False, True])
def test_every_combination_runs(on_gpu: MakeConfig, graph: bool, kernels: bool, on_card: bool) -> None:
    setup = prepare_trial_setup(on_gpu(dropout=0.1), None)
    setting = SpeedSettings(micro_batch=8, graph=graph, kernels=kernels, data_on_card=on_card)
    trial = run_trial(setup, setting, 64, 4, 0.2)
    assert trial.outcome == "ran", trial.why
    assert len(trial.update_s) >= 3
    assert all(seconds > 0 for seconds in trial.update_s)
    assert trial.peak_bytes is not None
    assert trial.peak_bytes > 4 * 4 * 400_000  # weights, gradients and two moments


@pytest.mark.parametrize("attention", ["flash", "efficient", "sdpa", "manual"])
def test_every_attention_runs(on_gpu: MakeConfig, attention: str) -> None:
    setup = prepare_trial_setup(on_gpu(), None)
    trial = run_trial(setup, SpeedSettings(micro_batch=8, attention=attention), 64, 4, 0.1)
    assert trial.outcome == "ran", trial.why


def test_checkpointing_takes_less_memory(on_gpu: MakeConfig) -> None:
    setup = prepare_trial_setup(
        on_gpu(n_layer=8, n_embd=256, batch_size=64, gradient_accumulation_steps=1), None
    )
    usual, less = (
        run_trial(setup, SpeedSettings(micro_batch=64, checkpointing=on), 64, 1, 0.1).peak_bytes or 0
        for on in (False, True)
    )
    assert less < 0.8 * usual, (less, usual)


def test_updates_by_the_cards_clock_are_those_of_the_wall(on_gpu: MakeConfig) -> None:
    """All updates of a trial, warm-up aside, fill the time that passed."""
    setup = prepare_trial_setup(on_gpu(n_layer=6, n_embd=384, n_head=6, block_size=256), None)
    setting = SpeedSettings(micro_batch=16)
    run_trial(setup, setting, 64, 4, 0.3)
    begin = time.perf_counter()
    trial = run_trial(setup, setting, 64, 4, 2.0)
    wall = time.perf_counter() - begin
    assert 1.9 < sum(trial.update_s) < wall


def test_a_shortened_update_takes_as_long_as_a_whole_one(on_gpu: MakeConfig) -> None:
    setup = prepare_trial_setup(on_gpu(n_layer=6, n_embd=384, n_head=6, block_size=256), None)
    # Else Python sets the pace, now faster, now slower.
    setting = SpeedSettings(micro_batch=16, graph=True, data_on_card=True)
    steps = (32, 4)  # whole and short, in turns; the best of three, since others may use the card as well
    rounds = [
        [median(run_trial(setup, setting, 512, some, 1.0).update_s) for some in steps] for _ in range(3)
    ]
    whole, short = (min(times) for times in zip(*rounds, strict=True))
    assert short == pytest.approx(whole, rel=0.08)


def test_out_of_memory_does_not_affect_later_trials(on_gpu: MakeConfig) -> None:
    config = on_gpu(
        n_layer=24, n_embd=2048, n_head=16, block_size=64, batch_size=16384, gradient_accumulation_steps=1
    )
    with TrialRunner() as runner:
        runner.timed_s = 0.2
        runner.inspect_machine(config, None, 120, 120)
        too_much = runner.measure(SpeedSettings(micro_batch=16384), 120)
        after = runner.measure(SpeedSettings(micro_batch=8), 120)
    assert too_much.outcome == "out of memory", too_much
    assert after.outcome == "ran", after


def test_compiled(on_gpu: MakeConfig) -> None:
    with TrialRunner() as runner:
        runner.timed_s = 0.2
        runner.inspect_machine(on_gpu(), None, 120, 120)
        compiled = runner.measure(SpeedSettings(micro_batch=16, compile=True), 120)
        usual = runner.measure(SpeedSettings(micro_batch=16), 60)
    assert compiled.outcome == "ran", compiled
    assert compiled.first_s > 5 * median(compiled.update_s)
    assert usual.outcome == "ran"


def test_tuning_on_a_card(on_gpu: MakeConfig) -> None:
    with TrialRunner() as runner:
        tuning = tune(on_gpu(n_layer=4, n_embd=256), 45.0, runner, fixed=("compile",))
    assert tuning.took_s < 46
    ran = [row for row in tuning.result.rows if row.stats]
    assert len(ran) >= 5
    assert {row.setting.graph for row in ran} == {False, True}
    fastest = max(row.tokens_per_s or 0 for row in ran)
    assert (tuning.result.chosen.tokens_per_s or 0) > 0.95 * fastest
    assert tuning.tuned.graph in ("on", "off")


def test_a_tuned_run_is_the_same_run(
    on_gpu: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "high" would mean TF32, which has ten bits of precision.
    original = torch.set_float32_matmul_precision
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: original("highest"))
    config = on_gpu("asked", dtype="float32", max_iters=10, graph="off", kernels="plain")
    context = inspect_machine(prepare_trial_setup(config, None))
    expected = losses(config)
    for number, setting in enumerate(choices(context)):
        tuned = replace(context.config_with(config, setting), out_dir=str(tmp_path / f"tuned{number}"))
        assert losses(tuned) == pytest.approx(expected, abs=1e-3), setting


def choices(context: TuneContext) -> list[SpeedSettings]:
    base = SpeedSettings(micro_batch=16, data_on_card=True)
    return [
        *(replace(base, micro_batch=size) for size in (4, 64)),
        replace(base, graph=True),
        replace(base, kernels=True),
        replace(base, checkpointing=True),
        replace(base, attention="efficient"),
    ]


def losses(config: TrainConfig) -> list[float]:
    run = train(config)
    return [
        record["loss"] for record in journal.read(run.out_dir / journal.FILE_NAME) if record["kind"] == "step"
    ]
