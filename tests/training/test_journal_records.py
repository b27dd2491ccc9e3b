"""The records: what the design promises, sums that add up, time that is all accounted for."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tiny import MakeConfig, choices, records, resume, run_task

from glassgpt.config import TrainConfig
from glassgpt.data.dataset import open_dataset
from glassgpt.estimate.batching import has_closing_eval
from glassgpt.estimate.step_timing import RunningMean
from glassgpt.record.journal import Record
from glassgpt.record.ledger import PHASES
from glassgpt.training import journal_records as run_records
from glassgpt.training import loop
from glassgpt.training.checkpoint.saver import Saver
from glassgpt.training.evaluate import EvalResult, evaluate
from glassgpt.training.run_request import RunRequest
from glassgpt.training.session import train
from glassgpt.training.train_state import TrainSetup, TrainState


def test_every_second_is_in_the_ledger(tiny: MakeConfig) -> None:
    config = tiny(max_iters=300, eval_interval=50, checkpoint_interval=50, log_interval=5)
    started = time.perf_counter()
    train(config)
    wall = time.perf_counter() - started
    end = records(config.out_dir, "end")[-1]
    assert tuple(end["ledger"]) == PHASES
    assert sum(end["ledger"].values()) == pytest.approx(end["wall_s"], rel=1e-9)
    assert end["wall_s"] == pytest.approx(wall, rel=1e-3, abs=0.5)  # closing the files comes after the record
    assert end["wall_s"] <= wall
    assert all(seconds >= 0 for seconds in end["ledger"].values())
    assert (
        end["ledger"]["other"] < 0.05 * wall
    )  # a tiny run's steps are all overhead; a real one's is under 1%
    for phase in ("startup", "data", "train", "eval", "checkpoint", "log"):
        assert end["ledger"][phase] > 0, phase


def test_the_age_of_the_process_is_start_up(tiny: MakeConfig) -> None:
    config = tiny(max_iters=1)
    run_task(RunRequest(config), process_age_s=1234.5)
    end = records(config.out_dir, "end")[-1]
    assert end["ledger"]["startup"] > 1234.5
    assert end["wall_s"] > 1234.5


def test_intervals_add_up_to_the_ledger(tiny: MakeConfig) -> None:
    config = tiny(max_iters=60, eval_interval=20, log_interval=7)
    train(config)
    ledger = records(config.out_dir, "end")[-1]["ledger"]
    steps = records(config.out_dir, "step")
    for phase in ("data", "train"):
        total = sum(step["phases"][phase] for step in steps) / 1000
        assert total == pytest.approx(ledger[phase], rel=0.05, abs=0.01), phase
    evals = sum(record["ms"] for record in records(config.out_dir, "eval")) / 1000
    assert evals == pytest.approx(ledger["eval"], rel=0.05, abs=0.01)
    # What came before the first update is in the record of the run: a page of a live run shows it.
    startup = sum(record["phases"]["startup"] for record in (*records(config.out_dir, "run"), *steps)) / 1000
    assert startup == pytest.approx(ledger["startup"], rel=0.05, abs=0.01)


def test_evaluations_and_checkpoints_are_not_in_the_step_time(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Saver.save

    def slow_evaluate(*arguments: Any, **named: Any) -> EvalResult | None:
        with arguments[2].phase("eval"):
            time.sleep(0.25)
        return evaluate(*arguments, **named)

    def slow_save(saver: Saver, *arguments: Any) -> None:
        time.sleep(0.25)
        original(saver, *arguments)

    monkeypatch.setattr(loop, "evaluate", slow_evaluate)
    monkeypatch.setattr(Saver, "save", slow_save)
    config = tiny(max_iters=6, eval_interval=3)
    train(config)
    times = [step["step_ms"] for step in records(config.out_dir, "step")]
    assert times[0] is None  # the first update warms up, and has no steady time
    assert all(0 < ms < 200 for ms in times[1:])
    ledger = records(config.out_dir, "end")[-1]["ledger"]
    assert ledger["eval"] > 1.5  # two splits, three times
    assert ledger["checkpoint"] > 0.5


def test_a_step_holds_what_the_design_promises(tiny: MakeConfig) -> None:
    config = tiny(max_iters=8, log_interval=2, gradient_accumulation_steps=3)
    train(config)
    run = records(config.out_dir, "run")[0]
    for step in records(config.out_dir, "step"):
        assert step["tokens"] == step["iter"] * 3 * 4 * 8
        assert step["memory"]["rss"] > 10**7
        assert step["step_ms"] > 0
        assert step["mfu"] is None  # a CPU without a probe: unknown is unknown
        updates = step["updates"] - (step["iter"] == 2)  # the first one warms up
        seconds = step["step_ms"] / 1000
        assert step["tokens_per_s"] == pytest.approx(3 * 4 * 8 / seconds)
        assert step["flops_per_s"] == pytest.approx(step["tokens_per_s"] * run["model"]["flops_per_token"])
        assert updates >= 1
        assert step["eta_s"] >= 0
        assert set(step["phases"]) == set(PHASES)


def test_building_a_step_record_changes_nothing(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    original, built = run_records.step_record, []

    def build_twice(*arguments: Any) -> Record:
        built.append((original(*arguments), original(*arguments)))
        return built[-1][1]

    monkeypatch.setattr(run_records, "step_record", build_twice)
    config = tiny(max_iters=6, log_interval=3)
    train(config)
    assert len(built) == len(records(config.out_dir, "step")) == 2
    assert all(first == second for first, second in built)


def test_mfu_is_achieved_over_peak(tiny: MakeConfig) -> None:
    config = tiny(max_iters=4, probe_seconds=0.05)
    train(config)
    peak = records(config.out_dir, "run")[0]["peak"]
    assert peak["value"] == peak["measured"] > 0
    assert peak["source"].startswith("measured: float32 matmuls")
    for step in records(config.out_dir, "step")[1:]:
        assert step["mfu"] == pytest.approx(100 * step["flops_per_s"] / peak["value"])
        assert 0 < step["mfu"] < 100


def test_the_run_record_says_everything_that_was_decided(tiny: MakeConfig, tiny_data: Path) -> None:
    config = tiny(max_iters=30, batch_size=None, gradient_accumulation_steps=None, batch_tokens=96)
    train(config)
    run = records(config.out_dir, "run")[0]
    data = open_dataset(tiny_data)
    assert run["config"]["max_iters"] == 30
    assert run["data"]["hash"] == data.hash
    assert run["data"]["epochs"] == pytest.approx(30 * 96 / len(data.tokens("train")))
    assert run["batch"] == {"batch_size": 12, "micro_steps": 1, "sequences": 12, "tokens": 96}
    assert run["model"]["flops_per_token"] == 6 * run["model"]["parameters_multiplied"] + 12 * 2 * 16 * 8
    assert run["machine"]["torch"]
    decided = choices(config.out_dir)
    assert set(decided) >= {
        "device",
        "dtype",
        "attention",
        "vocab_size",
        "batch_size",
        "batch_tokens",
        "compile",
        "schedule",
        "eval_tokens",
    }
    assert all(reason for _, reason in decided.values())


def test_every_record_has_kind_time_iter_and_process(tiny: MakeConfig) -> None:
    config = tiny(max_iters=5)
    before = time.time()
    train(config)
    resume(config, max_iters=8)
    journal = records(config.out_dir)
    # The finding: with more updates the learning rate jumps.
    assert {r["kind"] for r in journal} == {"run", "step", "eval", "checkpoint", "resume", "finding", "end"}
    assert all(before <= record["time"] <= time.time() for record in journal)
    assert [record["process"] for record in journal] == sorted(record["process"] for record in journal)
    assert all(isinstance(record["iter"], int) for record in journal)


def test_evaluations_come_with_their_figures(tiny: MakeConfig, tiny_data: Path) -> None:
    config = tiny(max_iters=10)
    train(config)
    data = open_dataset(tiny_data)
    for record in records(config.out_dir, "eval"):
        assert record["perplexity"] == pytest.approx(math.exp(record["loss"]))
        bits = record["loss"] / math.log(2) / data.bytes_per_token(record["split"])
        assert record["bits_per_byte"] == pytest.approx(bits)
        assert 0 < record["stderr"] < record["loss"]
        assert record["ms"] > 0


def test_the_time_to_go_is_that_of_the_updates_and_evaluations_left(tiny: MakeConfig) -> None:
    config = tiny(max_iters=100, eval_interval=1000, log_interval=10)
    train(config)
    steps = records(config.out_dir, "step")
    updates_s = [(100 - step["iter"]) * step["step_ms"] / 1000 for step in steps]
    evaluation_s = [step["eta_s"] - left_s for step, left_s in zip(steps, updates_s, strict=True)]
    # At the last log line, too, an evaluation is still to come: it takes as long as the first.
    assert evaluation_s == pytest.approx([evaluation_s[0]] * 10)
    assert 0 < evaluation_s[0] < records(config.out_dir, "end")[-1]["wall_s"]


def to_go(done: int, end: int, every: int, **changes: Any) -> float | None:
    """Of a run whose updates take 1 s, evaluations (of 2 x 100 tokens) 10 s and saves 1000 s."""
    config = TrainConfig(max_iters=end, eval_interval=every, **changes)
    run = SimpleNamespace(config=config, splits={"val": range(401)}, eval_tokens=100)
    run.has_closing_eval = has_closing_eval(config, 100, 401)
    state = SimpleNamespace(
        progress=SimpleNamespace(iter=done, val_loss=None),
        eval_cost=RunningMean(10.0, 1),
        save_cost=RunningMean(1000.0, 1),
    )
    return run_records._eta_s(cast(TrainSetup, run), cast(TrainState, state), 1.0)


def test_the_time_to_go_holds_what_is_due_at_once(subtests: pytest.Subtests) -> None:
    """At 50, 100 and 120, each with a save: the line of update 50 comes before all of them."""
    cases: list[tuple[int, int]] = [(49, 3), (50, 3), (51, 2), (100, 2), (101, 1), (119, 1), (120, 1)]
    for done, evaluations in cases:
        with subtests.test(repr(done)):
            seconds = 120 - done + evaluations * 1010
            assert to_go(done, 120, 50, closing_eval=False) == seconds
            assert to_go(done, 120, 50) == pytest.approx(seconds + 10 * 401 / 200)  # and the whole split once


def test_the_time_to_go_holds_the_save_at_the_end() -> None:
    """Evaluations at 100 and 120; saves at 80 and 120."""
    assert to_go(70, 120, 100, checkpoint_interval=40, closing_eval=False) == 50 + 2 * 10 + 2 * 1000


def test_epochs_count_what_was_seen_with_another_batch(tiny: MakeConfig) -> None:
    config = tiny(max_iters=10, batch_size=8)
    train(config)
    resume(config, max_iters=30, batch_size=2)
    first, then = records(config.out_dir, "run")
    tokens = then["data"]["tokens"]["train"]
    assert first["data"]["epochs"] == pytest.approx(10 * 8 * config.block_size / tokens)
    assert then["data"]["epochs"] == pytest.approx((10 * 8 + 20 * 2) * config.block_size / tokens)
    assert records(config.out_dir, "step")[-1]["tokens"] == (10 * 8 + 20 * 2) * config.block_size


def test_a_constant_rate_is_not_called_a_cosine(tiny: MakeConfig) -> None:
    config = tiny(max_iters=1, decay_lr=False)
    train(config)
    assert choices(config.out_dir)["schedule"][0] == "constant"


def test_listeners_get_every_record(tiny: MakeConfig) -> None:
    heard: list[str] = []
    config = tiny(max_iters=5)
    train(config, listeners=[lambda record: heard.append(record["kind"])])
    assert heard == [record["kind"] for record in records(config.out_dir)]
