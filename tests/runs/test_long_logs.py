"""Very long logs: read in blocks, thinned in memory. Facts and findings stay those of the whole log."""

from __future__ import annotations

import io
import math
from dataclasses import fields

import numpy as np
import pytest
from printed import SyntheticRun, llmc, nanogpt
from printed_more import nanochat

from glassgpt.explain.explanation import explain
from glassgpt.runs import step_rows
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.from_journal import JournalReader, run_log_from_records
from glassgpt.runs.lines import read_blocks, read_lines, split_block
from glassgpt.runs.reading import DEMO_LOGS
from glassgpt.runs.recognise import read_log, read_logs
from glassgpt.runs.run_log import RunLog, Steps
from glassgpt.runs.split_runs import MAX_RUNS

NANOCHAT = nanochat(SyntheticRun(updates=300, eval_every=50))
LOGS = sorted(DEMO_LOGS.values())


@pytest.fixture
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_rows, "MAX_ROWS", 4096)
    monkeypatch.setattr(step_rows, "_MAX_MARKED", 256)
    monkeypatch.setattr(step_rows, "_MAX_TURNS", 128)
    monkeypatch.setattr(step_rows, "MAX_OUTLIERS", 8)


def long_log(lines: int, seed: int = 0) -> str:
    """Of nanoGPT, with a slow iteration, a loss of NaN and an evaluation every 500 iterations."""
    rng = np.random.default_rng(seed)
    ms, losses = 100 + rng.random(lines), 2 + 3 / (1 + np.arange(lines) / 500) + rng.normal(0, 0.02, lines)
    ms[::500] += 900
    ms[lines // 3 + 1], losses[lines // 2 + 1] = 5000.0, math.nan
    text = ["tokens per iteration will be: 16,384"]
    for at in range(lines):
        if at % 500 == 0:
            text.append(f"step {at}: train loss {losses[at]:.4f}, val loss {losses[at]:.4f}")
        text.append(f"iter {at}: loss {losses[at]:.4f}, time {ms[at]:.2f}ms, mfu 12.34%")
    return "\n".join(text) + "\n"


def read(text: str) -> RunLog:
    return read_log(read_blocks(io.BytesIO(text.encode())), "long.log")


def assert_same_steps(one: Steps, other: Steps) -> None:
    for column in fields(Steps):
        np.testing.assert_array_equal(getattr(one, column.name), getattr(other, column.name), column.name)


def test_blocks_and_lines_read_the_same() -> None:
    assert LOGS
    texts = [path.read_bytes() for path in LOGS]
    texts += [long_log(3000).encode()]
    texts += [texts[-1] + b"\n> iter 3000: loss 2.0, time 9ms\n\n" + texts[-1] + b"iter 3001: loss 2.00"]
    lines = long_log(3000).splitlines()
    stamps = ("[2026-01-02 03:04:05] ", "03:04:05,123 ", "2026-01-02T03:04:05Z - INFO - ", "[12:00:00]\n")
    noise = (" 34%|###   | 34/100 [00:03<00:06, 9.8it/s]", "UserWarning: x", "[rank1]: iter 5: loss 2.0")
    for stamp in stamps:
        texts.append("".join(f"{stamp}{line}\n" for line in lines).encode())
    texts.append(
        "".join(f"{line}\n" + f"{noise[at % 3]}\n" * (at % 5) for at, line in enumerate(lines)).encode()
    )
    nanochat_lines = [
        line.replace("/00300 ", f"/{300 + at // 100:05d} ") for at, line in enumerate(NANOCHAT.lines)
    ]
    texts += [NANOCHAT.text.encode() * 3, "\n".join(nanochat_lines * 2).encode()]
    texts += [text.encode() for text in unknown_logs(6000)]
    texts.append(llmc(SyntheticRun(updates=300, eval_every=50)).text.encode() * 2)
    for data in texts:
        by_line = read_log(read_lines(io.BytesIO(data)), "x")
        by_block = read_log(read_blocks(io.BytesIO(data)), "x")
        assert_same_steps(by_line.steps, by_block.steps)
        for name in (
            "evals",
            "checkpoints",
            "segments",
            "events",
            "last_step_line",
            "ends_mid_line",
            "setup",
        ):
            assert getattr(by_line, name) == getattr(by_block, name), name


def unknown_logs(lines: int) -> list[str]:
    """Of trainers that nobody knows. Something is different now and then: the run starts again, too."""
    dice = np.random.default_rng(1)
    losses, times = dice.normal(3, 0.1, lines), dice.normal(0.2, 0.01, lines)
    forms = [
        "Step {at}/9000, Loss: {loss:.4f}, LR: 3e-4, Time: {s:.2f}s",
        "epoch {epoch} iteration {batch} train_loss={loss:.4f} val_loss=3.5{epoch} tok/s: {at}",
        "Epoch: {epoch:03d}/020 | Batch {batch:4d}/700 | Loss: {loss:.4f}",
        '[{s:.3f}] {{"epoch": {epoch}, "step": {at}, "loss": {loss:.3f}, "step_time_s": {s:.3f}}}',
        "2026-01-02 03:04:05 - INFO - it={at} loss={loss:.3f} elapsed={at}.5s {s:.2f}it/s mfu 12.5%",
        "2026-01-02 03:04:05 INFO step {at} train_loss {loss:.4f} val_loss {s:.4f}",
        "loss={loss:.3f} gnorm {s:.3f} step={at} {s:.3f}it/s",
    ]
    logs = []
    for form in forms:
        text = []
        for at, (loss, s) in enumerate(zip(losses, times, strict=True)):
            count = at if at < 4500 else at - 4500
            line = form.format(at=count, epoch=1 + count // 700, batch=count % 700, loss=loss, s=s)
            odd = {
                4: line.replace(f"{loss:.4f}", "nan"),
                5: f"{line} cuda:1",
                6: "",
                7: line[:20],
                8: f"> {line}",
            }
            text.append(odd.get(at % 97, line))
        logs.append("\n".join(text) + "\n")
    return logs


def test_a_block_in_which_another_trainers_run_begins() -> None:
    course = SyntheticRun(updates=40, eval_every=10)
    theirs, ours = llmc(course).text, nanogpt(course).text
    blocks = [ours[:-1], (ours + theirs + ours)[:-1]]  # the first one makes clear whose log it is
    by_block = read_logs(iter(blocks), "x")
    by_line = read_logs((line for block in blocks for line in split_block(block)), "x")
    for runs in (by_block, by_line):
        assert [(run.trainer.id, len(run.steps), len(run.evals), run.runs_in_file) for run in runs] == [
            ("nanogpt", 41, 5, 4),
            ("nanogpt", 41, 5, 4),
            ("llm.c", 40, 5, 4),
            ("nanogpt", 41, 5, 4),
        ]
    lines = (ours + ours + theirs + ours).split("\n")
    for one, other in zip(by_block, by_line, strict=True):
        assert (one.first_line, one.last_line) == (other.first_line, other.last_line)
        assert one.steps.line.tolist() == other.steps.line.tolist()
        assert one.last_step_line == other.last_step_line == one.steps.line[-1]
        for at, line in zip(one.steps.iteration.tolist(), one.steps.line.tolist(), strict=True):
            assert lines[line - 1].startswith((f"iter {at}:", f"step {at:4d}/"))


def test_a_thinned_log_has_the_facts_of_the_whole(request: pytest.FixtureRequest) -> None:
    text = long_log(40_000)
    whole = read(text)
    request.getfixturevalue("short_memory")
    thinned = read(text)
    assert not whole.left_out.lines
    assert len(thinned.steps) < 4096 < thinned.left_out.lines
    expected, facts = Analysis(whole).facts.as_dict(), Analysis(thinned).facts.as_dict()
    about = {"steady_ms": 0.002, "steady_p95_ms": 0.002, "startup_ms": 0.01, "eval_overhead_ms": 0.002}
    about |= {"tokens_per_s": 0.002, "overhead_share": 0.01, "estimated_total_s": 1e-9}
    about |= {"flops_per_token": 0.002, "achieved_tflops": 0.002}
    for name, value in expected.items():
        rel = about.get(name, 1e-12)  # sums in another order differ in their last bit
        is_number = isinstance(value, float | dict)
        assert facts[name] == (pytest.approx(value, rel=rel) if is_number else value), name
    explanation = explain(thinned)
    assert {finding.id for finding in explain(whole).findings} == {one.id for one in explanation.findings}
    assert any(
        "40,000" in sentence and f"{len(thinned.steps):,}" in sentence for sentence in explanation.verdict
    )


@pytest.mark.usefixtures("short_memory")
def test_outliers_and_their_neighbours_are_kept() -> None:
    steps = read(long_log(40_000)).steps
    slow, broken = 40_000 // 3 + 1, 40_000 // 2 + 1
    assert steps.ms[steps.iteration == slow] == [5000.0]
    assert {slow - 1, slow + 1, broken - 1, broken, broken + 1} <= set(steps.iteration.tolist())
    assert set(range(0, 40_000, 500)) <= set(steps.iteration.tolist())
    assert np.bincount(np.diff(steps.iteration)).argmax() == 1


@pytest.mark.usefixtures("short_memory")
def test_a_log_of_restarts_is_thinned_too() -> None:
    lines = [f"iter {at % 2}: loss 2.0000, time {at}.00ms, mfu 1.00%" for at in range(20_000)]
    runs = read_logs(read_blocks(io.BytesIO(("\n".join(lines) + "\n").encode())), "long.log")
    assert {run_log.runs_in_file for run_log in runs} == {10_000}
    assert len(runs) == MAX_RUNS


def step(at: int, process: int = 0) -> dict[str, object]:
    record = {"kind": "step", "time": float(at), "process": process, "iter": at, "loss": 2.0 + at % 7}
    return record | {"step_ms": 10.0, "tokens": at * 16.0, "phases": {"train": 10.0}}


@pytest.mark.usefixtures("short_memory")
def test_a_resume_drops_lines_of_a_thinned_journal() -> None:
    records = [step(at) for at in range(1, 20_001)]
    records.append({"kind": "resume", "time": 0.0, "process": 1, "iter": 9_990, "from_iter": 9_990})
    records += [step(at, process=1) for at in range(9_991, 12_001)]
    run_log = run_log_from_records(records, "x")
    assert len(run_log.steps) < 4096
    assert Analysis(run_log).facts.iterations_logged == 12_000
    assert int(run_log.steps.iteration[-1]) == 12_000
    assert (np.diff(run_log.steps.iteration) > 0).all()
    beginning = {"kind": "resume", "time": 0.0, "process": 2, "iter": 0, "from_iter": -1}
    assert not len(run_log_from_records([*records, beginning], "x").steps)


def test_building_a_journal_does_not_change_what_is_read_later() -> None:
    records = [step(at) for at in range(1, 301)]
    reader = JournalReader()
    for record in records:
        reader.feed(record)
        if record["iter"] in (1, 150):
            reader.build("x", live=True)
    assert_same_steps(reader.build("x").steps, run_log_from_records(records, "x").steps)
