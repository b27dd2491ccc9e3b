"""Whatever a row has started ends with it: at its limit, when it has seen enough, when it is told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from bench.glass import ROOT
from bench.watch import CommandFailed, cache_environment, run_timed

SOON_S = 5  # far below what the processes would take by themselves
# Notes its number down, hears no polite request, and keeps what it was given to print to.
STUBBORN = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({place!r}, str(os.getpid())).touch()
print("begun", flush=True)
time.sleep(60)
"""
# Starts one of those, as sampling.py does for its rounds.
PARENT = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({place!r}, str(os.getpid())).touch()
started = subprocess.Popen([sys.executable, "-c", {child!r}])
{then}
"""


def family(place: Path, then: str = "started.wait()") -> list[str]:
    """The command of a process with a child. `then`: what it does once the child is started."""
    place.mkdir()
    child = STUBBORN.format(place=str(place))
    return [sys.executable, "-c", PARENT.format(place=str(place), child=child, then=then)]


def wait_for_both(place: Path) -> None:
    deadline = time.monotonic() + 60
    while len(list(place.iterdir())) < 2:
        assert time.monotonic() < deadline, "the processes did not start"
        time.sleep(0.02)


def alive(place: Path) -> list[int]:
    """Of those that noted themselves down; a moment later, for what was killed takes one to be gone."""
    numbers = [int(file.name) for file in place.iterdir()]
    assert len(numbers) == 2
    deadline = time.monotonic() + 2
    while (left := [number for number in numbers if _runs(number)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for number in left:  # before anybody complains
        os.kill(number, signal.SIGKILL)
    return left


def _runs(number: int) -> bool:
    try:
        return bool(psutil.Process(number).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_limit_ends_the_processes_of_a_process_too(tmp_path: Path) -> None:
    place, started = tmp_path / "family", time.monotonic()
    with pytest.raises(CommandFailed, match="after the limit"):
        run_timed(family(place), tmp_path, cache_environment(tmp_path / "caches"), limit_s=3)
    assert time.monotonic() - started < 3 + SOON_S
    assert alive(place) == []


def test_a_limit_ends_those_whose_parent_is_gone(tmp_path: Path) -> None:
    """They hold the end of the pipe that is read from, which would last as long as they."""
    place, started = tmp_path / "family", time.monotonic()
    parent_dies = "while True: os._exit(3) if len(os.listdir(sys.argv[1])) == 2 else time.sleep(0.02)"
    with pytest.raises(CommandFailed, match="ended with 3 after the limit"):
        run_timed(
            [*family(place, parent_dies), str(place)], tmp_path, cache_environment(tmp_path / "c"), limit_s=3
        )
    assert time.monotonic() - started < 3 + SOON_S
    assert alive(place) == []


def test_enough_ends_the_processes_of_a_process_too(tmp_path: Path) -> None:
    place = tmp_path / "family"
    watched = run_timed(
        family(place), tmp_path, cache_environment(tmp_path / "caches"), enough=lambda lines: len(lines) == 1
    )
    assert [line.text for line in watched.lines] == ["begun"]
    assert alive(place) == []


# `python -m bench sampling`, whose row watches the family; and the moment at which it begins to clean up.
ROW = """
import os, pathlib, runpy, signal, sys, threading
from bench import sampling_rows
from bench.watch import cache_environment, run_timed

command, folder, again = {command!r}, pathlib.Path({folder!r}), {again!r}

def row(ctx):
    '''A row that takes a minute.'''
    run_timed(command, folder, cache_environment(folder / "caches"))

class Timer(threading.Timer):
    def cancel(self):
        if again:
            os.kill(os.getpid(), signal.SIGTERM)
        super().cancel()

threading.Timer = Timer
sampling_rows.sampling = row
sys.argv = ["bench", "sampling", "--out", str(folder / "out.jsonl")]
runpy.run_module("bench", run_name="__main__")
"""


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_row_that_is_told_to_end_ends_at_once_with_all_its_processes(
    tmp_path: Path, again: bool, number: signal.Signals
) -> None:
    """`timeout` tells the process and then its group: the second signal may find it cleaning up (`again`)."""
    place = tmp_path / "family"
    code = ROW.format(command=family(place), folder=str(tmp_path), again=again)
    paths = {"PYTHONPATH": str(ROOT)}
    row = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **paths}, start_new_session=True)
    try:
        wait_for_both(place)
        os.kill(row.pid, number)
        os.killpg(row.pid, number)
        assert row.wait(SOON_S) == 128 + number
    finally:
        row.kill()
        row.wait()
        left = alive(place)
    assert left == []
