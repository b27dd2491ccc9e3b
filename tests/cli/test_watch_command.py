"""`glass watch -- COMMAND`: output, exit code and signals of a command are as they are without it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from commands import environment as inherited_environment
from commands import nanogpt_log

from glassgpt.record import watched_command
from glassgpt.record.output_log import OutputLog
from glassgpt.runs.run_list import is_running

GLASS = (sys.executable, "-m", "glassgpt")  # as people call it, with all that the command sets up
LOG = Path("runs/watch-1/output.log")


def environment() -> dict[str, str]:
    return {name: value for name, value in inherited_environment().items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(text: str, *arguments: str) -> list[str]:
    """A Python program, and how to call it."""
    Path("program.py").write_text(text, encoding="utf-8")
    return [sys.executable, "program.py", *arguments]


def watched(command: list[str], *options: str) -> list[str]:
    return [*GLASS, "watch", "--page=off", *options, "--", *command]


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()}
    return subprocess.run(command, timeout=60, check=False, **(streams | options))


def without_notes(stderr: bytes) -> bytes:
    """What the command itself has written to stderr."""
    lines = stderr.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(b"glass watch: "))


def wait_until_exists(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


# --- pipes ---


BYTES = """
import os, sys
os.write(1, bytes(range(256)))
for percent in range(0, 101, 10):
    os.write(1, b"\\r%3d%%" % percent)
    os.write(2, b"\\xff warning %d\\r\\n" % percent)
os.write(1, b"\\nno line end")
sys.exit(3)
"""


def test_bytes_and_exit_code_are_those_of_the_command() -> None:
    command = script(BYTES)
    plain, seen = run(command), run(watched(command))
    assert (seen.stdout, without_notes(seen.stderr)) == (plain.stdout, plain.stderr)
    assert seen.returncode == plain.returncode == 3
    assert seen.stderr.splitlines()[0] == b"glass watch: the output is saved in runs/watch-1/output.log"
    saved = LOG.read_bytes()
    assert len(saved) == len(plain.stdout) + len(plain.stderr)
    assert plain.stdout[:256] in saved


def test_one_target_for_both_streams_keeps_their_order() -> None:
    program = "import os\nfor i in range(2000): os.write(1 + i % 2, b'%d\\n' % i)"
    command = script(program)
    expected = b"".join(b"%d\n" % number for number in range(2000))
    assert without_notes(run(watched(command), stderr=subprocess.STDOUT).stdout) == expected
    assert LOG.read_bytes() == expected


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 130", 130),
        ("kill -INT $$", 130),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ],
)
def test_exit_codes(line: str, code: int) -> None:
    assert run(watched(["sh", "-c", line])).returncode == code


def test_it_reads_our_stdin_and_its_own_flags() -> None:
    program = "import sys; print(sys.argv[1:], sys.stdin.buffer.read())"
    seen = run(watched(script(program, "--help", "--page=on", "--", "-h")), input=b"typed\x00\n")
    assert seen.stdout == b"['--help', '--page=on', '--', '-h'] b'typed\\x00\\n'\n"


def test_python_prints_at_once_into_the_pipe_unless_the_user_says_otherwise() -> None:
    command = script("import os; print(os.environ.get('PYTHONUNBUFFERED'))")
    assert run(watched(command)).stdout == b"1\n"
    assert run(watched(command), env=environment() | {"PYTHONUNBUFFERED": ""}).stdout == b"\n"


def test_the_environment_is_otherwise_ours_and_neighbours_are_imported() -> None:
    """As nanoGPT's train.py imports the model.py beside it."""
    Path("model.py").write_text("import os\nnames = sorted(os.environ)\nprint(names)")
    command = script("import model")
    assert run(watched(command), env=environment() | {"PYTHONUNBUFFERED": "1"}).stdout == (
        run(command, env=environment() | {"PYTHONUNBUFFERED": "1"}).stdout
    )


def test_output_arrives_as_it_is_written() -> None:
    """The program waits for an answer to what it has printed."""
    program = "import sys; print('loss 4.2', end=''); print(sys.stdin.readline())"
    with subprocess.Popen(
        watched(script(program)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.read(8) == b"loss 4.2"
        while LOG.read_bytes() != b"loss 4.2":  # the log is written after the pipe
            time.sleep(0.01)
        assert is_running(LOG.parent)
        process.stdin.write(b"seen\n")
        process.stdin.close()
        assert process.stdout.read() == b"seen\n\n"
    assert not is_running(LOG.parent)


def test_twenty_megabytes_pass_without_loss_in_little_memory() -> None:
    program = """
import os, resource
block = bytes(range(256)) * 400
for number in range(200):
    os.write(1, block)
"""
    measure = (
        "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)"
    )
    seen = run([sys.executable, "-c", measure, *watched(script(program))])
    expected = bytes(range(256)) * 400 * 200
    assert len(expected) == 20_480_000
    assert seen.stdout == expected
    assert LOG.read_bytes() == expected
    assert int(seen.stderr.split()[-1]) < 100_000, "kB: as much as an interpreter with its modules"


def test_a_reader_that_leaves_ends_the_command() -> None:
    """As `COMMAND | head -2` does."""
    command = script(
        "import signal, sys\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nwhile True: print('y')"
    )
    with subprocess.Popen(watched(command), stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"y\ny\n"
        process.stdout.close()
        assert process.wait(timeout=30) == 128 + signal.SIGPIPE


def test_what_the_command_leaves_behind_is_not_waited_for() -> None:
    started = time.monotonic()
    seen = run(watched(["sh", "-c", "(sleep 0.1; echo late; sleep 60) & echo now; echo $! > pid; exit 5"]))
    assert (seen.returncode, seen.stdout) == (5, b"now\nlate\n")
    assert time.monotonic() - started < 20
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("no-such-program", 127, "no-such-program: command not found"),
        ("./no-such-file", 127, "./no-such-file: No such file or directory"),
        ("./data.txt", 126, "./data.txt: Permission denied"),
        (".", 127, ".: command not found"),
        ("./folder/", 126, "./folder/: Is a directory"),
        ("./bad.sh", 126, "./bad.sh: No such file or directory"),
        ("./bad.bin", 126, "./bad.bin: Exec format error"),
        ("echo a && b", 127, "echo a && b: command not found; for a shell's command line: glass watch -- sh"),
    ],
)
def test_a_command_that_cannot_be_started(name: str, code: int, reason: str) -> None:
    Path("data.txt").write_text("x")
    Path("folder").mkdir()
    for file, content in (("bad.sh", b"#!/no/such/sh\n"), ("bad.bin", b"\x7fELF\0\0")):
        Path(file).write_bytes(content)
        Path(file).chmod(0o755)
    seen = run(watched([name]))
    assert seen.returncode == code
    assert seen.stdout == b""
    assert f"glass watch: {reason}" in seen.stderr.decode()
    assert not [*Path().glob("runs/*")]  # nothing ran, so there is nothing to look at


def test_a_script_without_its_first_line_runs_as_in_a_shell() -> None:
    Path("run.sh").write_text("echo $1\nexit 4\n")
    Path("run.sh").chmod(0o755)
    seen = run(watched(["./run.sh", "a b"]))
    assert (seen.returncode, seen.stdout) == (4, b"a b\n")


def test_wrong_calls_are_user_errors() -> None:
    for words, problem in (
        (["--"], b"after -- comes the command to run"),
        (["a.log", "--", "true"], b"either a.log or the command after --"),
        (["--pages=on", "--", "true"], b"--pages"),
        ([], b"say what to watch"),
    ):
        seen = run([*GLASS, "watch", *words])
        assert seen.returncode == 2
        assert problem in seen.stderr
    assert not Path("runs").exists()


# --- the log ---


def test_each_command_has_its_own_log() -> None:
    for number in (1, 2, 3):
        run(watched(["echo", str(number)]))
    assert [Path(f"runs/watch-{number}/output.log").read_text() for number in (1, 2, 3)] == [
        "1\n",
        "2\n",
        "3\n",
    ]


def test_a_folder_that_cannot_be_made_stops_nothing() -> None:
    Path("runs").write_text("a file")
    seen = run(watched(script(BYTES)))
    plain = run(script(BYTES))
    assert (seen.stdout, without_notes(seen.stderr), seen.returncode) == (plain.stdout, plain.stderr, 3)
    notes = [line for line in seen.stderr.splitlines() if line.startswith(b"glass watch: ")]
    assert len(notes) == 1
    assert b"not saved, the command goes on: runs/watch-1 cannot be made: runs is a file" in notes[0]


def test_a_full_disk_is_said_once_and_the_log_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []
    log = OutputLog(reports.append)
    log.write(b"one\n")
    real_write = os.write

    def write_to_full_disk(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write_to_full_disk)
    log.write(b"two\n")
    log.write(b"three\n")
    monkeypatch.setattr(os, "write", real_write)
    log.write(b"four\n")
    log.close()
    missing = "[glass watch: output is missing here: No space left on device]"
    assert LOG.read_text() == f"one\n\n{missing}\nfour\n"
    assert len(reports) == 1
    assert "runs/watch-1/output.log: No space left on device" in reports[0]


# --- signals ---

# Writes the name of each signal that it gets, and ends at SIGTERM.
LISTENER = """
import os, pathlib, signal, sys, time
def note(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(7)
for name in ("SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGTERM"):
    signal.signal(getattr(signal, name), note)
pathlib.Path("pid").write_text(str(os.getpid()))
os.rename("pid", "ready")
while True:
    time.sleep(60)
"""


@pytest.mark.parametrize("to_group", [False, True], ids=["to us", "to our process group"])
def test_a_signal_arrives_once(to_group: bool) -> None:
    with subprocess.Popen(
        watched(script(LISTENER)), stdout=subprocess.PIPE, env=environment(), start_new_session=True
    ) as process:
        assert process.stdout is not None
        wait_until_exists(Path("ready"))
        send = os.killpg if to_group else os.kill
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTERM):
            send(process.pid, number)
            assert process.stdout.readline() == f"{number.name}\n".encode()
        assert process.stdout.read() == b""
        assert process.wait(timeout=30) == 7


def test_a_second_signal_ends_a_wait_for_a_reader_that_does_not_read() -> None:
    program = "import os, pathlib\nos.write(1, b'x' * 60_000); os.write(1, b'x' * 60_000)"
    with subprocess.Popen(
        watched(["sh", "-c", " ".join(script(program)) + "; touch ended; exit 6"]),
        stdout=subprocess.PIPE,
        env=environment(),
    ) as process:
        wait_until_exists(Path("ended"))
        deadline = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < deadline:
            process.terminate()
            time.sleep(0.05)
        # 143: sh had not quite ended; -15: we had, and this came during the clean-up
        assert process.returncode in (6, 143, -15)


def test_our_own_death_leaves_no_witness() -> None:
    with subprocess.Popen(
        watched(script(LISTENER)), stdout=subprocess.PIPE, env=environment(), start_new_session=True
    ) as process:
        wait_until_exists(Path("ready"))
        process.kill()
        process.wait()
        deadline = time.monotonic() + 20
        while (left := group_members(process.pid)) != ["program.py"] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left == ["program.py"]
        os.killpg(process.pid, signal.SIGTERM)


def group_members(group: int) -> list[str]:
    """What the processes of a process group run, from /proc."""
    members = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # it has ended
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                members.append((path / "cmdline").read_bytes().split(b"\0")[1].decode())
    return members


# --- a terminal ---


class Terminal:
    """`glass watch` in a terminal, as a shell starts it: in the foreground, not the session's leader."""

    def __init__(self, command: list[str], rows: int = 30, columns: int = 90) -> None:
        self.seen = b""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            # A shell of a few lines: starts a job in a process group of its own and says how it ended.
            os.execvpe(sys.executable, [sys.executable, "-c", JOB_SHELL, *command], environment())
        self.resize(rows, columns)
        self.type(b"\n")  # the size is set: go

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.descriptor, keys)

    def read_until(self, text: bytes, times: int = 1) -> None:
        deadline = time.monotonic() + 30
        while self.seen.count(text) < times:
            assert time.monotonic() < deadline, f"it has shown {self.seen!r}"
            chunk = self._read()
            assert chunk, f"it has shown {self.seen!r}"
            self.seen += chunk

    def _read(self) -> bytes:
        """Nothing at the end, or when nothing more comes."""
        with contextlib.suppress(OSError):  # the other side is closed
            if select.select([self.descriptor], [], [], 30)[0]:
                return os.read(self.descriptor, 1 << 16)
        return b""

    def finish(self) -> bytes:
        """All that was shown."""
        while chunk := self._read():
            self.seen += chunk
        os.close(self.descriptor)
        os.waitpid(self.pid, 0)
        return self.seen


JOB_SHELL = """
import os, signal, sys, termios
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
sys.stdin.readline()
before = termios.tcgetattr(0)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execvp(sys.argv[1], sys.argv[1:])
while True:
    _, status = os.waitpid(pid, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    print("<same settings %s>" % (termios.tcgetattr(0) == before), flush=True)
    if not os.WIFSTOPPED(status):
        break
    print("<stopped>", flush=True)
    sys.stdin.readline()
    os.tcsetpgrp(0, pid)
    os.killpg(pid, signal.SIGCONT)
print("<code %d>" % os.waitstatus_to_exitcode(status), flush=True)
"""


def shown(terminal_output: bytes) -> bytes:
    """What the command has shown, without our notes and the job shell's."""
    lines = terminal_output.split(b"\n")
    kept = [line for line in lines if not line.startswith((b"glass watch: ", b"<"))]
    return b"\n".join(kept)


def test_a_terminal_shows_the_same_bytes_and_is_restored() -> None:
    program = """
import os, sys
print([os.isatty(number) for number in (0, 1, 2)], os.get_terminal_size(1))
os.write(1, b"\\x1b[31mred\\x1b[0m\\t\\xff\\x00|\\r 10%\\r 20%\\n")
os.write(2, b"to stderr\\n")
print(os.environ.get("PYTHONUNBUFFERED"))
sys.exit(9)
"""
    command = script(program)
    plain, seen = Terminal(command).finish(), Terminal(watched(command)).finish()
    assert b"[True, True, True] os.terminal_size(columns=90, lines=30)" in plain
    assert shown(seen) == shown(plain)
    assert b"<code 9>" in seen
    assert b"<same settings True>" in seen
    assert LOG.read_bytes().endswith(b"\r 10%\r 20%\r\nto stderr\r\nNone\r\n")


def test_ctrl_c_is_typed_through_once() -> None:
    program = """
import os, signal, time
def note(number, frame):
    signal.signal(number, quit)
    os.write(1, b"interrupt\\n")
def quit(number, frame):
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
signal.signal(signal.SIGINT, note)
os.write(1, b"ready\\n")
while True:
    time.sleep(60)
"""
    terminal = Terminal(watched(script(program)))
    terminal.read_until(b"ready")
    terminal.type(b"\x03")
    terminal.read_until(b"interrupt\r\n")
    terminal.type(b"\x03")
    seen = terminal.finish()
    assert seen.count(b"interrupt") == 1
    assert b"<code 130>" in seen
    assert b"<same settings True>" in seen


def test_keys_the_end_of_input_and_a_new_size_reach_the_command() -> None:
    program = """
import os, signal, sys
signal.signal(signal.SIGWINCH, lambda *_: os.write(1, repr(os.get_terminal_size(1)).encode()))
print("name?", flush=True)
print("hello", sys.stdin.readline())
print(sys.stdin.read() == "", flush=True)
"""
    terminal = Terminal(watched(script(program)))
    terminal.read_until(b"name?")
    terminal.resize(12, 34)
    terminal.read_until(b"columns=34, lines=12")
    terminal.type(b"you\n")
    terminal.read_until(b"hello you")
    terminal.type(b"\x04")
    terminal.read_until(b"True")
    assert b"<code 0>" in terminal.finish()


def test_ctrl_z_stops_the_job_and_it_continues() -> None:
    program = "import sys\nprint('ready', flush=True)\nprint('got', sys.stdin.readline())"
    terminal = Terminal(watched(script(program)))
    terminal.read_until(b"ready")
    terminal.type(b"\x1a")
    terminal.read_until(b"<same settings True>\r\n<stopped>")
    terminal.type(b"\n")  # the job shell's `fg`
    terminal.read_until(b"<stopped>\r\n\r\n")
    time.sleep(0.1)  # until the terminal is the command's again
    terminal.type(b"line\n")
    terminal.read_until(b"got line")
    assert b"<code 0>" in terminal.finish()


def test_stdin_or_stderr_elsewhere_stay_there() -> None:
    program = "import os, sys; print(sys.stdin.read(), os.isatty(2)); os.write(2, b'no terminal\\n')"
    Path("input").write_text("from a file")
    command = ["sh", "-c", 'exec "$@" < input 2> errors', "sh", *watched(script(program))]
    seen = Terminal(command).finish()
    assert b"from a file False\r\n" in seen
    assert b"\r\r\n" not in seen
    assert without_notes(Path("errors").read_bytes()) == b"no terminal\n"


def test_a_terminal_that_closes_hangs_the_command_up() -> None:
    terminal = Terminal(watched(script(LISTENER)))
    wait_until_exists(Path("ready"))
    os.close(terminal.descriptor)
    deadline = time.monotonic() + 20
    while b"SIGHUP" not in LOG.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert LOG.read_bytes().count(b"SIGHUP") == 1, "it had its chance to save, and its output is kept"
    # It goes on: nobody has asked it to end.
    assert is_running(LOG.parent)
    os.kill(int(Path("ready").read_text()), signal.SIGTERM)
    while is_running(LOG.parent) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(LOG.parent)
    os.waitpid(terminal.pid, 0)


def test_nothing_of_numpy_is_imported_before_the_signals_are_blocked() -> None:
    """Its threads would take signals that are waited for."""
    program = "import sys, glassgpt.cli.watch_commands, glassgpt.record.watched_command; print(*sys.modules)"
    modules = run([sys.executable, "-c", program]).stdout.decode().split()
    assert watched_command.__name__ in modules
    assert {"numpy", "torch"}.isdisjoint(modules)


# --- a log ---


def test_the_saved_log_is_read_like_any_other() -> None:
    text = nanogpt_log(200)
    Path("train.log").write_text(text)
    run(watched(["cat", "train.log"]))
    assert LOG.read_text() == text
    facts = json.loads(run([*GLASS, "explain", "runs/watch-1", "--json"]).stdout)["facts"]
    assert facts["iterations_logged"] == 21
    for name in ("runs/watch-1", str(LOG)):  # the command has ended, so has its log
        seen = run([*GLASS, "watch", name])
        assert seen.returncode == 0
        assert b"validation 4.2500" in seen.stdout
        assert b"nanoGPT run" in seen.stdout


@pytest.mark.parametrize("page", ["on", "off"])
def test_a_terminal_is_filled_until_q(page: str) -> None:
    if page == "on" and (find_spec("starlette") is None or find_spec("uvicorn") is None):
        pytest.skip("the extra `page` is not installed here")
    terminal = Terminal([*GLASS, "watch", "demo:gpu", f"--page={page}"], rows=24, columns=80)
    terminal.read_until(b"overfitted since iteration 1,750")
    terminal.type(b"l")  # logarithmic: drawn anew at once
    terminal.read_until(b"overfitted since iteration 1,750", times=2)
    terminal.type(b"q")
    seen = terminal.finish()
    assert b"<same settings True>" in seen
    assert b"<code 0>" in seen
    alternate, normal = b"\x1b[?1049h", b"\x1b[?1049l"
    assert seen.count(alternate) == seen.count(normal) == 1
    assert seen.index(alternate) < seen.index(b"iter 5,000/5,000") < seen.index(normal)
    assert (b"http://127.0.0.1:" in seen) == (page == "on")


def test_a_pipe_into_the_screen_and_ctrl_c() -> None:
    Path("train.log").write_text(nanogpt_log(200))
    command = ["sh", "-c", '(cat train.log; sleep 60) | exec "$@"', "sh", *GLASS, "watch", "-"]
    terminal = Terminal(command)
    terminal.read_until(b"iter 200")
    terminal.type(b"\x03")
    seen = terminal.finish()
    assert b"standard input" in seen
    assert b"\x1b[?1049l" in seen
    assert b"<same settings True>" in seen


def test_the_page_shows_the_command_while_it_runs() -> None:
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        pytest.skip("the extra `page` is not installed here")
    Path("train.log").write_text(nanogpt_log(300))
    command = [*GLASS, "watch", "--page=on", "--", "sh", "-c", "cat train.log; read line; exit 3"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        saved, page = process.stderr.readline(), process.stderr.readline()
        assert b"runs/watch-1/output.log" in saved
        url = next(word for word in page.decode().split() if word.startswith("http://"))
        browser = build_opener(HTTPCookieProcessor())
        with browser.open(url, timeout=30) as response:
            assert response.status == 200
        base = url.partition("?")[0]
        with browser.open(f"{base}api/runs", timeout=30) as response:
            run_id = json.load(response)["selected"]
        with browser.open(f"{base}api/runs/{run_id}/view", timeout=30) as response:
            view = json.load(response)["view"]
        assert (view["live"], view["can_request"]) == (True, False)
        assert "300" in view["sentence"]
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait(timeout=30) == 3
