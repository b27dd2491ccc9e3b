"""The bench's own figures: logs read, clocks, losses, the table. No peer is needed."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeConfig

import glassgpt
from bench import glass, peers, results, table
from bench.__main__ import main
from bench.evaluator import score_glass, score_nanogpt, whole_split_loss
from bench.glass import GlassRun
from bench.peers import PeerRun
from bench.picture import ratios_picture
from bench.results import Result
from bench.watch import TimedLine, TimedOutput
from glassgpt.data.dataset import open_dataset
from glassgpt.record import journal

# --- nanoGPT's log ---

LOG = """\
tokens per iteration will be: 768
number of parameters: 0.80M
step 0: train loss 4.1676, val loss 4.1649
iter 0: loss 4.1782, time 2000.00ms, mfu -100.00%
iter 5: loss 3.9000, time 50.00ms, mfu 1.00%
iter 10: loss 3.7000, time 50.00ms, mfu 1.00%
step 12: train loss 3.5000, val loss 3.6000
saving checkpoint to out
iter 15: loss 3.4000, time 50.00ms, mfu 1.00%
iter 20: loss 3.3000, time 50.00ms, mfu 1.00%
step 24: train loss 3.1000, val loss 3.2000
saving checkpoint to out
iter 25: loss 3.2000, time 50.00ms, mfu 1.00%
peak memory 43800000000
"""
# When each line came: 100 ms an iteration, a second for each evaluation.
TIMES = (0.1, 0.2, 2.0, 3.0, 3.5, 4.0, 5.2, 5.2, 5.5, 6.0, 7.4, 7.4, 7.5, 8.0)


def log_lines() -> list[TimedLine]:
    return [TimedLine(at, text) for at, text in zip(TIMES, LOG.splitlines(), strict=True)]


def test_the_log_of_nanogpt_is_read() -> None:
    lines = log_lines()
    assert [one.number for one in peers.iterations(lines)] == [0, 5, 10, 15, 20, 25]
    assert peers.iterations(lines)[1] == peers.PeerIteration(5, 3.9, 50.0, 3.5)
    assert [(one.number, one.val_loss) for one in peers.evaluations(lines)] == [
        (0, 4.1649),
        (12, 3.6),
        (24, 3.2),
    ]
    assert peers.peak_bytes(lines) == 43_800_000_000
    assert peers.peak_bytes(lines[:-1]) is None
    assert PeerRun(Path("out"), TimedOutput(8.1, lines)).best_at_s == 7.4


def test_updates_are_timed_by_the_wall_without_evaluations() -> None:
    """10 to 15 and 20 to 25 hold an evaluation; the printed 50 ms, of one iteration, are not asked."""
    assert peers.interval_ms(log_lines(), warm_up=0) == pytest.approx([100, 100, 100])
    assert peers.interval_ms(log_lines(), warm_up=10) == pytest.approx([100])
    assert peers.iterations_s(log_lines()) == pytest.approx(2.5)


# --- our journal ---


def a_run() -> GlassRun:
    """Ten updates of 100 ms, an evaluation of half a second and a save after the fifth."""
    steps = [
        {"kind": "step", "iter": i, "time": 10 + i / 10 + (0.5 if i > 5 else 0), "step_ms": 90.0 + i}
        | {"memory": {"rss": 1, "allocated_peak": 1000 + i}}
        for i in range(1, 11)
    ]
    evaluation = {"kind": "eval", "iter": 5, "time": 10.9, "ms": 250.0, "closing": False}
    save = {"kind": "checkpoint", "iter": 5, "time": 11.0, "blocking_ms": 10.0}
    ledger = {"startup": 2.0, "train": 6.0, "eval": 1.0, "checkpoint": 0.5, "log": 0.5, "other": 0.0}
    end = {"kind": "end", "iter": 10, "time": 12.0, "ledger": ledger}
    return GlassRun(Path("run"), 12.5, [*steps[:5], evaluation, evaluation, save, *steps[5:], end])


def test_our_updates_are_timed_in_the_same_way() -> None:
    run = a_run()
    assert glass.interval_ms(run, warm_up=0) == pytest.approx([100] * 8)  # of nine, one with the evaluation
    assert glass.peak_bytes(run) == 1010
    assert glass.update_times_ms(run, warm_up=8) == [99.0, 100.0]


def test_overhead_is_measured_or_projected() -> None:
    run = a_run()
    assert glass.overhead_share(run) == pytest.approx(0.2)
    # An update is 95.5 ms; per update 0.5 s / 100, 10 ms / 50 and 50 ms / 10.
    long = {"eval_interval": 100, "checkpoint_interval": 50, "log_interval": 10}
    extra = 0.005 + 0.0002 + 0.005
    assert glass.project_overhead_share(run, long) == pytest.approx(extra / (0.0955 + extra))
    assert glass.project_overhead_share(
        run, long | {"checkpoint_interval": None}
    ) < glass.project_overhead_share(run, long)


def test_percentiles() -> None:
    assert glass.percentile(range(1, 101), 99) == 99
    assert glass.percentile(range(1, 101), 50) == 50
    assert glass.percentile([3.0], 99) == 3.0


# --- the evaluator ---


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_the_evaluator_agrees_with_our_own_evaluation(tiny: MakeConfig, tiny_data: Path, arch: str) -> None:
    run = glassgpt.train(tiny("run", arch=arch, max_iters=10, keep_checkpoints=9, dtype="float32"))
    records = list(journal.read(run.out_dir / journal.FILE_NAME))
    own = {r["iter"]: r["loss"] for r in records if r["kind"] == "eval" and r["split"] == "val"}
    assert all(r["whole_split"] for r in records if r["kind"] == "eval" and r["split"] == "val")
    tokens = open_dataset(tiny_data).tokens("val")
    assert score_glass(run.out_dir, tokens, "cpu", which="10") == pytest.approx({8: own[10]}, abs=1e-5)
    both = score_glass(run.out_dir, tokens, "cpu", also=4, which="10")
    assert both[8] == pytest.approx(own[10], abs=1e-5)
    assert both[4] != both[8]
    assert score_glass(run.out_dir, tokens, "cpu", also=16).keys() == {8}


# nanoGPT's face, and nothing of its inside: the next token's logits are a row of a table.
BIGRAM = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        print("number of parameters: few")
        self.config = config
        self.table = nn.Embedding(config.vocab_size, config.vocab_size)

    def forward(self, idx, targets=None):
        assert idx.shape[1] <= self.config.block_size
        return self.table(idx), torch.tensor(0.0)
"""


def test_nanogpts_checkpoint_is_run_by_its_own_model(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(BIGRAM)
    logits = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    saved = {
        "model": {"_orig_mod.table.weight": logits},  # as of a compiled model
        "model_args": {"block_size": 4, "vocab_size": 5},
        "iter_num": 3,
        "best_val_loss": torch.tensor(1.0),
    }
    torch.save(saved, tmp_path / "ckpt.pt")
    tokens = np.random.default_rng(0).integers(0, 5, 23).astype(np.uint16)  # five windows and a rest of two
    expected = -float(np.mean([logits[a].log_softmax(0)[b] for a, b in itertools.pairwise(tokens)]))
    found = score_nanogpt(tmp_path / "ckpt.pt", tmp_path, tokens, "cpu", also=2)
    assert found == pytest.approx({4: expected, 2: expected}, abs=1e-6)


@pytest.mark.parametrize("length", [2, 8, 9, 10, 4 * 8192 + 1])
def test_every_token_but_the_first_is_predicted_once(length: int) -> None:
    seen: list[int] = []

    def uniform(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.extend(targets.flatten().tolist())
        assert tokens.shape[1] <= 8
        return torch.zeros(*tokens.shape, 7)

    tokens = np.arange(length) % 7
    assert whole_split_loss(uniform, tokens, 8, "cpu") == pytest.approx(math.log(7))
    assert len(seen) == length - 1


# --- results and table ---


def a_result(row: str = "gpt2-speed", device: str = "cuda", **changes: Any) -> Result:
    found: dict[str, Any] = {
        "row": row, "device": device, "machine": "a card", "unit": "tokens/s",
        "nanogpt": [500_000.0, 510_000.0],
        "glassgpt": [650_000.0, 640_000.0], "values": [1.3, 1.2549], "time": 1.0,
    }  # fmt: skip
    return Result(**found | changes)


def test_results_come_back_and_the_latest_counts(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.jsonl"
    assert results.read_latest(path) == []
    old, new = (
        a_result(values=[1.0]),
        a_result(nanogpt_losses=[{1024: 3.5}], glassgpt_losses=[{1024: 3.4, 64: 4.0}]),
    )
    for result in (old, a_result("overhead"), new, a_result(device="cpu")):
        results.append(path, result)
    assert [one.key for one in results.read_latest(path)] == [
        ("overhead", "cuda"), ("gpt2-speed", "cuda"), ("gpt2-speed", "cpu"),
    ]  # fmt: skip
    assert results.latest(path, "gpt2-speed", "cuda") == new
    assert results.latest(path, "steadiness", "cuda") is None


def test_verdicts() -> None:
    cases: list[tuple[str, float, str]] = [
        ("gpt2-speed", 1.1, "missed"),
        ("gpt2-speed", 1.2, "bar met"),
        ("gpt2-speed", 1.4, "reached"),
        ("gpt2-memory", 0.8, "missed"),
        ("gpt2-memory", 0.75, "bar met"),
        ("gpt2-memory", 0.5, "reached"),
        ("overhead", 0.031, "missed"),
        ("overhead", 0.02, "bar met"),
        ("overhead", 0.005, "reached"),
        ("shakespeare-whole-warm", 9.0, ""),
        ("mdn-rates", 9.0, ""),
    ]
    wrong = [
        (row, value, expected, got)
        for row, value, expected in cases
        if (got := table.verdict(a_result(row, values=[value]))) != expected
    ]
    assert wrong == []


def test_a_speed_with_a_worse_loss_does_not_count() -> None:
    result = a_result(values=[9.0], objection="loss 3.6 is worse than 3.5 by more than 0.01")
    assert table.verdict(result) == "does not count: loss 3.6 is worse than 3.5 by more than 0.01"
    assert "does not count" in ratios_picture([result])


def test_the_table_says_what_was_compared() -> None:
    losses: dict[str, Any] = {
        "nanogpt_losses": [{256: 1.4697}],
        "glassgpt_losses": [{512: 1.45, 256: 1.46}, {512: 1.44, 256: 1.47}],
    }
    text = table.markdown_table(
        [a_result("mdn-rates"), a_result(**losses), a_result("overhead", values=[0.012], nanogpt=[])]
    )
    lines = text.splitlines()
    assert len(lines) == 4  # mdn-rates is no row of the table
    assert lines[2] == (
        "| GPT-2 124M, tokens/s | GPU | 1.20x | 1.35x | 505,000 tokens/s | 645,000 tokens/s | 1.28x "
        "| 1.25x to 1.30x | 1.4697 @256 / 1.4450 @512, 1.4650 @256 | bar met |"
    )
    assert "| 3.00% | 1.00% |" in lines[3]
    assert "1.20%" in lines[3]


# --- the command ---


def test_the_table_command_ends_with_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, picture = tmp_path / "results.jsonl", tmp_path / "speed.svg"
    results.append(out, a_result())
    assert main(["table", "--out", str(out), "--picture", str(picture)]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["row"], row["verdict"]) for row in last["rows"]] == [("gpt2-speed", "bar met")]
    assert "1.28x" in picture.read_text()
