"""`glass explain` in a terminal, in a pipe, and while a run goes on."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import queue
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from commands import (
    GLASS,
    HOSTILE_TEXT,
    Capture,
    chdir_with_log,
    control_characters,
    environment,
    eval_records,
    finished_run,
    glass,
    nanogpt_log,
    parse_strict_json,
    record,
    run_record,
    start_glass,
    stdout_of,
    step_record,
    write_run,
)

from glassgpt.cli import main
from glassgpt.i18n import translate
from glassgpt.record import journal


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return chdir_with_log(tmp_path, monkeypatch)


# --- terminals ---


def in_terminal(columns: int, *arguments: str, **changes: str) -> str:
    """What a terminal of that width gets."""
    terminal, process_side = pty.openpty()
    fcntl.ioctl(process_side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = environment(TERM="xterm", **changes)
    env.pop("COLUMNS", None)
    process = subprocess.Popen(
        [*GLASS, *arguments], stdin=process_side, stdout=process_side, stderr=process_side, env=env
    )
    os.close(process_side)
    received = b""
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # EIO: the other side is closed
            break
        if not chunk:
            break
        received += chunk
    os.close(terminal)
    assert process.wait(30) == 0
    return received.decode().replace("\r\n", "\n")


def test_a_narrow_terminal() -> None:
    text = in_terminal(40, "explain", "n.log")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "\x1b" not in plain
    assert "\x1b[" in text
    assert max(map(len, plain.splitlines())) <= 50
    assert max(len(line) for line in plain.splitlines() if re.search("[\u2800-\u28ff]", line)) <= 40


def test_without_colour() -> None:
    text = in_terminal(100, "explain", "n.log", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*[34][0-7]m", text)


def test_a_pipe_has_no_colours() -> None:
    assert b"\x1b" not in glass("explain", "n.log").stdout


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_that_is_not_utf8(encoding: str, capsys: Capture) -> None:
    done = glass("explain", "n.log", "--full", env=environment(PYTHONIOENCODING=encoding))
    assert (done.returncode, done.stderr) == (0, b"")
    expected = parse_strict_json(stdout_of(capsys, "explain", "n.log", "--json", "--lang=hi"))
    done = glass("explain", "n.log", "--json", "--lang=hi", env=environment(PYTHONIOENCODING=encoding))
    assert (done.returncode, done.stderr) == (0, b"")
    assert parse_strict_json(done.stdout.decode(encoding)) == expected


def test_nobody_reads() -> None:
    """`glass explain n.log | head -1`"""
    for flags in ([], ["--json"], ["--full"]):
        reading, writing = os.pipe()
        os.close(reading)
        process = start_glass("explain", "n.log", *flags, stdout=writing)
        os.close(writing)
        _, errors = process.communicate(timeout=60)
        assert errors == b""
        assert process.returncode == 0


def test_it_starts_at_once_and_without_torch() -> None:
    code = (
        "import sys\nfrom glassgpt.cli import main\n"
        "assert main(['explain', 'n.log', '--full']) == 0\nassert main(['explain', '--help']) == 0\n"
        "assert main(['compare', 'n.log', 'n.log']) == 0\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment(), timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime - before.ru_utime < 3  # of one core; about 0.4 where nothing else runs


# --- watching ---


class Lines:
    """Lines of a stream, as they come."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self.seen: list[str] = []
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: io.BufferedReader) -> None:
        for line in stream:
            self._queue.put(line)
        self._queue.put(b"")

    def until(self, part: str, seconds: float = 30) -> str:
        deadline = time.monotonic() + seconds
        while True:
            line = self._queue.get(timeout=max(0.1, deadline - time.monotonic())).decode()
            assert line, f"ended before {part!r}:\n{''.join(self.seen)}"
            self.seen.append(line)
            if part in line:
                return line

    def rest(self, seconds: float = 30) -> str:
        start = len(self.seen)
        while line := self._queue.get(timeout=seconds).decode():
            self.seen.append(line)
        return "".join(self.seen[start:])


def watched(*arguments: str) -> tuple[subprocess.Popen[bytes], Any, Lines]:
    process = start_glass("explain", *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert isinstance(process.stdout, io.BufferedReader)
    return process, process.stdin, Lines(process.stdout)


def test_a_pipe_is_explained_while_it_runs() -> None:
    process, pipe, lines = watched("-", "--watch")
    log = nanogpt_log(1200).splitlines(keepends=True)
    half = next(number for number, line in enumerate(log) if line.startswith("iter 600"))
    pipe.write("".join(log[:half]).encode())
    pipe.flush()
    lines.until("iter 590: loss")  # passed on
    lines.until("iteration 500: validation 1.6250")  # without waiting for another line
    lines.until("[eval-spikes]")
    pipe.write("".join(log[half:]).encode())
    pipe.close()
    lines.until("iter 1200: loss")
    rest = lines.rest()
    assert process.wait(30) == 0
    assert translate("verdict.log_stops", trainer="nanoGPT", at="1,200") in rest
    everything = "".join(lines.seen)
    news, _, last = everything.partition("A nanoGPT run")
    for name in set(re.findall(r"\[([a-z]+(?:-[a-z]+)+)\]", last)):
        assert news.count(f"[{name}]") == 1, name
    assert [line for line in everything.splitlines() if line.startswith(("iter ", "step ", "saving "))] == [
        line.rstrip() for line in log[2:]
    ]


def test_a_named_pipe_is_watched() -> None:
    os.mkfifo("pipe")
    process, _, lines = watched("pipe", "--watch")
    writer = os.open("pipe", os.O_RDWR)  # which does not wait for a reader
    os.write(writer, nanogpt_log().encode())
    lines.until("iteration 500: validation 1.6250")
    os.close(writer)
    assert translate("verdict.log_stops", trainer="nanoGPT", at="600") in lines.rest()
    assert process.wait(30) == 0


def test_watching_for_a_program() -> None:
    """With --json the document is all there is."""
    done = glass("explain", "-", "--watch", "--json", stdin=nanogpt_log().encode())
    assert done.returncode == 0
    assert parse_strict_json(done.stdout.decode())["facts"]["last_iteration"] == 600


def test_watching_uses_overrides() -> None:
    arguments = ("explain", "-", "--watch", "--json", "--a.tokens_per_iteration=32768")
    done = glass(*arguments, stdin=nanogpt_log().encode())
    assert (
        parse_strict_json(done.stdout.decode()[done.stdout.decode().index("{\n") :])["facts"][
            "tokens_per_iteration"
        ]
        == 32768
    )


def test_a_growing_file_until_ctrl_c() -> None:
    path = Path("n.log")
    process, _, lines = watched(str(path), "--watch")
    lines.until("iteration 500: validation 1.6250")
    with path.open("a") as file:
        file.write("step 750: train loss nan, val loss nan\niter 750: loss nan, time 168.00ms, mfu 2.20%\n")
    lines.until("[loss-nan]")  # though nothing comes after it
    process.send_signal(signal.SIGINT)
    rest = lines.rest()
    assert process.wait(30) == 0
    assert translate("verdict.running", trainer="nanoGPT", at="750") in rest
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_ctrl_c_before_anything_came() -> None:
    process, pipe, lines = watched("-", "--watch")
    pipe.write(b"hello\n")
    pipe.flush()
    lines.until("hello")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) in (2, 130)
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()


def test_watching_when_nobody_reads() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start_glass("explain", "-", "--watch", stdin=subprocess.PIPE, stdout=writing)
    os.close(writing)
    _, errors = process.communicate(nanogpt_log().encode(), timeout=60)
    assert errors == b""
    assert process.returncode == 0


def test_what_passes_through_is_harmless() -> None:
    done = glass("explain", "-", "--watch", stdin=(HOSTILE_TEXT + "\n" + nanogpt_log()).encode())
    assert done.returncode == 0
    assert not control_characters(done.stdout.decode())


def test_a_live_run_is_followed_to_its_end() -> None:
    records = finished_run()
    folder = write_run(Path("runs/live"), records[:6])
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process, _, lines = watched(str(folder), "--watch")
        lines.until("iteration 0: validation 4.2000")
        with (folder / journal.FILE_NAME).open("ab") as file:
            file.write(b"".join(map(journal.encode_line, records[6:])))
        lines.until("iteration 100: validation 2.1000")
    rest = lines.rest()
    assert process.wait(30) == 0
    assert translate("verdict.finished", trainer="GlassGPT", at="100") in rest


def test_a_journal_is_known_by_its_content_when_watched() -> None:
    content = b"".join(map(journal.encode_line, finished_run()))
    done = glass("explain", "-", "--watch", stdin=content)
    assert done.returncode == 0
    assert translate("verdict.finished", trainer="GlassGPT", at="100") in done.stdout.decode()


def test_a_run_that_says_nothing_bad_at_its_first_step(capsys: Capture) -> None:
    """Of a run that goes on, start-up is not all there will be."""
    first = record("step", 1, loss=4.1, first_update_ms=1500.0, phases={"compile": 4200.0})
    folder = write_run(Path("runs/live"), [run_record(), *eval_records(0, 4.2), first, step_record(10, 4.0)])
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "100% of the run" not in stdout_of(capsys, "explain", str(folder))


def test_two_trainers_in_one_file_are_both_printed(capsys: Capture) -> None:
    steps = "".join(
        f"step {at:4d}/50 | loss {4 - at / 20:.6f} (+0.1z)| norm 0.5000 (+0.1z)| lr 6.00e-04 | 80.00 ms | "
        f"40.0% bf16 MFU | 409600 tok/s\n"
        for at in range(1, 51)
    )
    Path("both.log").write_text(nanogpt_log() + "$ ./train_gpt2cu\n" + steps)
    assert main(["explain", "both.log"]) == 0
    printed = capsys.readouterr().out
    words = " ".join(printed.split())
    assert "of nanoGPT, llm.c" in words
    assert words.count("An llm.c run") + words.count("A nanoGPT run") == 1
    table = [line.split() for line in printed.splitlines() if line.startswith(("nanoGPT ", "llm.c "))]
    assert [row[0] for row in table] == ["nanoGPT", "llm.c"]
