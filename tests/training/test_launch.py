"""torchrun itself, and `glass train --nproc`: started as a user starts them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import rank_processes
from tiny import MakeConfig, records, run_losses

from glassgpt.cli.train_command import _without_nproc
from glassgpt.errors import UserError
from glassgpt.training.distributed import join
from glassgpt.training.launch import _exit_code, launch
from glassgpt.training.session import train

GLASS = [sys.executable, "-P", "-m", "glassgpt"]
SHARED = {"batch_size": 2, "gradient_accumulation_steps": 4, "max_iters": 10, "eval_interval": 5}


def run(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_nproc_trains_in_processes_and_passes_signals_and_codes_on(tiny: MakeConfig, here: Path) -> None:
    """From a folder whose Python files are named like modules that are needed, and are not run."""
    from torch.distributed.launcher.api import LaunchConfig

    for name in ("glassgpt", "numpy", "torch", "json"):
        (here / f"{name}.py").write_text("open('was_run', 'a').close(); raise SystemExit(0)")
    config, forever = tiny("two", **SHARED), tiny("forever", **SHARED | {"max_iters": 1_000_000})
    second = run([*GLASS, *rank_processes.train_command(forever), "--nproc=2"])
    first = run([*GLASS, *rank_processes.train_command(config), "--nproc", "2"])
    expected: set[str] = set()
    if "signals_to_handle" in LaunchConfig.__dataclass_fields__:  # other versions take a hangup for an end
        while not psutil.Process(second.pid).children():
            time.sleep(0.01)
        second.send_signal(signal.SIGUSR1)  # while its processes are loading
        expected = {"hangup", "save-requested"}
    output = first.communicate(timeout=120)[0]
    assert first.returncode == 0, output
    assert not (here / "was_run").exists()
    assert output.count("end           finished after 10 updates") == 1
    train(tiny("one", **SHARED))
    assert run_losses(config.out_dir) == pytest.approx(run_losses(tiny("one").out_dir), abs=1e-5)
    while not Path(forever.out_dir, "journal.jsonl").exists() or not run_losses(forever.out_dir):
        time.sleep(0.05)
        assert second.poll() is None
    if expected:
        second.send_signal(signal.SIGHUP)  # its terminal is closed
    while not expected <= {record["id"] for record in records(forever.out_dir, "finding")}:
        time.sleep(0.05)
        assert second.poll() is None
    before = max(run_losses(forever.out_dir))
    while max(run_losses(forever.out_dir)) == before:
        time.sleep(0.05)
        assert second.poll() is None
    second.send_signal(signal.SIGINT)
    output = second.communicate(timeout=120)[0]
    assert second.returncode == 130, output
    end = records(forever.out_dir)[-1]
    assert end["reason"] == "interrupted"
    assert end["last_checkpoint"].endswith(f"{end['iter']:08d}")


def test_processes_that_are_told_to_stop_have_the_time_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two long updates and a checkpoint take more than the 30 s after which torch kills."""
    from torch.distributed.launcher import api

    if "shutdown_timeout" not in api.LaunchConfig.__dataclass_fields__:
        pytest.skip("this version of torch always waits 30 s")
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1")  # so that it is as before afterwards
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", "")
    waits = []

    def elastic_launch(config: api.LaunchConfig, program: str) -> Callable[..., None]:
        waits.append(config.shutdown_timeout or 0)
        return lambda *words: None

    monkeypatch.setattr(api, "elastic_launch", elastic_launch)
    assert launch(2, ["train"]) == 0
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    assert launch(2, ["train"]) == 0
    assert waits[0] == 1  # somebody knows better
    assert waits[1] >= 24 * 3600


def test_the_launcher_itself_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On Ctrl-C torch wrote a line of its own among those of the run."""
    from torch.distributed.elastic.agent.server import api as agent
    from torch.distributed.launcher import api

    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", "")

    def elastic_launch(config: api.LaunchConfig, program: str) -> Callable[..., None]:
        return lambda *words: agent.logger.warning("Received 2 death signal")

    monkeypatch.setattr(api, "elastic_launch", elastic_launch)
    agent.logger.setLevel("WARNING")  # as torch does when it is imported
    assert launch(2, ["train"]) == 0
    assert not caplog.records


def test_torchrun_restarts_a_run_where_it_was(tiny: MakeConfig, tmp_path: Path) -> None:
    """A process dies by kill -9 in the first attempt; the second finishes the run."""
    config = tiny(**SHARED | {"checkpoint_interval": 3})
    script = tmp_path / "dies_once.py"
    script.write_text(
        f"import os, sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import rank_processes\nfrom glassgpt.cli import run\n"
        "if os.environ['RANK'] + os.environ['TORCHELASTIC_RESTART_COUNT'] == '10':\n"
        "    rank_processes.die_in_update_7()\n"
        "run()\n"
    )
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=1"]
    process = run([sys.executable, *torchrun, str(script), *rank_processes.train_command(config)])
    output = process.communicate(timeout=180)[0]
    assert process.returncode == 0, output
    assert "rank 1 has died" in output
    train(tiny("one", **SHARED))
    assert run_losses(config.out_dir) == pytest.approx(run_losses(tiny("one").out_dir), abs=1e-5)
    runs = records(config.out_dir, "run")
    assert [(record["iter"], record["team"]["attempt"]) for record in runs] == [(0, 0), (6, 1)]


def test_the_exit_code_is_the_first_processs_unless_it_was_killed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code({0: 2, 1: -15}) == 2
    assert _exit_code({1: 3}) == 3
    assert _exit_code({0: -15, 1: 1}) == 1
    assert capsys.readouterr().err == ""
    assert _exit_code({0: -9, 1: -15}) == 137
    assert capsys.readouterr().err == "error: rank 0 was ended by SIGKILL\n"


def test_who_was_killed_is_named_though_the_others_ended_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The launcher tells the others to end, and before the first update they do so with the code for that."""
    assert _exit_code({0: 143, 1: -9}) == 137
    assert capsys.readouterr().err == "error: rank 1 was ended by SIGKILL\n"
    assert _exit_code({0: -9, 1: 143}) == 137
    assert capsys.readouterr().err == "error: rank 0 was ended by SIGKILL\n"
    assert _exit_code({0: 143, 1: 143}) == 143  # as somebody asked
    assert _exit_code({0: 143, 1: 2}) == 2
    assert capsys.readouterr().err == ""


def test_processes_are_asked_for_the_same_without_nproc() -> None:
    words = ["tiny", "--nproc", "4", "--seed=1"]
    assert _without_nproc(words) == ["tiny", "--seed=1"]
    assert _without_nproc(["--nproc=4", "--seed", "1"]) == ["--seed", "1"]


@pytest.mark.parametrize(("rank", "size"), [("5", "2"), ("2", "2"), ("one", "2"), ("0", "two")])
def test_a_rank_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, rank: str, size: str) -> None:
    """It would wait for half an hour for nobody."""
    environment = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"RANK={rank} and WORLD_SIZE={size}"):
        join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_waits_for_the_others_can_be_stopped(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The wait is torch's, and Python hears of no signal in it."""
    environment = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "9",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    waiting = (
        "import sys; from glassgpt.training.distributed import torch_group; opened = torch_group.rendezvous\n"
        "def rendezvous(*args, **kwargs): print('waiting', flush=True); return opened(*args, **kwargs)\n"
        "torch_group.rendezvous = rendezvous\n"
        "from glassgpt.cli import run; run()"
    )
    process = run([sys.executable, "-c", waiting, *rank_processes.train_command(tiny("alone"))])
    assert process.stdout is not None
    assert "waiting" in process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(number)
    try:
        assert process.wait(timeout=20) == -number
    finally:
        process.kill()
