"""The rows, with both sides made up: who is compared with whom, and what counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import overhead, results, speed, sweep, to_loss
from bench.context import BenchContext, BenchOptions
from bench.glass import GlassRun
from bench.peers import PeerRun
from bench.watch import TimedLine, TimedOutput
from glassgpt.config import TrainConfig


class Made(BenchContext):
    """Runs nothing: each side's speed, time and loss are given."""

    def __init__(self, scratch: Path, **options: Any) -> None:
        super().__init__(BenchOptions(device="cpu", out=scratch / "out.jsonl", **options), scratch)
        self.their_ms, self.our_ms = 100.0, 80.0
        self.their_loss: Callable[[dict[str, Any]], float] = lambda settings: 3.0
        self.our_loss: Callable[[dict[str, Any]], float] = lambda settings: 3.0
        self.asked: list[tuple[str, dict[str, Any]]] = []

    shakespeare = mdn = Path("data")

    def run_nanogpt(self, caches: Path, settings: Any, config: str = "", **more: Any) -> PeerRun:
        self.asked.append(("nanogpt", {**settings, **more}))
        every, count = settings.get("log_interval", 1), settings.get("max_iters", 40)
        lines = [
            TimedLine(i * self.their_ms / 1000, f"iter {i}: loss 3.0, time 1.0ms")
            for i in range(0, count, every)
        ]
        at_s = lines[-1].at_s
        lines += [
            TimedLine(at_s, f"step {count}: train loss 3, val loss 3"),
            TimedLine(at_s + 1, "saving checkpoint to out"),
        ]
        run = PeerRun(Path(str(len(self.asked) - 1)), TimedOutput(at_s + 2, lines))
        return run

    def run_glass(self, preset: str, data: Path, caches: Path, settings: Any) -> GlassRun:
        self.asked.append((preset, {**settings, "caches": caches}))
        ms = self.our_ms
        steps = [
            {"kind": "step", "iter": i, "time": i * ms / 1000, "step_ms": ms, "memory": {"rss": 1}}
            for i in range(1, settings.get("max_iters", 40))
        ]
        ledger = {"train": 9.7, "eval": 0.1, "checkpoint": 0.1, "log": 0.1}
        end = {"kind": "end", "iter": 0, "time": 0.0, "ledger": ledger, "forecast": {}}
        return GlassRun(Path(str(len(self.asked) - 1)), len(steps) * ms / 1000, [*steps, end])

    def score_nanogpt(self, run: PeerRun, data: Path) -> results.LossByContext:
        return {1024: self.their_loss(self.asked[int(run.out_dir.name)][1])}

    def score_glass(
        self, run: GlassRun, data: Path, context: int, which: str = "best"
    ) -> results.LossByContext:
        return {1024: self.our_loss(self.asked[int(run.out_dir.name)][1])}


def test_speed_is_compared_round_by_round_on_the_same_seeds(tmp_path: Path) -> None:
    ctx = Made(tmp_path, rounds=2)
    (row,) = speed.gpt2_speed(ctx)
    assert row.value == pytest.approx(100 / 80)
    assert row.nanogpt == pytest.approx([655_360.0] * 2)
    assert not row.objection
    assert [side for side, _ in ctx.asked] == ["nanogpt", "gpt2_124m"] * 2
    assert [settings["seed"] for _, settings in ctx.asked] == [1337, 1337, 1338, 1338]
    same = (
        "n_layer",
        "n_head",
        "n_embd",
        "block_size",
        "batch_size",
        "learning_rate",
        "max_iters",
        "log_interval",
    )
    theirs, ours = ctx.asked[0][1], ctx.asked[1][1]
    assert {name: theirs[name] for name in same} == {name: ours[name] for name in same}


def test_a_worse_loss_is_objected_to(tmp_path: Path) -> None:
    ctx = Made(tmp_path, rounds=1)
    ctx.our_loss = lambda settings: 3.1
    assert "3.1000 is worse than 3.0000" in speed.gpt2_speed(ctx)[0].objection


def test_a_loss_that_is_not_a_number_is_objected_to(tmp_path: Path) -> None:
    """Of one seed too, which a median would pass over."""
    ctx = Made(tmp_path, rounds=3)
    ctx.our_loss = lambda settings: math.nan if settings["seed"] in (1, 1337) else 2.9
    assert speed.gpt2_speed(ctx)[0].objection
    assert to_loss.shakespeare_to_loss(ctx)[0].objection.startswith("3 of 3")
    ctx.their_loss, ctx.our_loss = lambda settings: 3.0, lambda settings: 1.4
    assert not to_loss.shakespeare_to_loss(ctx)[0].objection
    ctx.our_loss = lambda settings: math.nan if settings["seed"] == 1 else 1.4
    assert to_loss.shakespeare_to_loss(ctx)[0].objection.startswith("1 of 3")


def test_fp8_is_held_against_nanogpt_and_against_bf16(tmp_path: Path) -> None:
    ctx = Made(tmp_path)
    ctx.our_loss = lambda settings: 2.985 if settings.get("fp8") else 2.96
    fp8, plain = speed.fp8_loss(ctx)
    assert (fp8.row, plain.row) == ("fp8", "gpt2-500")
    assert "worse than 2.9600" in fp8.objection
    assert not plain.objection
    assert [side for side, _ in ctx.asked] == ["nanogpt", "gpt2_124m", "gpt2_124m"] * 3
    assert [settings["seed"] for _, settings in ctx.asked] == [1337] * 3 + [1] * 3 + [2] * 3
    assert [bool(settings.get("fp8")) for _, settings in ctx.asked] == [False, False, True] * 3


def test_a_race_is_won_only_if_all_seeds_arrive(tmp_path: Path) -> None:
    ctx = Made(tmp_path)
    ctx.their_loss = lambda settings: 1.48
    ctx.our_loss = lambda settings: 1.469
    (row,) = to_loss.shakespeare_to_loss(ctx)
    assert row.details["target"] == 1.4697  # nanoGPT was worse this time: what it is known to reach counts
    assert not row.objection
    # nanoGPT: 39 iterations of 100 ms and the evaluation; ours: the whole process.
    assert row.nanogpt == pytest.approx([4.9])
    assert row.value == pytest.approx(4.9 / (39 * 0.08))
    assert [side for side, _ in ctx.asked] == [
        "shakespeare_char_fast",
        "nanogpt",
        *["shakespeare_char_fast"] * 2,
    ]
    caches = {settings["caches"] for side, settings in ctx.asked if side != "nanogpt"}
    assert len(caches) == 3  # each process starts cold
    assert row.details["overhead"] == {"shakespeare_char_fast": pytest.approx(0.03)}

    ctx.our_loss = lambda settings: 1.4698 if settings["seed"] == 2 else 1.4
    assert to_loss.shakespeare_to_loss(ctx)[0].objection.startswith("1 of 3 seeds did not reach 1.4697")
    ctx.their_loss = lambda settings: 1.3  # better than known: that is the target then
    assert to_loss.shakespeare_to_loss(ctx)[0].objection.startswith("3 of 3")


def test_nanogpt_races_on_mdn_at_its_best_rate(tmp_path: Path) -> None:
    ctx = Made(tmp_path, seconds=2.0)
    ctx.their_loss = lambda settings: {6e-4: 3.2, 1.2e-3: 3.0, 2.4e-3: 3.1}[settings["learning_rate"]]
    ctx.our_loss = lambda settings: 2.9
    assert to_loss.best_learning_rates(ctx) == to_loss.LEARNING_RATES  # nobody looked yet
    results.append(ctx.options.out, to_loss.mdn_rates(ctx)[0])
    assert to_loss.best_learning_rates(ctx) == (1.2e-3,)
    ctx.asked.clear()
    (row,) = to_loss.mdn_to_loss(ctx)
    theirs = [settings for side, settings in ctx.asked if side == "nanogpt"]
    assert [settings["learning_rate"] for settings in theirs] == [1.2e-3]
    assert theirs[0]["max_iters"] == theirs[0]["eval_interval"] * 4 == 16  # 2 s at 125 ms
    assert row.details["target"] == 3.0
    assert row.details["rate"] == 1.2e-3


def test_nanogpts_updates_fit_its_measured_speed(tmp_path: Path) -> None:
    ctx = Made(tmp_path, rounds=1)
    assert to_loss.updates_that_fit(ctx) == 720
    results.append(ctx.options.out, speed.gpt2_speed(ctx)[0])
    assert to_loss.updates_that_fit(ctx) == 900  # at 100 ms
    half = Made(tmp_path, batch=32)  # an update of half as many tokens takes half as long
    assert to_loss.updates_that_fit(half) == 1800


def test_overhead_takes_what_races_found_and_runs_the_rest(tmp_path: Path) -> None:
    ctx = Made(tmp_path)
    ctx.our_loss = lambda settings: 1.0
    results.append(ctx.options.out, to_loss.cpu_to_loss(ctx)[0])
    ctx.asked.clear()
    (row,) = overhead.overhead(ctx)
    assert row.details["measured"] == {"shakespeare_char_cpu_fast": pytest.approx(0.03)}
    assert not ctx.asked


def test_a_preset_that_was_measured_again_counts_as_it_is_now(tmp_path: Path) -> None:
    ctx = Made(tmp_path)
    for row, details in (
        ("mdn-to-loss", {"overhead": {"gpt2_124m_fast": 0.1}}),
        ("overhead", {"measured": {"gpt2_124m_fast": 0.02}}),
    ):
        result = ctx.make_result(row, "s", nanogpt=[], glassgpt=[1.0], values=[1.0], details=details)
        results.append(ctx.options.out, result)
    assert overhead.recorded_shares(ctx) == {"gpt2_124m_fast": 0.02}


def test_tiny_results_never_count(tmp_path: Path) -> None:
    assert speed.cpu_speed(Made(tmp_path, tiny=True, rounds=1))[0].objection


def test_a_sweep_trains_and_notes_what_does_not_fit(
    tmp_path: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(
        data_dir=str(tiny_data), n_layer=1, n_head=1, n_embd=8, block_size=8, batch_size=2, device="cpu",
        compile="off", probe_seconds=0,
    )  # fmt: skip
    point = sweep.measure_point("size", config, tmp_path / "run", updates=2)
    assert point.tokens_per_s is not None
    assert point.tokens_per_s > 0
    assert point.parameters > 0

    def full(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(sweep, "timed_updates", full)
    point = sweep.measure_point("size", config, tmp_path / "again", updates=2)
    assert point.tokens_per_s is None
    assert point.parameters > 0
