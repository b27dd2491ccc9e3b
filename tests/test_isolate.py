"""A separate process that answers, hangs, crashes, forks or prints ends alone, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from glassgpt.isolate import IsolatedProcess, ProcessDied, ProcessHung

StartProcess = Callable[..., IsolatedProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartProcess]:
    """Starts a process whose answer to `asked` is what `body` returns; `before` runs at its start."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started: list[IsolatedProcess] = []

    def start_process(body: str, before: str = "", **environment: str) -> IsolatedProcess:
        name = f"answers{len(started)}"
        (tmp_path / f"{name}.py").write_text(
            f"import os, signal, subprocess, sys, time\nfrom glassgpt.isolate import serve\n{before}\n"
            f"def answer(asked):\n{textwrap.indent(body, '    ')}\n\nserve(answer)\n"
        )
        started.append(IsolatedProcess(name, environment))
        return started[-1]

    yield start_process
    for process in started:
        process.close()


def is_gone(pid: int, within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_it_answers_one_request_after_the_other(start: StartProcess) -> None:
    process = start("return {'twice': 2 * asked['n'], 'threads': os.environ['THREADS']}", THREADS="3")
    assert [process.ask({"n": n}, 20) for n in range(3)] == [
        {"twice": 2 * n, "threads": "3"} for n in range(3)
    ]


def test_a_process_that_hangs_is_killed_with_its_children(start: StartProcess) -> None:
    process = start(
        "if asked: time.sleep(600)\n"
        "print('waiting', file=sys.stderr)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "return {'pid': os.getpid(), 'child': child.pid}"
    )
    pids = process.ask({}, 20)
    with pytest.raises(ProcessHung) as error:
        process.ask({"hang": True}, 0.3)
    assert str(error.value) == "waiting\n"
    assert all(map(is_gone, pids.values()))


def test_closing_ends_the_children_of_one_that_answered(start: StartProcess) -> None:
    """The compiler starts processes, and may fork."""
    process = start(
        "child = os.fork()\nif not child:\n    time.sleep(600)\nreturn {'pid': os.getpid(), 'child': child}"
    )
    pids = process.ask({}, 20)
    process.close()
    assert all(map(is_gone, pids.values()))


def test_a_process_that_dies_reports_how_and_its_last_line(start: StartProcess) -> None:
    for body, exit_code, message in (
        ("print('a\\nIt broke\\n', file=sys.stderr)\nos._exit(7)", 7, "It broke (exit code 7)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -11, "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "SIGKILL"),
        ("os.kill(os.getpid(), 40)", -40, "signal 40"),
        ("raise ValueError('no')", 1, "ValueError: no (exit code 1)"),
    ):  # fmt: skip
        process = start(body)
        for _ in range(2):  # also if it is asked once more
            with pytest.raises(ProcessDied) as error:
                process.ask({}, 20)
            assert (error.value.exit_code, str(error.value)) == (exit_code, message)


def test_a_dead_process_whose_fork_holds_the_pipe_did_not_hang(start: StartProcess) -> None:
    process = start("if os.fork():\n    os._exit(3)\ntime.sleep(600)")
    before = time.monotonic()
    with pytest.raises(ProcessDied, match="exit code 3"):
        process.ask({}, 60)
    assert time.monotonic() - before < 30


def test_a_module_that_does_not_exist() -> None:
    with closing(IsolatedProcess("glassgpt.no_such")) as process, pytest.raises(ProcessDied, match="no_such"):
        process.ask({}, 20)


def test_what_is_printed_is_no_answer(start: StartProcess, capfd: pytest.CaptureFixture[str]) -> None:
    """Libraries and compilers print where they like, even before the pipes are ours."""
    process = start(
        "print('hello')\nos.write(1, b'{not json\\n')\n"
        "subprocess.run([sys.executable, '-c', 'print(input())'])\n"
        "return {'answer': 1}",
        before="os.write(1, b'\\xff\\n{not json\\n[1]\\n7\\n\\n')",
    )
    assert [process.ask({}, 20), process.ask({}, 20)] == [{"answer": 1}] * 2
    assert capfd.readouterr().out == ""


def test_the_current_folder_is_not_imported_from(
    start: StartProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "colorsys.py").write_text("raise RuntimeError('somebody else wrote this')")
    monkeypatch.chdir(tmp_path / "here")
    assert start("import colorsys\nreturn {'fine': True}").ask({}, 20) == {"fine": True}


def test_ctrl_c_reaches_the_owner_alone_and_ends_both(start: StartProcess, tmp_path: Path) -> None:
    """SIGINT goes to all of the terminal's process group; a kill of the owner closes the pipe."""
    start("print('reached', file=sys.stderr)\ntime.sleep(600)")
    code = (
        "import contextlib, signal\nfrom glassgpt.isolate import IsolatedProcess\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with contextlib.closing(IsolatedProcess('answers0')) as process:\n"
        "    print(process._process.pid, flush=True)\n    process.ask({}, 600)"
    )
    for number, expected in ((signal.SIGINT, "KeyboardInterrupt"), (signal.SIGKILL, "")):
        owner = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[1]}"},
        )
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert os.getpgid(pid) != owner.pid
        time.sleep(0.3)
        os.killpg(owner.pid, number)
        assert owner.communicate(timeout=20)[1].rstrip().endswith(expected)
        assert owner.returncode == -number
        assert is_gone(pid)
