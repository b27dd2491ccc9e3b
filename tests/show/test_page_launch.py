"""The page beside a run, and `glass page`: real processes, which nobody waits for."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from commands import finished_run, write_run

from glassgpt.cli import main
from glassgpt.errors import UserError
from glassgpt.record import journal
from glassgpt.show.page import launch
from glassgpt.show.page.launch import Lifetime
from glassgpt.show.page.server import PageServer

GLASS = [sys.executable, "-m", "glassgpt"]
RUN = [
    "train", "--n_layer=1", "--n_head=1", "--n_embd=16", "--block_size=64", "--batch_size=8",
    "--eval_interval=100", "--log_interval=20", "--eval_tokens=640", "--probe_seconds=0", "--compile=off",
    "--sample_tokens=0", "--history=off",
]  # fmt: skip


# --- how long it lives ---


def test_it_lives_as_long_as_the_run_or_a_tab() -> None:
    is_over = False
    lifetime = Lifetime(lambda: is_over, idle_s=15, max_s=600)
    assert not lifetime.has_ended(now=1e6, last_seen_at=0)  # nobody looked, but it trains
    is_over = True
    assert not lifetime.has_ended(now=1_000_000, last_seen_at=0)  # it ended just now
    assert not lifetime.has_ended(now=1_000_014, last_seen_at=0)
    assert lifetime.has_ended(now=1_000_015, last_seen_at=0)
    assert not lifetime.has_ended(now=1_000_300, last_seen_at=1_000_299)  # a tab is open
    assert lifetime.has_ended(now=1_000_300, last_seen_at=1_000_280)
    assert lifetime.has_ended(now=1_000_600, last_seen_at=1_000_600)  # for ten minutes now


def test_with_a_tab_open_it_stays_ten_minutes_after_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server on a fake clock, and a reader that stays."""
    now, is_over, pages = 1000.0, False, []

    class SeenServer(PageServer):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            pages.append(self)

    monkeypatch.setattr("glassgpt.show.page.server.PageServer", SeenServer)
    lifetime = Lifetime(lambda: is_over, idle_s=200, clock=lambda: now)
    address = launch.bind()
    server = threading.Thread(target=launch.serve, args=(address, ["demo:gpu"], lifetime), daemon=True)
    server.start()
    url = address.url
    run, (base, _, query) = visit(url).json()["selected"], url.partition("?")
    with httpx.stream("GET", f"{base}api/runs/{run}/events?{query}", timeout=60) as stream:
        lines = stream.iter_lines()  # held: without it the connection is closed
        next(lines)
        now += 7 * 86_400  # it trains for a week
        visit(url)
        is_over = True
        ended_at = now
        while lifetime._over_at is None:
            time.sleep(0.05)
        for seconds in (150, 300, 450, 599):
            now = ended_at + seconds
            deadline = time.monotonic() + 30
            while server.is_alive() and pages[0].last_request_at < now and time.monotonic() < deadline:
                time.sleep(0.05)  # the reader is seen once a second
            assert server.is_alive(), seconds
        now = ended_at + 600
        server.join(timeout=30)
        assert not server.is_alive()
    with pytest.raises(httpx.ConnectError):
        visit(url)


def test_the_command_lives_until_it_is_ended_or_idle() -> None:
    assert not Lifetime(lambda: False, math.inf, math.inf).has_ended(now=1e9, last_seen_at=0)
    idle = Lifetime(lambda: True, 30, math.inf)
    assert not idle.has_ended(now=1000, last_seen_at=1000)
    assert not idle.has_ended(now=1e6, last_seen_at=1e6 - 29)
    assert idle.has_ended(now=1e6, last_seen_at=1e6 - 30)


def test_beside_a_process_that_ends(tmp_path: Path) -> None:
    """Killed, so that it can clean nothing up."""
    run_dir = write_run(tmp_path / "run", finished_run())
    code = (
        "import sys; from pathlib import Path; from glassgpt.show.page import launch\n"
        "launch.NO_TAB_S = 1.0\n"
        f"print(launch.start_beside_run(Path({str(run_dir)!r})), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        page = page_process(parent.pid)
        assert visit(url).json()["runs"][0]["name"] == "run"
        assert os.getsid(page.pid) == page.pid  # no signal of the terminal reaches it
        assert page.nice() == min(19, psutil.Process().nice() + 10)
        assert url.partition("token=")[2] not in " ".join(page.cmdline())
        parent.kill()
    assert page.is_running()  # the run is over: for a second it waits for a tab
    page.wait(timeout=60)


def page_process(parent: int) -> psutil.Process:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process(parent).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "glassgpt.show.page.launch" in child.cmdline():
                    return child
        time.sleep(0.02)
    raise AssertionError("there is no page")


def visit(url: str) -> httpx.Response:
    base, _, query = url.partition("?")
    return httpx.get(f"{base}api/runs?{query}", timeout=60)


# --- beside glass train ---


@contextlib.contextmanager
def training(folder: Path, data: Path, *more: str, updates: int = 300) -> Iterator[subprocess.Popen[str]]:
    words = [*GLASS, *RUN, f"--data_dir={data}", f"--out_dir={folder}", f"--max_iters={updates}", *more]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(timeout=60)
        assert process.stdout is not None
        process.stdout.close()


def printed_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"^page +(http://127\.0\.0\.1:\d+/\?token=[\w-]+)$", line):
            return found[1]
    raise AssertionError("no address was printed")


def outcome(run_dir: Path) -> tuple[dict[str, list[Any]], dict[str, bytes]]:
    """Each kind of record without its times, and the weights.

    By kind, because a checkpoint's record is written in the background: whether it stands before or after
    the next step's is a matter of chance.
    """
    names = ("iter", "loss", "loss_mean", "lr", "grad_norm", "clipped", "tokens", "split", "stderr",
             "best", "reason", "exit_code")  # fmt: skip
    records: dict[str, list[Any]] = {}
    for record in journal.read(run_dir / journal.FILE_NAME):
        if record["kind"] not in ("finding", "forecast"):  # they depend on measured times
            records.setdefault(record["kind"], []).append([record.get(name) for name in names])
    weights = {str(path.relative_to(run_dir)): path.read_bytes() for path in run_dir.rglob("*.safetensors")}
    return records, weights


def test_a_page_that_is_killed_or_hangs_costs_the_run_nothing(tmp_path: Path, tiny_data: Path) -> None:
    with training(tmp_path / "off", tiny_data, "--page=off", "--threads=1") as process:
        output, _ = process.communicate(timeout=120)
        assert (process.returncode, "http://" in output) == (0, False)
    for name, number in {"killed": signal.SIGKILL, "hangs": signal.SIGSTOP}.items():
        with training(tmp_path / name, tiny_data, "--page=on", "--threads=1") as process:
            url = printed_url(process)
            page = page_process(process.pid)
            assert visit(url).status_code == 200
            page.send_signal(number)
            try:
                process.communicate(timeout=120)  # it waits for nobody
                assert process.returncode == 0
            finally:
                with contextlib.suppress(psutil.NoSuchProcess):
                    page.kill()
        (records, weights), (expected, expected_weights) = outcome(tmp_path / name), outcome(tmp_path / "off")
        assert records == expected, name
        assert weights
        assert weights.keys() == expected_weights.keys()
        assert [path for path in weights if weights[path] != expected_weights[path]] == [], name


def test_ctrl_c_ends_the_run_and_not_the_page(tmp_path: Path, tiny_data: Path) -> None:
    with training(tmp_path / "run", tiny_data, "--page=on", updates=100_000) as process:
        url = printed_url(process)
        page = page_process(process.pid)
        try:
            assert visit(url).json()["runs"][0]["state"] == "running"
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            process.communicate(timeout=120)
            assert process.returncode == 130
            assert visit(url).json()["runs"][0]["state"] == "interrupted"
        finally:
            page.kill()


def test_a_run_is_stopped_and_sampled_by_its_page(tmp_path: Path, tiny_data: Path) -> None:
    """All of it for real: the run, the page beside it, the process that samples."""
    with training(tmp_path / "run", tiny_data, "--page=on", updates=100_000) as process:
        url = printed_url(process)
        page = page_process(process.pid)
        try:
            base, _, _ = url.partition("?")
            with httpx.Client(base_url=base, headers={"Origin": base.rstrip("/")}, timeout=120) as client:
                assert client.get(url).status_code == 303
                place = f"/api/runs/{client.get('/api/runs').json()['selected']}"
                assert client.post(f"{place}/requests", json={"action": "stop"}).status_code == 202
                process.communicate(timeout=120)
                assert process.returncode == 130
                assert client.post(f"{place}/requests", json={"action": "stop"}).status_code == 409
                body = {"prompt": "a", "max_new_tokens": 5, "seed": 1}
                lines = client.post(f"{place}/samples", json=body).text.splitlines()
        finally:
            page.kill()
    [asked] = [one for one in journal.read(tmp_path / "run" / journal.FILE_NAME) if one["kind"] == "request"]
    assert (asked["action"], asked["by"]) == ("stop", "page")
    messages = [json.loads(line) for line in lines]
    assert 0 < sum(token["p"] for token in messages[0]["next"]) <= 1 + 1e-6
    assert "".join(message.get("text", "") for message in messages)
    assert messages[-1].get("done"), messages


def test_when_there_is_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []
    is_terminal = True

    def start(run_dir: Path, language: str) -> str:
        started.append(run_dir)
        return "http://127.0.0.1:1/"

    monkeypatch.setattr(launch, "start_beside_run", start)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    for name in ("CI", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)

    def line(mode: launch.PageMode) -> str:
        return launch.page_beside_run(mode, "en", tmp_path)

    assert [line(mode) for mode in ("auto", "on", "off")] == ["http://127.0.0.1:1/"] * 2 + [""]
    monkeypatch.setenv("CI", "true")
    assert [line("auto"), line("on")] == ["", "http://127.0.0.1:1/"]
    monkeypatch.setenv("CI", "0")
    assert line("auto")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.1 22")
    assert "http://127.0.0.1:1/ " in line("auto")
    assert "ssh -L 1:127.0.0.1:1 " in line("auto")
    monkeypatch.delenv("SSH_CONNECTION")
    is_terminal = False
    assert line("auto") == ""
    is_terminal, count = True, len(started)
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    assert "pip install 'glassgpt[page]'" in line("auto")
    monkeypatch.undo()
    monkeypatch.setattr(launch, "bind", lambda: (_ for _ in ()).throw(UserError("no port")))
    assert launch.page_beside_run("on", "en", tmp_path) == "none: no port"
    assert len(started) == count


# --- glass page ---


def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    for words in (["page", "demo:gpu"], ["train", "--page=on"]):
        assert main(words) == 2
        assert capsys.readouterr().err == (
            "error: the page needs starlette and uvicorn: pip install 'glassgpt[page]'\n"
        )


def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    mistakes = {
        "nothing": "there is no file or folder nothing",
        "demo:x": "there is no demo log demo:x",
        "demo:gpu --port=70000": "--port=70000 must be from 0 to 65535",
        "demo:gpu --idle=never": "--idle=never is not a time",
        "demo:gpu --lang=xx": "--lang=xx is not one of",
        "demo:gpu --open=maybe": "--open",
    }
    for words, problem in mistakes.items():
        assert main(["page", *words.split()]) == 2, words
        assert problem in capsys.readouterr().err, words


def test_the_port() -> None:
    first, second = launch.bind(), launch.bind()
    with first.listener, second.listener:
        assert first.port != second.port
        assert first.token != second.token
        assert first.listener.getsockname()[0] == "127.0.0.1"
        with pytest.raises(UserError, match=f"--port={first.port} cannot be used: Address already in use"):
            launch.bind(first.port)


def test_the_line_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert launch.ssh_line(8421) == f"ssh -L 8421:127.0.0.1:8421 me@{socket.gethostname()}"
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.1 22")
    assert launch.ssh_line(8425) == "ssh -L 8425:127.0.0.1:8425 me@10.0.0.1"
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.1 2222")
    assert launch.ssh_line(8425) == "ssh -L 8425:127.0.0.1:8425 -p 2222 me@10.0.0.1"


def test_ctrl_c_ends_it_with_a_tab_open(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*GLASS, "page", "demo:gpu", "--open=no"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    base, _, query = url.partition("?")
    run = visit(url).json()["selected"]
    with httpx.stream("GET", f"{base}api/runs/{run}/events?{query}", timeout=60) as stream:
        next(stream.iter_lines())
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    with process.stdout, process.stderr:  # type: ignore[union-attr]
        assert process.stdout.readline().startswith("from another machine: ssh -L ")
        assert process.stderr.read() == ""  # type: ignore[union-attr]
