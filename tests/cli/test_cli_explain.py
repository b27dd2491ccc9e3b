"""`glass explain`, as people, scripts and hostile files meet it."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
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
    EVIL,
    GLASS,
    LOCALE,
    controls,
    environment,
    evaluated,
    evil_run,
    finished_run,
    glass,
    nanogpt_log,
    record,
    start,
    started,
    stepped,
    write_run,
)

from glassgpt.account import journal
from glassgpt.account.journal import Record
from glassgpt.cli import main
from glassgpt.insight.facts import Facts

Capture = pytest.CaptureFixture[str]

# As the issue names them.
# fmt: off
FACTS = [
    "iterations_logged", "first_iteration", "last_iteration", "log_interval", "tokens_per_iteration",
    "parameters", "steady_ms", "steady_p95_ms", "first_iteration_ms", "startup_ms", "eval_steps",
    "eval_overhead_ms", "checkpoint_steps", "estimated_total_s", "overhead_share", "tokens_per_s",
    "mfu_reported_steady", "flops_per_token", "achieved_tflops", "val_metric", "best_val_loss",
    "best_val_step", "final_val_loss", "final_train_loss", "loss_first", "loss_last", "nan_step",
    "segments", "ended",
]
# fmt: on


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a log in it, in English."""
    monkeypatch.chdir(tmp_path)
    for name in LOCALE:
        monkeypatch.delenv(name, raising=False)
    Path("n.log").write_text(nanogpt_log())
    return tmp_path


def refused(capsys: Capture, *arguments: str) -> list[str]:
    """The problems said, and nothing else."""
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert said.out == ""
    assert lines
    assert all(line.startswith("error: ") for line in lines)
    return [line.removeprefix("error: ") for line in lines]


def told(capsys: Capture, *arguments: str) -> str:
    capsys.readouterr()
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def strict(text: str) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(word)

    document = json.loads(text, parse_constant=refuse)
    assert isinstance(document, dict)
    return document


# --- what is refused ---


def test_not_a_log_names_the_formats_it_knows(capsys: Capture) -> None:
    Path("poem.txt").write_text("Shall I compare thee to a summer's day?\n" * 5)
    (problem,) = refused(capsys, "explain", "poem.txt")
    assert problem.startswith("poem.txt is not a training log")
    for name in ("nanoGPT", "build-nanogpt", "llm.c", "nanochat", "modded-nanogpt", "litgpt", "Hugging Face"):
        assert name in problem


@pytest.mark.parametrize("content", [b"", b"\n\n\n", b"\x00\xff" * 1000, b"{}", b"[1, 2]", b'{"kind": 5}'])
def test_bytes_that_are_no_log(content: bytes, capsys: Capture) -> None:
    Path("some.bin").write_bytes(content)
    (problem,) = refused(capsys, "explain", "some.bin")
    assert "some.bin" in problem


def test_nothing_there(capsys: Capture) -> None:
    assert "nothere" in refused(capsys, "explain", "nothere")[0]
    assert "n.log/x" in refused(capsys, "explain", "n.log/x")[0]
    Path("folder").mkdir()
    (problem,) = refused(capsys, "explain", "folder")
    assert "journal.jsonl" in problem
    assert "glass runs" in problem
    assert refused(capsys, "explain", "x" * 300)
    assert refused(capsys, "explain", "")


@pytest.mark.parametrize("flags", [[], ["--json"], ["--watch"], ["--full"]])
def test_an_argument_is_needed(flags: list[str], capsys: Capture) -> None:
    (problem,) = refused(capsys, "explain", *flags)
    assert "-" in problem


def test_one_at_a_time(capsys: Capture) -> None:
    (problem,) = refused(capsys, "explain", "n.log", "n.log")
    assert "glass compare" in problem


@pytest.mark.parametrize("flag", ["--fulll", "--ful", "--fulll=1", "--ful=True"])
def test_an_unknown_flag_gets_the_nearest(flag: str, capsys: Capture) -> None:
    (problem,) = refused(capsys, "explain", "n.log", flag)
    assert "unknown" in problem
    assert "did you mean --full?" in problem


@pytest.mark.parametrize("flag", ["--wandb", "--wandb=1"])
def test_an_unknown_flag_like_no_other(flag: str, capsys: Capture) -> None:
    (problem,) = refused(capsys, "explain", "n.log", flag)
    assert "unknown setting --wandb" in problem


def test_a_short_flag_is_no_file(capsys: Capture) -> None:
    problems = refused(capsys, "explain", "n.log", "-j")
    assert any("unknown" in problem and "-j" in problem for problem in problems)


def test_an_unknown_card_gets_the_nearest(capsys: Capture) -> None:
    (problem,) = refused(capsys, "explain", "n.log", "--gpu=4070ty")
    assert "--gpu=4070ty" in problem
    assert "RTX 4070 Ti" in problem


def test_an_unknown_language(capsys: Capture) -> None:
    for language in ("fr", "EN", "../en", "hi_IN"):
        (problem,) = refused(capsys, "explain", "n.log", f"--lang={language}")
        assert "en, hi, ar" in problem


def test_all_problems_at_once(capsys: Capture) -> None:
    problems = refused(
        capsys,
        "explain",
        "n.log",
        "o.log",
        "--lang=fr",
        "--gpu=foo",
        "--bar=1",
        "--json=maybe",
        "--a.n_layr=3",
    )
    text = "\n".join(problems)
    for part in ("glass compare", "--lang=fr", "--gpu=foo", "--bar", "--json=maybe", "--a.n_layr"):
        assert part in text


def test_what_is_said_about_another_run(capsys: Capture) -> None:
    (problem,) = refused(capsys, "explain", "n.log", "--b.n_layer=3")
    assert "--b.n_layer" in problem


def test_watching_checks_first_too(capsys: Capture) -> None:
    assert refused(capsys, "explain", "nothere", "--watch")
    Path("folder").mkdir()
    assert refused(capsys, "explain", "folder", "--watch")
    assert refused(capsys, "explain", "n.log", "--watch", "--a.nonsense=1")


# --- what is told ---


def test_verdict_findings_facts_charts_in_this_order(capsys: Capture) -> None:
    text = told(capsys, "explain", "n.log")
    order = ["n.log", "A nanoGPT run", "[eval-spikes]", "Raise eval_interval", "log cut off", "16,384",
             "168.3 ms", "loss: training in dots", "where the time went"]  # fmt: skip
    place = 0
    for part in order:
        place = text.index(part, place)
    assert "what the lines mean" not in text


def test_a_sentence_about_what_the_log_does_not_say(capsys: Capture) -> None:
    plain = strict(told(capsys, "explain", "n.log", "--json"))
    for words in (["--a.tokens_per_iteration=32768"], ["--a.tokens_per_iteration", "32768"]):
        given = strict(told(capsys, "explain", "n.log", "--json", *words))
        assert given["facts"]["tokens_per_iteration"] == 32768
        assert given["facts"]["tokens_per_s"] == pytest.approx(2 * plain["facts"]["tokens_per_s"])


def test_the_card_changes_what_mfu_is_worth(capsys: Capture) -> None:
    document = strict(told(capsys, "explain", "n.log", "--json", "--gpu=RTX 4070 Ti"))
    assert any("RTX 4070 Ti" in json.dumps(finding) for finding in document["findings"])


def test_json_is_strict_and_complete(capsys: Capture) -> None:
    document = strict(told(capsys, "explain", "n.log", "--json"))
    assert list(document) == ["format", "facts", "findings", "verdict"]
    assert document["format"] == "nanogpt"
    assert sorted(document["facts"]) == sorted(FACTS) == sorted(Facts.__dataclass_fields__)
    assert document["facts"]["eval_steps"] == [0, 250, 500]
    assert document["facts"]["segments"] == 1
    assert document["findings"]
    for finding in document["findings"]:
        assert list(finding) == ["id", "severity", "title", "evidence", "explanation", "advice"]
        assert finding["severity"] in ("info", "advice", "warning", "problem")
        assert finding["title"]
        assert finding["evidence"]
    rank = ["problem", "warning", "advice", "info"]
    assert [rank.index(finding["severity"]) for finding in document["findings"]] == sorted(
        rank.index(finding["severity"]) for finding in document["findings"]
    )
    assert all(isinstance(sentence, str) for sentence in document["verdict"])


def test_json_writes_what_is_no_number_as_a_word(capsys: Capture) -> None:
    log = (
        nanogpt_log()
        + "step 750: train loss inf, val loss nan\niter 750: loss nan, time 168.00ms, mfu 2.20%\n"
    )
    Path("nan.log").write_text(log)
    facts = strict(told(capsys, "explain", "nan.log", "--json"))["facts"]
    assert (facts["loss_last"], facts["final_val_loss"], facts["final_train_loss"]) == ("nan", "nan", "inf")
    assert facts["nan_step"] == 750


@pytest.mark.parametrize("language", ["hi", "ar"])
def test_facts_do_not_depend_on_the_language(language: str, capsys: Capture) -> None:
    here, there = (
        strict(told(capsys, "explain", "n.log", "--json", f"--lang={name}")) for name in ("en", language)
    )
    assert here["facts"] == there["facts"]
    assert [finding["id"] for finding in here["findings"]] == [finding["id"] for finding in there["findings"]]
    assert here["verdict"] != there["verdict"]


def test_the_locale_chooses_the_language(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "hi_IN.UTF-8")
    here = strict(told(capsys, "explain", "n.log", "--json"))
    assert here == strict(told(capsys, "explain", "n.log", "--json", "--lang=hi"))
    assert here != strict(told(capsys, "explain", "n.log", "--json", "--lang=en"))


def test_full_adds_the_glossary_with_values_of_this_log(capsys: Capture) -> None:
    text = told(capsys, "explain", "n.log", "--full")
    glossary = text[text.index("what the lines mean") :]
    last = nanogpt_log().splitlines()[-1]
    number, loss, ms, mfu = re.split(r"[:,] ", last)
    for piece in (number, loss, ms, mfu, "step 500: train loss 1.5750, val loss 1.6250"):
        assert f"\n{piece}\n" in glossary
    assert "312 TFLOP/s" in glossary


# --- what it reads ---


@pytest.mark.parametrize("packed", ["gzip", "utf-16", "utf-16-le", "crlf", "colours"])
def test_a_log_in_any_wrapping_says_the_same(packed: str, capsys: Capture) -> None:
    log = nanogpt_log()
    content = {
        "gzip": gzip.compress(log.encode()),
        "crlf": log.replace("\n", "\r\n").encode(),
        "colours": re.sub(r"(\d+\.\d+)", "\x1b[32m\\1\x1b[0m", log).encode(),
    }.get(packed) or log.encode(packed)
    Path("packed").write_bytes(content)
    expected = strict(told(capsys, "explain", "n.log", "--json"))
    assert strict(told(capsys, "explain", "packed", "--json")) == expected


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input(packed: bool, capsys: Capture) -> None:
    log = nanogpt_log().encode()
    done = glass("explain", "-", "--json", stdin=gzip.compress(log) if packed else log)
    assert done.returncode == 0
    assert done.stderr == b""
    assert strict(done.stdout.decode()) == strict(told(capsys, "explain", "n.log", "--json"))


def test_standard_input_without_a_word(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    (problem,) = refused(capsys, "explain", "-")
    assert problem.startswith("standard input is not a training log")


@pytest.mark.parametrize("flags", [[], ["--watch"]], ids=str)
def test_no_standard_input(flags: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """`glass explain - <&-`, as some schedulers start programs."""
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input" in refused(capsys, "explain", "-", *flags)[0]


def test_a_named_pipe_is_watched() -> None:
    os.mkfifo("pipe")
    process, _, lines = watched("pipe", "--watch")
    writer = os.open("pipe", os.O_RDWR)  # which does not wait for a reader
    os.write(writer, nanogpt_log().encode())
    lines.until("iteration 500: validation 1.6250")
    os.close(writer)
    assert "A nanoGPT run whose log stops at iteration 600" in lines.rest()
    assert process.wait(30) == 0


def test_a_finished_run_by_its_folder_its_journal_or_a_pipe(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(Path("runs/mine"), finished_run())
    expected = strict(told(capsys, "explain", str(folder), "--json"))
    assert expected["format"] == "glassgpt"
    assert expected["facts"]["ended"] == "finished"
    assert expected["facts"]["last_iteration"] == 100
    assert strict(told(capsys, "explain", str(folder / journal.NAME), "--json")) == expected
    (folder / journal.NAME).rename("another-name.txt")
    assert strict(told(capsys, "explain", "another-name.txt", "--json")) == expected
    content = Path("another-name.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert strict(told(capsys, "explain", "-", "--json")) == expected


def test_a_live_run(capsys: Capture) -> None:
    folder = write_run(Path("runs/live"), finished_run()[:8])
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = told(capsys, "explain", str(folder))
        facts = strict(told(capsys, "explain", str(folder), "--json"))["facts"]
        with (folder / journal.NAME).open("ab") as file:
            file.write(b'{"kind":"step","iter":60,"ti')  # being written just now
        assert strict(told(capsys, "explain", str(folder), "--json"))["facts"] == facts
    assert "at iteration 50 now" in text
    assert facts["ended"] is None
    assert strict(told(capsys, "explain", str(folder), "--json"))["facts"]["ended"] == "cut"


@pytest.mark.parametrize("content", [b"", b"\n", b"torn", b'{"kind":"run"'])
def test_a_journal_without_a_record(content: bytes, capsys: Capture) -> None:
    folder = write_run(Path("runs/mine"), [])
    (folder / journal.NAME).write_bytes(content)
    (problem,) = refused(capsys, "explain", str(folder))
    assert "no records of a run" in problem
    assert refused(capsys, "explain", str(folder), "--watch")
    assert refused(capsys, "explain", str(folder / journal.NAME))


@pytest.mark.parametrize("records", [[start()], [start(), *evaluated(0, 4.2)]], ids=["bare", "evaluated"])
@pytest.mark.parametrize("flags", [[], ["--full"], ["--watch"]], ids=str)
def test_a_run_killed_before_its_first_step(records: list[Record], flags: list[str], capsys: Capture) -> None:
    folder = write_run(Path("runs/mine"), records)
    text = told(capsys, "explain", str(folder), *flags)
    assert "GlassGPT run" in text
    assert "Nothing is wrong" not in text
    assert "without their numbers" not in text


@pytest.mark.parametrize("damage", ["types", "negative", "huge"])
def test_a_journal_that_was_tampered_with(damage: str, capsys: Capture) -> None:
    records = finished_run()
    records.insert(4, record("finding", 10, severity="warning", title="t", evidence="e"))
    records.insert(9, {**record("resume", 50, from_iter=50), "process": 1})
    wrong: Any = {"types": ["x", {}], "negative": -1, "huge": 1e308}[damage]
    once = {(one["kind"], key): number for number, one in enumerate(records) for key in one}
    for (_, key), number in once.items():
        changed = [*records]
        changed[number] = {**records[number], key: wrong}
        folder = write_run(Path("runs/mine"), changed)
        assert main(["explain", str(folder)]) in (0, 2), key


def test_evaluations_that_go_back(capsys: Capture) -> None:
    """A resume from an earlier checkpoint: the distance between two evaluations is not -250."""
    Path("back.log").write_text(nanogpt_log(600, 300) + nanogpt_log(400, 250))
    assert re.search(r"every -\d", told(capsys, "explain", "back.log")) is None


LINE = "iter {at}: loss {loss}, time {ms}ms, mfu 0.03%\n"
ODD_LOGS = {
    "long": LINE.format(at=10, loss=1.7, ms="1e308") + LINE.format(at=20, loss=1.7, ms=45.95),
    "max_iters": "Overriding: max_iters = 1e400\n" + LINE.format(at=20, loss=3.5, ms=63.59),
    "log_interval": "log_interval = 1e400\nmax_iters = 10000\n" + LINE.format(at=20, loss=3.5, ms=63.59),
    "width": "block_size = 256\nn_layer = 48\nn_embd = 1e308\nfound vocab_size = 65 (inside data/meta.pkl)\n"
    "number of parameters: 2416.25M\n"
    + LINE.format(at=0, loss=4.6, ms=129066.95)
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity "
    "of 39.38 GiB of which 18.12 MiB is free.\n",
    "rate": "step     3 | loss: 10.673607 | lr 3.3566e-06 | norm: 12.9180 | dt: 25808.23ms | tok/sec: inf\n",
    "span": LINE.format(at=20, loss="-1e308", ms=1441.24) + LINE.format(at=340, loss="1e308", ms=1446.62),
    "number": LINE.format(at="9" * 30, loss=1.7, ms=45.95) * 2,
    "nothing": LINE.format(at=0, loss=0, ms=0) + LINE.format(at=1, loss=0, ms=0),
}


@pytest.mark.parametrize("name", ODD_LOGS)
def test_numbers_that_no_run_has(name: str, capsys: Capture) -> None:
    Path("odd.log").write_text(ODD_LOGS[name])
    for arguments in (
        ["explain", "odd.log"],
        ["explain", "odd.log", "--json"],
        ["compare", "odd.log", "n.log"],
    ):
        assert main(arguments) in (0, 2)
    assert main(["report", "odd.log"]) in (0, 2)


# --- hostile text ---


@pytest.mark.parametrize("flags", [[], ["--full"], ["--json"], ["--watch"], ["--lang=hi"]], ids=str)
def test_a_hostile_journal_cannot_harm_a_terminal(flags: list[str], capsys: Capture) -> None:
    folder = write_run(Path("runs/evil"), evil_run())
    text = told(capsys, "explain", str(folder), *flags)
    assert not controls(text)
    assert "[red]x[/red]" in text  # printed, not obeyed


def test_a_hostile_journal_in_arabic(capsys: Capture) -> None:
    folder = write_run(Path("runs/evil"), evil_run())
    text = told(capsys, "explain", str(folder), "--lang=ar")
    ours = (
        "\N{RIGHT-TO-LEFT MARK}\N{FIRST STRONG ISOLATE}\N{LEFT-TO-RIGHT ISOLATE}\N{POP DIRECTIONAL ISOLATE}"
    )
    assert not controls(text, "\n" + ours)
    assert "\N{FIRST STRONG ISOLATE}" in text


@pytest.mark.parametrize("flags", [[], ["--full"], ["--json"]], ids=str)
def test_a_hostile_log_cannot_harm_a_terminal(flags: list[str], capsys: Capture) -> None:
    lines = nanogpt_log().splitlines()
    lines.insert(2, f"device = 'cuda{EVIL}'\nOverriding: dataset = {EVIL}\nGPU: RTX 4090{EVIL}")
    lines.append(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {EVIL}")
    Path("evil.log").write_text("\n".join(line + EVIL for line in lines))
    assert not controls(told(capsys, "explain", "evil.log", *flags))


@pytest.mark.parametrize(
    "name", ["we ird.log", f"a{EVIL.replace('/', '')}.log", "\u202egol.log", "-", "--json"]
)
def test_any_file_name(name: str, capsys: Capture) -> None:
    Path("n.log").rename(name)
    assert not controls(told(capsys, "explain", f"./{name}"))
    (problem,) = refused(capsys, "explain", f"./{name}.not")
    assert not controls(problem)


def test_a_file_name_is_one_line(capsys: Capture) -> None:
    Path("n.log").rename("a.log\nA nanoGPT run that went very well.\n")
    assert "went very well." not in told(capsys, "explain", *os.listdir()).splitlines()


def test_a_file_name_that_is_not_utf8() -> None:
    name = b"n\xff.log"
    Path("n.log").rename(os.fsdecode(name))
    done = glass("explain", name)
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"\xff" not in done.stdout
    assert glass("explain", name + b"x").returncode == 2


# --- terminals ---


def in_terminal(columns: int, *arguments: str, **changes: str) -> str:
    """What a terminal of that width gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = environment(TERM="xterm", **changes)
    env.pop("COLUMNS", None)
    process = subprocess.Popen([*GLASS, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    received = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # EIO: the other side is closed
            break
        if not chunk:
            break
        received += chunk
    os.close(ours)
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
    expected = strict(told(capsys, "explain", "n.log", "--json", "--lang=hi"))
    done = glass("explain", "n.log", "--json", "--lang=hi", env=environment(PYTHONIOENCODING=encoding))
    assert (done.returncode, done.stderr) == (0, b"")
    assert strict(done.stdout.decode(encoding)) == expected


def test_nobody_reads() -> None:
    """`glass explain n.log | head -1`"""
    for flags in ([], ["--json"], ["--full"]):
        reading, writing = os.pipe()
        os.close(reading)
        process = started("explain", "n.log", *flags, stdout=writing)
        os.close(writing)
        _, errors = process.communicate(timeout=60)
        assert errors == b""
        assert process.returncode == 0


def test_it_starts_at_once_and_without_torch() -> None:
    code = (
        "import sys\nfrom glassgpt.cli import main\n"
        "assert main(['explain', 'n.log', '--full']) == 0\nassert main(['explain', '--help']) == 0\n"
        "assert main(['compare', 'n.log', 'n.log']) == 0\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules or 'plotly' in sys.modules)"
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
    process = started("explain", *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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
    assert "A nanoGPT run whose log stops at iteration 1,200" in rest
    everything = "".join(lines.seen)
    news, _, last = everything.partition("A nanoGPT run")
    for name in set(re.findall(r"\[([a-z]+(?:-[a-z]+)+)\]", last)):
        assert news.count(f"[{name}]") == 1, name
    assert [line for line in everything.splitlines() if line.startswith(("iter ", "step ", "saving "))] == [
        line.rstrip() for line in log[2:]
    ]


def test_watching_for_a_program() -> None:
    """With --json the document is all there is."""
    done = glass("explain", "-", "--watch", "--json", stdin=nanogpt_log().encode())
    assert done.returncode == 0
    assert strict(done.stdout.decode())["facts"]["last_iteration"] == 600


def test_watching_uses_what_is_said_about_the_run() -> None:
    arguments = ("explain", "-", "--watch", "--json", "--a.tokens_per_iteration=32768")
    done = glass(*arguments, stdin=nanogpt_log().encode())
    assert (
        strict(done.stdout.decode()[done.stdout.decode().index("{\n") :])["facts"]["tokens_per_iteration"]
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
    assert "A nanoGPT run that is at iteration 750 now." in rest
    assert "where the time went" in rest
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
    process = started("explain", "-", "--watch", stdin=subprocess.PIPE, stdout=writing)
    os.close(writing)
    _, errors = process.communicate(nanogpt_log().encode(), timeout=60)
    assert errors == b""
    assert process.returncode == 0


def test_what_passes_through_is_harmless() -> None:
    done = glass("explain", "-", "--watch", stdin=(EVIL + "\n" + nanogpt_log()).encode())
    assert done.returncode == 0
    assert not controls(done.stdout.decode())


def test_a_live_run_is_followed_to_its_end() -> None:
    records = finished_run()
    folder = write_run(Path("runs/live"), records[:6])
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process, _, lines = watched(str(folder), "--watch")
        lines.until("iteration 0: validation 4.2000")
        with (folder / journal.NAME).open("ab") as file:
            file.write(b"".join(map(journal.encode, records[6:])))
        lines.until("iteration 100: validation 2.1000")
    rest = lines.rest()
    assert process.wait(30) == 0
    assert "A GlassGPT run that went to its end at iteration 100." in rest


def test_a_journal_is_known_by_its_content_when_watched() -> None:
    content = b"".join(map(journal.encode, finished_run()))
    done = glass("explain", "-", "--watch", stdin=content)
    assert done.returncode == 0
    assert "A GlassGPT run that went to its end at iteration 100." in done.stdout.decode()


def test_a_run_that_says_nothing_bad_at_its_first_step(capsys: Capture) -> None:
    """Of a run that goes on, start-up is not all there will be."""
    first = record("step", 1, loss=4.1, first_update_ms=1500.0, phases={"compile": 4200.0})
    folder = write_run(Path("runs/live"), [start(), *evaluated(0, 4.2), first, stepped(10, 4.0)])
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "100% of the run" not in told(capsys, "explain", str(folder))


def test_two_trainers_in_one_file_are_both_printed(capsys: Capture) -> None:
    steps = "".join(
        f"step {at:4d}/50 | loss {4 - at / 20:.6f} (+0.1z)| norm 0.5000 (+0.1z)| lr 6.00e-04 | 80.00 ms | "
        f"40.0% bf16 MFU | 409600 tok/s\n"
        for at in range(1, 51)
    )
    Path("both.log").write_text(nanogpt_log() + "$ ./train_gpt2cu\n" + steps)
    assert main(["explain", "both.log"]) == 0
    printed = capsys.readouterr().out
    assert 0 <= printed.index("A nanoGPT run ") < printed.index("An llm.c run ")
    assert "come before this one in the log: nanoGPT." in printed
