"""The command itself, started as people start it: stopped while it is loading, its terminal closed, nohup."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glassgpt.record import journal
from glassgpt.record.journal import Record

GLASS = [sys.executable, "-m", "glassgpt"]
# Long enough to be caught in the middle: about ten milliseconds an update.
RUN = [
    "train", "--out_dir=run", "--n_layer=1", "--n_head=1", "--n_embd=16", "--block_size=64", "--batch_size=8",
    "--max_iters=300", "--eval_interval=100", "--log_interval=20", "--eval_tokens=640", "--probe_seconds=0",
    "--compile=off", "--sample_tokens=0",
]  # fmt: skip


def command(tiny_data: Path, *more: str) -> list[str]:
    return [*GLASS, *RUN, f"--data_dir={tiny_data}", *more]


def read(run_dir: Path) -> list[Record]:
    path = run_dir / journal.FILE_NAME
    return list(journal.read(path)) if path.exists() else []


def wait_for(run_dir: Path, kind: str) -> None:
    deadline = time.monotonic() + 60
    while not any(record["kind"] == kind for record in read(run_dir)):
        assert time.monotonic() < deadline, "it never got so far"
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc to see what is loaded")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_it_is_loading(tmp_path: Path, tiny_data: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(command(tiny_data), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    if not (tmp_path / "run").exists():
        assert process.returncode == 128 + number, said
        assert said.strip() == "stopped at once; saved checkpoints are intact"
        assert list(tmp_path.iterdir()) == []
    else:  # a fast machine was already training
        assert process.returncode == 128 + number
        assert read(tmp_path / "run")[-1]["reason"] == "interrupted"


def test_its_terminal_is_closed_and_it_goes_on(tmp_path: Path, tiny_data: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, command(tiny_data))
    wait_for(tmp_path / "run", "step")
    os.close(terminal)  # the kernel sends SIGHUP, and every later write to the terminal fails
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    records = read(tmp_path / "run")
    assert records[-1]["reason"] == "finished"
    assert records[-1]["iter"] == 300
    assert [record["id"] for record in records if record["kind"] == "finding"].count("hangup") == 1
    saved = [record["iter"] for record in records if record["kind"] == "checkpoint"]
    assert len(saved) == 4, "one more than those at the evaluations"
    assert (tmp_path / "run" / "report.html").exists()


def test_nobody_reads_its_output_and_the_report_is_written(tmp_path: Path, tiny_data: Path) -> None:
    """`glass train | head -1`"""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command(tiny_data), cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 0
    assert said == "warning: the output was closed; the run continues without it\n"
    assert read(tmp_path / "run")[-1]["reason"] == "finished"
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


def test_under_nohup_nothing_happens_at_all(tmp_path: Path, tiny_data: Path) -> None:
    process = subprocess.Popen(
        ["nohup", *command(tiny_data)], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(tmp_path / "run", "step")
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0
    records = read(tmp_path / "run")
    assert records[-1]["kind"] == "end"
    assert not any(record.get("id") == "hangup" for record in records)


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGINT, None), (signal.SIGINT, 2), (signal.SIGTERM, 2)]
)
def test_a_preparation_that_is_stopped_leaves_nothing(
    tmp_path: Path, number: signal.Signals, workers: int | None
) -> None:
    """Ctrl-C reaches all processes of a terminal, SIGTERM this one. The next attempt finds an empty place."""
    lines = (f"the quick {at * 7919 % 100_003} brown fox {at} jumps over a dog\n" for at in range(200_000))
    name = "text.txt"
    if workers:
        name, lines = "text.jsonl", (json.dumps({"text": line * 5}) + "\n" for line in lines)
    (tmp_path / name).write_text("".join(lines))
    asked = ["prepare", name, "--tokenizer=bpe:900", "--out_dir=out"]
    asked += [f"--workers={workers}"] if workers else []
    process = subprocess.Popen(
        [sys.executable, "-m", "glassgpt", *asked],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 3:  # the text, the lock, the folder that it works in
        assert time.monotonic() < deadline, "it never got so far"
        time.sleep(0.01)
    time.sleep(0.3)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (128 + number, "stopped at once")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_does_not_fit_is_one_line_and_the_run_goes_on(tmp_path: Path, tiny_data: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(tiny_data), cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 0
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1
    assert read(tmp_path / "run")[-1]["reason"] == "finished"


def test_more_threads_than_any_machine_has_are_refused(tmp_path: Path, tiny_data: Path) -> None:
    """OpenMP would end the process with a segmentation fault."""
    asked = command(tiny_data, "--threads=100000")
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --threads=100000 must be at most 1024; omit it to use one per core\n"
    assert list(tmp_path.iterdir()) == []
