"""`glass tune` from the words of the command to the file that `glass train` takes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from commands import environment
from rich.console import Console

from glassgpt.cli import main
from glassgpt.cli.tune_command import tune
from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.recipe import build_config, find_recipe, read_recipe
from glassgpt.show.terminal.tune_view import TuneConsole
from glassgpt.tune import tuning as tunings
from glassgpt.tune.results import Trial
from glassgpt.tune.speed_settings import SpeedSettings, TuneContext
from glassgpt.tune.trial_runner import TrialRunner

Capture = pytest.CaptureFixture[str]
GIB = 2**30


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


# --- a machine of our own ---


def ground_of(config: TrainConfig) -> TuneContext:
    sequences = (config.batch_size or 1) * (config.gradient_accumulation_steps or 1)
    sizes = [size for size in range(1, sequences + 1) if sequences % size == 0]
    return TuneContext(
        device_type="cpu", device="cpu", device_name="Ship's computer", torch="2.13", dtype="float32",
        vocab_size=65, parameters=804_096, n_layer=4, block_size=config.block_size, sequences=sequences,
        updates=config.max_iters, flops_per_token=5_168_640, peak=67e9, peak_source="measured",
        free_bytes=8 * GIB, data="random tokens", data_bytes=4096, usable_cores=2.0, threads=2,
        busy_cores=0.0, automatic_batch=config.batch_size or 1,
        automatic_settings=tuple(SpeedSettings(micro_batch=size) for size in sizes),
        dropout=False, float8=False,
    )  # fmt: skip


class FakeTrialRunner(TrialRunner):
    """Trials by a formula: 10,000 tokens/s, 20% more with half the micro-batch, half with one thread."""

    device = "cpu"

    def __init__(self) -> None:
        self.config = TrainConfig()

    def __exit__(self, *_: object) -> None:
        pass

    def device_type(self, device: str, limit_s: float) -> str:
        return self.device

    def inspect_machine(
        self, config: TrainConfig, vocab_size: int | None, limit_s: float, budget_s: float
    ) -> TuneContext:
        self.config = config
        return ground_of(config)

    def measure(self, setting: SpeedSettings, limit_s: float) -> Trial:
        ground = ground_of(self.config)
        speed = 10_000 * (1.2 if setting.micro_batch == ground.sequences // 3 else 1.0)
        speed *= 0.5 if setting.threads == 1 else 1.0
        if setting.compile:
            return Trial(outcome="crashed", why="no [bold]compiler[/bold]\x1b[31m", wall_s=1.0)
        times = (ground.tokens_per_update / speed,) * 5
        peak = 300 * 2**20 + setting.micro_batch * 2**20
        return Trial(outcome="ran", update_s=times, micro_steps=1, first_s=0.2, peak_bytes=peak, wall_s=0.5)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> type[FakeTrialRunner]:
    monkeypatch.setattr("glassgpt.tune.trial_runner.TrialRunner", FakeTrialRunner)
    return FakeTrialRunner


def test_the_table_the_chart_the_sentence_and_the_file(
    machine: type[FakeTrialRunner], capsys: Capture
) -> None:
    assert tune(["shakespeare_char_cpu"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^tune +shakespeare_char_cpu: 0\.80M parameters, 768 tokens ", output, re.M)
    assert re.search(r"^automatic +micro-batch 12, .*2 threads$", output, re.M)
    rows = {line.split("  ")[0]: line for line in output.splitlines() if line.startswith("micro-batch")}
    assert rows["micro-batch 4"].split()[2:] == ["12k", "0.0%", "64.0", "ms", "93%", "304", "MiB", "best"]
    assert rows["micro-batch 12 (automatic)"].rstrip().endswith("17% slower")
    assert rows["micro-batch 4, 1 thread"].rstrip().endswith("50% slower")
    assert "crashed: no [bold]compiler[/bold]" in rows["micro-batch 4, compiled"]
    assert "\x1b" not in output
    assert re.search("extrapolated, .*5 of 6", output)
    chart = output.partition("tokens/s by micro-batch\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in chart] == ["2", "4", "12"]
    assert chart[1].count("█") == 50
    assert "Micro-batch 4 is 20% faster than the automatic 12." in output
    assert re.search(r"^next +glass train tuned\.toml$", output, re.M)
    config = build_config(read_recipe(Path("tuned.toml")), {})
    assert (config.batch_size, config.gradient_accumulation_steps, config.n_layer) == (4, 3, 4)


def test_json_is_one_document(machine: type[FakeTrialRunner], capsys: Capture) -> None:
    assert tune(["shakespeare_char_cpu", "--json", "--out=mine.toml"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert captured.err == ""
    assert document["file"] == "mine.toml"
    assert Path("mine.toml").is_file()
    assert document["chosen"]["setting"]["micro_batch"] == 4
    assert document["chosen"]["tokens_per_s"] == pytest.approx(12_000)
    assert document["budget_s"] == 90


def test_settings_given_by_flag_stay(machine: type[FakeTrialRunner], capsys: Capture) -> None:
    assert tune(["shakespeare_char_cpu", "--batch_size=12", "--compile=off", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    settings = [row["setting"] for row in document["trials"]]
    assert {(one["micro_batch"], one["compile"]) for one in settings} == {(12, False)}


def test_the_table_of_a_preset_that_holds_here(machine: type[FakeTrialRunner], capsys: Capture) -> None:
    assert tune(["--json"]) == 0  # quickstart, which has tables for cpu, cuda and mps
    assert json.loads(capsys.readouterr().out)["settings"]["n_embd"] == 128
    machine.device = "cuda"
    try:
        assert tune(["quickstart", "--json"]) == 0
    finally:
        machine.device = "cpu"
    assert json.loads(capsys.readouterr().out)["settings"]["n_embd"] == 384


def test_every_run_has_its_own_file(machine: type[FakeTrialRunner], capsys: Capture) -> None:
    for name in ("tuned.toml", "tuned-2.toml"):
        tune(["shakespeare_char_cpu"])
        assert f"written       {name}" in capsys.readouterr().out
    tune(["tuned.toml", "--force"])
    assert sorted(os.listdir()) == ["tuned-2.toml", "tuned.toml"]
    assert build_config(read_recipe(Path("tuned.toml")), {}).batch_size is not None


def test_a_busy_machine_is_a_warning(
    machine: type[FakeTrialRunner], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(self: FakeTrialRunner, config: TrainConfig, *_: Any) -> TuneContext:
        self.config = config
        return replace(ground_of(config), busy_cores=1.7)

    monkeypatch.setattr(FakeTrialRunner, "inspect_machine", look)
    tune(["shakespeare_char_cpu"])
    assert "1.7 of 2 cores busy" in capsys.readouterr().out


def test_a_bar_on_a_terminal(machine: type[FakeTrialRunner]) -> None:
    shop, screen = FakeTrialRunner(), io.StringIO()
    out = Console(file=screen, force_terminal=True, width=120)
    config = build_config(find_recipe("shakespeare_char_cpu"), {})
    with TuneConsole(out, "mine", 90.0) as told:
        tunings.tune(config, 90.0, shop, on_event=told)
    assert "of 1m 30s" in screen.getvalue()
    assert "so far 12k tokens/s" in screen.getvalue()


# --- what is refused ---


def problems_of(*words: str) -> list[str]:
    with pytest.raises(UserError) as error:
        tune(list(words))
    assert os.listdir() in ([], ["there.toml"])
    return error.value.problems


def test_all_problems_at_once() -> None:
    Path("there.toml").write_text("")
    problems = problems_of(
        "shakespeare_char_cpu", "two", "--budget=never", "--vocab_size=x", "--out=there.toml", "--n_head=3",
        "--lr=1", "--budgett=5",
    )  # fmt: skip
    text = "\n".join(problems)
    parts = ("two", "--budget=never", "--vocab_size=x", "there.toml exists", "did you mean --learning_rate?",
             "did you mean --budget?", "--n_embd=128 is not divisible by --n_head=3")  # fmt: skip
    for part in parts:
        assert part in text, part


def test_bad_words() -> None:
    cases: list[tuple[list[str], str]] = [
        (["nothere"], "nothere is neither a preset nor"),
        (["eval_gpt2"], "there is nothing to tune"),
        (["--init_from=resume"], "--init_from=resume cannot be tuned"),
        (["--budget"], "--budget needs a value"),
        (["--budget=0"], "--budget=0 is not a time"),
        (["shakespeare_char_cpu", "--batch_tokens=100"], "--batch_tokens=100 is not a multiple"),
    ]
    wrong = [(words, problem) for words, problem in cases if problem not in "\n".join(problems_of(*words))]
    assert wrong == []


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from glassgpt.cli.tune_command import tune\n"
        "assert tune(['--help']) == 0\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert b"--budget" in done.stdout


# --- for real ---

TINY = [
    "--n_layer=1", "--n_embd=16", "--n_head=2", "--block_size=8", "--batch_size=none", "--probe_seconds=0",
    "--device=cpu", "--dtype=float32", "--max_iters=5", "--eval_tokens=64", "--compile=off",
]  # fmt: skip
TUNED = [*TINY[:4], "--batch_tokens=16", "--attention=sdpa", *TINY[5:]]


def test_a_tiny_model_on_this_machine(tiny_data: Path, capsys: Capture) -> None:
    """Real processes, real updates; and the file trains."""
    words = ["shakespeare_char_cpu", f"--data_dir={tiny_data}", *TUNED, "--budget=30s", "--json"]
    assert tune(words) == 0
    document = json.loads(capsys.readouterr().out)
    ran = [row for row in document["trials"] if row["outcome"] == "ran"]
    assert document["chosen"]["setting"] in [row["setting"] for row in ran]
    assert len(ran) >= 2
    assert all(row["setting"]["compile"] is False for row in document["trials"])
    assert all(row["tokens_per_s"] > 0 and row["peak_bytes"] > 10**7 for row in ran)
    assert document["took_s"] < 32
    assert main(["train", "tuned.toml", "--out_dir=run"]) == 0
    assert Path("run/journal.jsonl").is_file()


def test_a_budget_too_short_for_one_trial(tiny_data: Path) -> None:
    (problem,) = problems_of("shakespeare_char_cpu", f"--data_dir={tiny_data}", *TUNED, "--budget=0.05")
    assert "too short to compare anything" in problem


def test_no_dataset_where_one_was_named() -> None:
    (problem,) = problems_of("shakespeare_char_cpu", "--data_dir=nowhere", "--budget=30s")
    assert "no dataset at nowhere" in problem


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_stopped_leaves_nothing_behind(number: signal.Signals, tiny_data: Path) -> None:
    code = (
        "import sys\nfrom glassgpt.cli.tune_command import tune\n"
        f"tune(['shakespeare_char_cpu', '--data_dir={tiny_data}', '--budget=60s'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    worker = first_child(process.pid)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode != 0
    wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    assert os.listdir() == []


def first_child(pid: int) -> Any:
    wait_until(lambda: bool(psutil.Process(pid).children()))
    return psutil.Process(pid).children()[0]


def wait_until(done: Callable[[], bool], within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


# --- for `glass train --tune` ---


def test_the_settings_for_a_run_that_follows(
    machine: type[FakeTrialRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunings, "TrialRunner", FakeTrialRunner)
    lines: list[str] = []
    config = TrainConfig(batch_size=12, gradient_accumulation_steps=1, block_size=64, n_layer=4, n_embd=120)
    tuned = tunings.tuned_config(config, 30.0, lines.append)
    assert (tuned.batch_size, tuned.gradient_accumulation_steps) == (4, 3)
    assert lines[0].startswith("tuning for Ship's computer")
    assert "micro-batch 12: 10k tokens/s" in lines
    assert lines[-1].startswith("Micro-batch 4 is 20% faster")
    same = tunings.tuned_config(config, 30.0, lines.append, fixed=("batch_size",))
    assert same.batch_size == 12
