"""The rows, with both sides made up: who is compared with whom, and what counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import results, speed, to_loss
from bench.context import BenchContext, BenchOptions
from bench.glass import GlassRun
from bench.peers import PeerRun
from bench.watch import TimedLine, TimedOutput


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


def test_tiny_results_never_count(tmp_path: Path) -> None:
    assert speed.cpu_speed(Made(tmp_path, tiny=True, rounds=1))[0].objection
