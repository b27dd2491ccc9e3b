"""One trial: from marks to updates, extrapolated updates, warm-up and timing, with fake clocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MakeConfig

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.training.learner import Learner
from glassgpt.tune.results import Trial, UpdateMarks, summarize_updates, update_seconds
from glassgpt.tune.speed_settings import SpeedSettings, trial_micro_steps
from glassgpt.tune.trial_run import (
    PeakMemory,
    TrialUpdates,
    inspect_machine,
    prepare_trial_setup,
    run_trial,
    time_updates,
    warm_up,
)

# --- from marks to updates ---


def made_update(micro_steps: int, start: float = 0.0) -> UpdateMarks:
    """0.5 s before the first micro-batch, whose 2 s are less than the usual 3 s; the optimizer takes 1 s."""
    marks = [start, start + 0.5]
    for number in range(micro_steps - 1):
        marks.append(marks[-1] + (2.0 if number == 0 else 3.0))
    return [*marks, marks[-1] + 3.0 + 1.0]


def test_a_whole_update_is_what_it_took() -> None:
    assert update_seconds([made_update(5), made_update(5, 100.0)], 5) == pytest.approx([0.5 + 2 + 12 + 1] * 2)
    assert update_seconds([made_update(1)], 1) == pytest.approx([4.5])


@pytest.mark.parametrize("micro_steps", [5, 40, 64])
def test_a_shortened_update_comes_to_the_same_as_the_whole(micro_steps: int) -> None:
    whole = update_seconds([made_update(micro_steps)], micro_steps)
    assert update_seconds([made_update(4)] * 3, micro_steps) == pytest.approx(whole * 3)


def test_of_two_micro_batches_the_first_has_to_do() -> None:
    assert update_seconds([made_update(2)], 10) == pytest.approx([0.5 + 2 + 3 + 1 + 8 * 2])


def test_how_many_micro_batches_are_done() -> None:
    assert [trial_micro_steps(n, 0.01) for n in (1, 2, 3, 8, 9, 40)] == [1, 2, 3, 8, 4, 4]
    assert [trial_micro_steps(n, 0.1) for n in (1, 2, 3, 5, 6, 40)] == [1, 2, 3, 5, 4, 4]
    assert [trial_micro_steps(n, 5.0) for n in (1, 2, 3, 40)] == [1, 2, 2, 2]
    assert trial_micro_steps(8, None) == 8


# --- statistics ---


def ran(*seconds: float, peak: int | None = None, first: float = 1.0) -> Trial:
    return Trial(outcome="ran", update_s=seconds, peak_bytes=peak, first_s=first)


def test_figures_are_over_all_trials() -> None:
    found = summarize_updates([ran(1.0, 1.0, 1.0, peak=5, first=9.0), ran(3.0, peak=7, first=2.0)])
    assert found is not None
    assert (found.update_s, found.peak_bytes, found.first_s) == (2.0, 7, 2.0)
    assert found.error == pytest.approx(0.5)  # 1 and 3: their mean may be wrong by 1 of 2
    assert found.fast_s <= found.update_s <= found.slow_s


def test_many_equal_updates_are_certain_and_scattered_ones_less() -> None:
    certain, scattered = (
        summarize_updates([ran(*[1.0] * 50)]),
        summarize_updates([ran(0.8, 1.0, 1.2, 0.9, 1.1)]),
    )
    assert certain is not None
    assert scattered is not None
    assert certain.error == 0.0
    assert 0.03 < scattered.error < 0.15


def test_a_setting_that_failed_once_has_no_figures() -> None:
    failed = Trial(outcome="out of memory")
    assert summarize_updates([]) is None
    assert summarize_updates([ran(1.0), failed]) is None
    assert summarize_updates([Trial(outcome="hung")]) is None
    assert summarize_updates([ran(1.0), Trial(outcome="hung")]) == summarize_updates([ran(1.0)])


# --- warm-up and timing ---


class Clock:
    """Each update takes `update_s`, the first one `first_s`."""

    def __init__(self, update_s: float, first_s: float) -> None:
        self.now, self.update_s, self.first_s = 0.0, update_s, first_s
        self.blocks: list[int] = []

    def __call__(self) -> float:
        return self.now

    def block(self, count: int) -> list[UpdateMarks]:
        marks: list[UpdateMarks] = []
        for number in range(count):
            seconds = self.first_s if not self.blocks and number == 0 else self.update_s
            marks.append([self.now, self.now, self.now + seconds])
            self.now += seconds
        self.blocks.append(count)
        return marks


def test_warming_up_takes_about_its_time() -> None:
    clock = Clock(0.01, 2.0)
    first_s, usual_s = warm_up(clock.block, 0.5, 0, clock)
    assert first_s == 2.0
    assert usual_s == pytest.approx(0.01)
    assert 0.5 <= clock.now - 2.0 <= 0.71
    assert clock.blocks[:2] == [1, 1]
    assert max(clock.blocks) == 20  # a fifth of a second between two waits


def test_a_cuda_graph_is_captured_before_timing() -> None:
    clock = Clock(1.0, 1.0)
    warm_up(clock.block, 0.1, 5, clock)
    assert sum(clock.blocks) == 6


def test_a_slow_device_is_not_warmed_up_for_minutes() -> None:
    clock = Clock(10.0, 12.0)
    assert warm_up(clock.block, 0.75, 0, clock) == (12.0, 12.0)
    assert clock.blocks == [1]
    assert len(time_updates(clock.block, 1.5, 12.0, clock)) == 2


@pytest.mark.parametrize(("update_s", "fewest"), [(0.001, 1000), (0.5, 3), (0.7, 3)])
def test_updates_are_timed_for_a_while(update_s: float, fewest: int) -> None:
    clock = Clock(update_s, update_s)
    marks = time_updates(clock.block, 1.5, update_s, clock)
    assert len(marks) >= fewest
    assert 1.5 <= clock.now <= 1.5 + max(update_s, 0.2)


# --- real updates ---


def updates_of(config: TrainConfig, setting: SpeedSettings, micro_steps: int) -> TrialUpdates:
    from glassgpt.tune.trial_run import _execution_config

    setup = prepare_trial_setup(config, None)
    return TrialUpdates(setup, _execution_config(setup, setting, 4), setting, micro_steps)


def test_marks_are_where_they_should_be(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six marks an update of four micro-batches, the last of one being the first of the next."""
    updates = updates_of(tiny(batch_size=1, gradient_accumulation_steps=4), SpeedSettings(micro_batch=1), 4)
    done: list[tuple[int, int]] = []
    usual = Learner.update

    def update(learner: Learner, number: int, first: int) -> None:
        done.append((number, first))
        usual(learner, number, first)

    monkeypatch.setattr(Learner, "update", update)
    marks = [*updates.run(2), *updates.run(1)]
    assert [len(one) for one in marks] == [6, 6, 6]
    assert marks[0][-1] == marks[1][0]
    assert all(list(one) == sorted(one) for one in marks)
    assert done == [(0, 0), (1, 4), (2, 8)]


def test_a_trial_trains_as_the_run_would(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, backward and optimizer: the weights have moved, and the loss is finite."""
    seen: list[float] = []
    usual = Learner.take_losses_and_norms

    def take_losses_and_norms(learner: Learner) -> tuple[list[float], list[float]]:
        results = usual(learner)
        seen.extend(results[0])
        return results

    monkeypatch.setattr(Learner, "take_losses_and_norms", take_losses_and_norms)
    setup = prepare_trial_setup(tiny(max_iters=200), None)
    trial = run_trial(setup, SpeedSettings(micro_batch=2), 4, 2, 0.3)
    assert trial.outcome == "ran"
    assert len(trial.update_s) >= 3
    assert trial.peak_bytes is not None
    assert trial.peak_bytes > 10 * 2**20
    assert seen[-1] < seen[0] - 0.1  # it learns


def test_a_setting_that_a_run_would_not_use_is_impossible(tiny: MakeConfig) -> None:
    setup = prepare_trial_setup(tiny(), None)
    trial = run_trial(setup, SpeedSettings(micro_batch=4, kernels=True), 4, 1, 0.1)
    assert trial.outcome == "impossible"
    trial = run_trial(setup, SpeedSettings(micro_batch=4, attention="cudnn"), 4, 1, 0.1)
    assert trial.outcome == "impossible"
    assert "--attention=cudnn cannot do heads of 8 channels" in trial.why


def test_a_setting_that_fell_back_is_impossible(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(model: Any, **_: Any) -> Callable[..., None]:
        def call(*_: object) -> None:
            raise RuntimeError("no compiler\nand so on")

        return call

    monkeypatch.setattr(torch, "compile", compile)
    trial = run_trial(
        prepare_trial_setup(tiny(), None), SpeedSettings(micro_batch=4, compile=True), 4, 1, 0.1
    )
    assert (trial.outcome, trial.why) == ("impossible", "compile failed: RuntimeError: no compiler")


def test_compile_time_includes_the_first_evaluation(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[bool] = []

    def compile(hidden: Any, **_: Any) -> Callable[..., torch.Tensor]:
        def call(*arguments: object) -> torch.Tensor:
            called.append(hidden.__self__.training)
            result: torch.Tensor = hidden(*arguments)
            return result

        return call

    monkeypatch.setattr(torch, "compile", compile)
    trial = run_trial(
        prepare_trial_setup(tiny(), None), SpeedSettings(micro_batch=4, compile=True), 4, 1, 0.1
    )
    assert trial.outcome == "ran"
    assert called.count(False) == 1


# --- the context ---


def test_the_context_has_the_choices_of_a_run(tiny: MakeConfig) -> None:
    config = tiny(batch_size=6, gradient_accumulation_steps=2, attention="manual", max_iters=77)
    context = inspect_machine(prepare_trial_setup(config, None))
    assert (context.device_type, context.sequences, context.tokens_per_update) == ("cpu", 12, 96)
    assert (context.automatic_batch, context.updates) == (6, 77)
    assert context.micro_batches == (1, 2, 3, 4, 6, 12)
    assert context.automatic_setting == SpeedSettings(micro_batch=6, attention="manual")
    assert 10**8 < context.free_bytes < 10**13
    assert "tiny" in context.data


def test_the_context_without_a_dataset(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny(data_dir="", dataset="shakespeare_char")
    setup = prepare_trial_setup(config, None)
    assert setup.shape.vocab_size == 65
    assert setup.data.source == "random tokens from a vocabulary of 65: shakespeare_char is not prepared"
    assert int(setup.tokens.max()) == 64
    assert prepare_trial_setup(config, 5000).shape.vocab_size == 5056  # as a run rounds it up
    assert prepare_trial_setup(tiny(data_dir="", dataset="mine"), 100_000).tokens.dtype.itemsize == 4
    with pytest.raises(UserError, match="no dataset at nowhere"):
        prepare_trial_setup(tiny(data_dir="nowhere"), None)


def test_a_text_that_is_too_short(tiny: MakeConfig) -> None:
    with pytest.raises(UserError, match="--block_size=100000"):
        prepare_trial_setup(tiny(block_size=100_000), None)


def test_peak_memory_is_per_trial() -> None:
    peak = PeakMemory(torch.device("cpu"))
    before = peak.peak_bytes()
    block = torch.ones(64 * 2**20 // 4)
    assert peak.peak_bytes() >= before + 60 * 2**20
    del block
    fresh = PeakMemory(torch.device("cpu"))
    assert fresh.peak_bytes() < before + 30 * 2**20


def test_the_settings_and_their_documents_agree() -> None:
    setting = SpeedSettings(micro_batch=3, threads=2)
    assert SpeedSettings(**dataclasses.asdict(setting)) == setting
