"""`--console=nanogpt`: what scripts that read nanoGPT's output read, they can go on reading."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_records import checkpoint_record, end_record, eval_record, record, step_record

from glassgpt.cli import main
from glassgpt.config import TrainConfig
from glassgpt.data import prepare as prepare_module
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.show.terminal import nanogpt_console
from glassgpt.show.terminal.nanogpt_console import NanogptConsole
from glassgpt.training.session import resume, train

MakeConfig = Callable[..., TrainConfig]

# As a script would look for them.
NUMBER = r"(-?\d+\.\d+)"
ITER = re.compile(rf"^iter (\d+): loss {NUMBER}, time {NUMBER}ms, mfu {NUMBER}%$", re.MULTILINE)
STEP = re.compile(rf"^step (\d+): train loss {NUMBER}, val loss {NUMBER}$", re.MULTILINE)
SAVE = re.compile(r"^saving checkpoint to (.+)$", re.MULTILINE)
PARAMETERS = re.compile(rf"^number of parameters: {NUMBER}M$", re.MULTILINE)
TOKENS = re.compile(r"^tokens per iteration will be: ([\d,]+)$", re.MULTILINE)
DECAYED = re.compile(r"^num decayed parameter tensors: (\d+), with ([\d,]+) parameters$", re.MULTILINE)
OTHERS = re.compile(r"^num non-decayed parameter tensors: (\d+), with ([\d,]+) parameters$", re.MULTILINE)
FUSED = re.compile(r"^using fused AdamW: (True|False)$", re.MULTILINE)
RESUMED = re.compile(r"^Resuming training from (.+)$", re.MULTILINE)
NEW = re.compile(r"^Initializing a new model from scratch$", re.MULTILINE)
COMPILING = re.compile(r"^compiling the model\.\.\. \(takes a ~minute\)$", re.MULTILINE)
ALL = (ITER, STEP, SAVE, PARAMETERS, TOKENS, DECAYED, OTHERS, FUSED, RESUMED, NEW, COMPILING)


def is_theirs(line: str) -> bool:
    return any(pattern.fullmatch(line) for pattern in ALL)


def whole(text: str) -> int:
    return int(text.replace(",", ""))


class Output:
    """A console with its two streams, to be read as text."""

    def __init__(self) -> None:
        self.streams = io.StringIO(), io.StringIO()
        self.console = NanogptConsole(*self.streams)

    @property
    def out(self) -> str:
        return self.streams[0].getvalue()

    @property
    def err(self) -> str:
        return self.streams[1].getvalue()


def ran(config: TrainConfig) -> tuple[Output, list[Record]]:
    output = Output()
    train(config, listeners=[output.console])
    return output, list(journal.read(Path(config.out_dir, journal.FILE_NAME)))


def of_kind(records: list[Record], kind: str) -> list[Record]:
    return [record for record in records if record["kind"] == kind]


# --- the lines of a run ---


def test_every_line_of_a_run_is_one_of_theirs_and_says_what_the_journal_says(tiny: MakeConfig) -> None:
    config = tiny(console="nanogpt", max_iters=12, eval_interval=5, gradient_accumulation_steps=2)
    output, records = ran(config)
    assert [line for line in output.out.splitlines() if not is_theirs(line)] == []
    assert output.err == ""
    assert [whole(tokens) for tokens in TOKENS.findall(output.out)] == [2 * 4 * 8]
    assert len(NEW.findall(output.out)) == len(FUSED.findall(output.out)) == 1
    steps = of_kind(records, "step")
    assert [line[:2] for line in ITER.findall(output.out)] == [
        (str(step["iter"] - 1), f"{step['loss']:.4f}") for step in steps
    ]
    times = [step["step_ms"] or step["first_update_ms"] for step in steps]
    assert [line[2] for line in ITER.findall(output.out)] == [f"{ms:.2f}" for ms in times]
    losses = {(found["iter"], found["split"]): found["loss"] for found in of_kind(records, "eval")}
    assert STEP.findall(output.out) == [
        (str(at), f"{losses[at, 'train']:.4f}", f"{losses[at, 'val']:.4f}") for at in (0, 5, 10, 12)
    ]
    saved = of_kind(records, "checkpoint")
    assert SAVE.findall(output.out) == [config.out_dir] * len(saved)
    assert len(saved) == 3


def test_a_step_comes_before_the_iteration_of_its_number(tiny: MakeConfig) -> None:
    output, _ = ran(tiny(console="nanogpt", max_iters=12, eval_interval=5))
    order = [
        tuple(line.split()[:2]) for line in output.out.splitlines() if line.startswith(("iter ", "step "))
    ]
    expected = [("iter", f"{number}:") for number in range(12)] + [("step", "12:")]
    for number in (10, 5, 0):
        expected.insert(number, ("step", f"{number}:"))
    assert order == expected


@pytest.mark.parametrize(("log_interval", "numbers"), [(1, range(11)), (3, [0, 3, 6, 9, 10]), (10, [0, 10])])
def test_updates_are_numbered_from_0_in_steps_of_log_interval(
    tiny: MakeConfig, log_interval: int, numbers: list[int]
) -> None:
    config = tiny(console="nanogpt", max_iters=11, log_interval=log_interval, checkpoint_interval=5)
    output, _ = ran(config)
    assert [int(line[0]) for line in ITER.findall(output.out)] == list(numbers)
    # Also from where a run goes on.
    again = Output()
    resume(config.out_dir, [again.console], max_iters=22)
    assert [int(line[0]) for line in ITER.findall(again.out)] == [
        number for number in range(11, 22) if number % log_interval == 0 or number == 21
    ]
    assert [line for line in again.out.splitlines() if not is_theirs(line)] == []
    assert RESUMED.findall(again.out) == [config.out_dir]
    assert NEW.findall(again.out) == []
    assert "learning rate" in again.err


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_parameters_are_counted_as_they_are(tiny: MakeConfig, arch: str, bias: bool, tied: bool) -> None:
    shape = {"arch": arch, "bias": bias, "tie_embeddings": tied, "n_layer": 3, "n_embd": 32}
    output, records = ran(tiny(**shape, console="nanogpt", max_iters=1))
    fields = ("vocab_size", "block_size", "n_layer", "n_head", *shape, "activation")
    model = GPT(GPTConfig(**{name: records[0]["model"][name] for name in fields}))
    parameters = dict(model.named_parameters())
    decayed = [parameter.numel() for parameter in parameters.values() if parameter.dim() >= 2]
    others = [parameter.numel() for parameter in parameters.values() if parameter.dim() < 2]
    for pattern, sizes in ((DECAYED, decayed), (OTHERS, others)):
        ((tensors, total),) = pattern.findall(output.out)
        assert (int(tensors), whole(total)) == (len(sizes), sum(sizes))
    positions = 8 * 32 if arch == "gpt2" else 0
    assert PARAMETERS.findall(output.out) == [f"{(sum(decayed) + sum(others) - positions) / 1e6:.2f}"]


def test_compiling_is_announced_as_there(tiny: MakeConfig) -> None:
    output, records = ran(tiny(console="nanogpt", max_iters=1))
    assert COMPILING.findall(output.out) == []
    changed = [choice | {"value": "on"} for choice in records[0]["choices"] if choice["name"] == "compile"]
    changed += [{"name": "device", "value": "mps", "reason": ""}]
    again = Output()
    again.console(records[0] | {"choices": changed})
    assert len(COMPILING.findall(again.out)) == 1
    assert FUSED.findall(again.out) == ["False"]


# --- MFU ---


def running_mfu(config: TrainConfig, steps: list[Record], parameters: int, peak: float) -> list[str]:
    """What nanoGPT computes: -100% for five iterations, then a mean in which each new one counts a tenth."""
    per_token = 6 * parameters + 12 * config.n_layer * config.n_embd * config.block_size
    tokens = 4 * 2 * config.block_size
    running, shown = -1.0, []
    for local_iter, step in enumerate(steps):
        if local_iter >= 5:
            mfu = per_token * tokens / (step["step_ms"] / 1000) / peak
            running = mfu if running == -1.0 else 0.9 * running + 0.1 * mfu
        shown.append(f"{running * 100:.2f}")
    return shown


def test_mfu_is_a_running_mean_that_begins_with_the_sixth_iteration(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nanogpt_console, "A100_PEAK", 1e9)  # of an A100 it would be 0.00% throughout
    config = tiny(console="nanogpt", max_iters=12, gradient_accumulation_steps=2)
    output, records = ran(config)
    steps, vocab_size = of_kind(records, "step"), records[0]["model"]["vocab_size"]
    parameters = vocab_size * 16 + 2 * (12 * 16 * 16 + 2 * 16) + 16
    found = [line[3] for line in ITER.findall(output.out)]
    assert found == running_mfu(config, steps, parameters, 1e9)
    assert found[:5] == ["-100.00"] * 5
    assert len(set(found[5:])) > 3
    # A process that goes on warms up again, as there.
    again = Output()
    resume(config.out_dir, [again.console], max_iters=20)
    assert [line[3] for line in ITER.findall(again.out)][:5] == ["-100.00"] * 5


def test_the_peak_is_an_a100s(tiny: MakeConfig) -> None:
    output = Output()
    for number, flops_per_s in enumerate([None, 156e12, 312e12, None], start=5):
        output.console(step_record(10 * number, updates=10, flops_per_s=flops_per_s))
    # Where the speed is not known the mean stays as it is.
    assert [line[3] for line in ITER.findall(output.out)] == ["-100.00", "50.00", "55.00", "55.00"]


# --- where things go ---

TINY = ["--n_layer=1", "--n_embd=16", "--n_head=2", "--batch_size=4", "--block_size=8", "--max_iters=6"]
TINY += ["--eval_interval=3", "--eval_tokens=64", "--probe_seconds=0", "--sample_tokens=12", "--device=cpu"]


def test_stdout_has_nothing_but_their_lines_also_where_data_had_to_be_prepared(
    tiny_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def copy(options: PrepareOptions, *_: Any, **__: Any) -> None:
        shutil.copytree(tiny_data, options.out_dir)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prepare_module, "prepare", copy)
    assert main(["train", "--console=nanogpt", *TINY]) == 0
    captured = capsys.readouterr()
    assert [line for line in captured.out.splitlines() if not is_theirs(line)] == []
    assert len(ITER.findall(captured.out)) == 2  # quickstart logs every 25 iterations, and the last one
    assert SAVE.findall(captured.out) == ["runs/quickstart"] * 2
    sample = next(
        found["text"]
        for found in journal.read(Path("runs/quickstart", journal.FILE_NAME))
        if found["kind"] == "sample"
    )
    assert captured.err.splitlines()[0].startswith("data          preparing pylib")
    assert re.search(r"^whole validation split: loss \d\.\d{4}$", captured.err, re.MULTILINE)
    assert sample in captured.err
    # Said once, a run goes on saying it.
    assert main(["train", "--init_from=resume", "--max_iters=8"]) == 0
    assert [int(line[0]) for line in ITER.findall(capsys.readouterr().out)] == [7]
    assert main(["train", "--init_from=resume", "--max_iters=9", "--console=glass"]) == 0
    assert ITER.findall(capsys.readouterr().out) == []


def test_one_evaluation_is_one_line(tiny: MakeConfig) -> None:
    output, _ = ran(tiny(console="nanogpt", eval_only=True))
    assert [line[0] for line in STEP.findall(output.out)] == ["0"]
    assert ITER.findall(output.out) == SAVE.findall(output.out) == []


def test_a_run_that_begins_from_another_does_not_say_from_scratch(tiny: MakeConfig) -> None:
    config = tiny("first", max_iters=3)
    train(config)
    output = Output()
    fork = replace(config, out_dir=tiny("fork").out_dir, init_from=config.out_dir, max_iters=5)
    train(fork, listeners=[output.console])
    assert NEW.findall(output.out) == []
    assert [int(line[0]) for line in ITER.findall(output.out)] == [3, 4]


def test_findings_complaints_and_ends_go_to_stderr(tiny: MakeConfig) -> None:
    _, records = ran(tiny(max_iters=1))
    output = Output()
    output.console(records[0])
    before = output.out
    finding = {"severity": "advice", "title": "title", "evidence": "evidence", "advice": "do this"}
    output.console(record("finding", 1, finding, {}))
    output.console(record("finding", 1, finding, {"advice": ""}))
    output.console(end_record(1, "interrupted"))
    output.console(end_record(1, "not finite", recent_grad_norms=[1.0], bad_iter=2, last_checkpoint=None))
    output.console(end_record(1, "finished"))
    assert output.out == before
    lines = output.err.splitlines()
    assert lines[0] == "advice: title (evidence). Do this."
    assert lines[1] == "advice: title (evidence)."
    assert lines[2].startswith("next: resume with  glass train --init_from=resume --out_dir=")
    assert re.match("problem: .*iter 2 .*not finite", lines[3])
    output.console(record("resume", 1, {"from_iter": 1, "complaints": ["damaged"]}, {}))
    assert output.err.splitlines()[-1] == "warning: damaged"


def test_a_loss_that_is_not_finite_is_shown_and_control_characters_are_not(tiny: MakeConfig) -> None:
    _, records = ran(tiny(max_iters=1))
    output = Output()
    output.console(records[0] | {"out_dir": "out\x1b[31m"})
    output.console(step_record(1, loss=float("nan"), updates=1, flops_per_s=None))
    output.console(eval_record(1, "train", float("inf")))
    output.console(eval_record(1, "val", float("nan")))
    output.console(checkpoint_record(1))
    assert output.out.splitlines()[-3:] == [
        "iter 0: loss nan, time 38.12ms, mfu -100.00%",
        "step 1: train loss inf, val loss nan",
        "saving checkpoint to out\N{REPLACEMENT CHARACTER}[31m",
    ]


def test_of_several_processes_the_mfu_is_each_ones(tiny: MakeConfig) -> None:
    """nanoGPT counts the tokens of one process, and takes them by one A100's 312 TFLOP/s."""
    _, records = ran(tiny(console="nanogpt", max_iters=1))
    step = of_kind(records, "step")[0] | {"updates": 6, "step_ms": 10.0, "flops_per_s": 312e12}
    output = Output()
    output.console(records[0] | {"team": {"size": 2}})
    output.console(step)
    assert output.out.endswith("mfu 50.00%\n")
