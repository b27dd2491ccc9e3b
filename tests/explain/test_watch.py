"""A run watched while it goes on: lines come as the test says, time passes as the test says."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import TABLES
from written_findings import written_finding

from glassgpt.errors import UserError
from glassgpt.estimate.cards import find_card
from glassgpt.explain import watch as watch_module
from glassgpt.explain.explanation import explain
from glassgpt.explain.watch import GrowingFile, LogWatcher, WatchUpdate, follow
from glassgpt.record import journal
from glassgpt.runs.lines import LogLine
from glassgpt.runs.overrides import parse_overrides
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.table_files import read_tables


class Clock:
    """Stands still unless set; `cost` passes whenever it is read, as if work took that long."""

    def __init__(self, cost: float = 0.0) -> None:
        self.now, self.cost = 100.0, cost

    def __call__(self) -> float:
        self.now += self.cost
        return self.now


def log_lines(last: int = 600, first: int = 0) -> list[str]:
    lines = ["tokens per iteration will be: 16,384", "number of parameters: 10.65M"]
    for at in range(first, last + 1, 10):
        loss, ms = 4.2 / (1 + at / 300), 168.0 + at % 7 / 10
        if at % 250 == 0:
            lines.append(f"step {at}: train loss {loss:.4f}, val loss {loss + 0.05:.4f}")
            ms = 12543.0 if at == 0 else 5985.0
        lines.append(f"iter {at}: loss {loss:.4f}, time {ms:.2f}ms, mfu 2.21%")
    return lines


def feed_lines(watch: LogWatcher, lines: list[str]) -> None:
    for line in lines:
        watch.feed(LogLine(line))


@pytest.mark.parametrize("name", ["trainer_log", "lightning"])
def test_a_table_that_grows(name: str) -> None:
    """Line by line it says what the whole file says."""
    lines = TABLES[name].splitlines()
    watch = LogWatcher("table")
    feed_lines(watch, lines[:15])
    halfway = refresh(watch)
    assert halfway.explanation.facts.ended is None
    feed_lines(watch, lines[15:])
    whole = read_tables(iter([TABLES[name]]), "table")[0]
    assert refresh(watch, live=False).explanation.facts == explain(whole[0]).facts


def refresh(watch: LogWatcher, live: bool = True) -> WatchUpdate:
    update = watch.refresh(live)
    assert update is not None
    return update


def ids(update: WatchUpdate) -> list[str]:
    return [finding.id for finding in update.findings]


# --- refreshing ---


def test_nothing_to_explain_yet() -> None:
    watch = LogWatcher("x", clock=Clock())
    assert not watch.is_due()
    assert watch.refresh() is None
    feed_lines(watch, ["Shall I compare thee", "to a summer's day"])
    assert watch.refresh() is None


def test_every_finding_is_reported_once() -> None:
    watch = LogWatcher("x", clock=Clock())
    feed_lines(watch, log_lines(600))
    first = refresh(watch)
    assert "eval-spikes" in ids(first)
    assert len(ids(first)) == len(set(ids(first)))
    assert ids(refresh(watch)) == []
    feed_lines(watch, log_lines(1200, 610)[2:])
    second = refresh(watch)
    assert not set(ids(first)) & set(ids(second))
    assert "eval-spikes" in [finding.id for finding in second.explanation.findings]  # all of them are there


def test_evaluations_are_reported_once_and_in_order() -> None:
    watch = LogWatcher("x", clock=Clock())
    feed_lines(watch, log_lines(300))
    assert [done.iteration for done in refresh(watch).evaluations] == [0, 250]
    assert refresh(watch).evaluations == ()
    feed_lines(watch, log_lines(800, 310)[2:])
    update = refresh(watch)
    assert [done.iteration for done in update.evaluations] == [500, 750]
    assert update.iteration == 800


def test_a_finding_that_gets_worse_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgpt.explain import explanation as explanation_module
    from glassgpt.record.finding import Finding, Severity
    from glassgpt.runs.analysis import Analysis

    severities: Iterator[Severity] = iter(("advice", "advice", "problem", "warning", "problem"))

    def rule(analysis: Analysis) -> Finding:
        return written_finding("bad", next(severities), "it is bad", "5 of 10", "", "")

    monkeypatch.setattr(explanation_module, "RULES", (rule,))
    watch = LogWatcher("x", clock=Clock())
    feed_lines(watch, log_lines(100))
    assert [ids(refresh(watch)) for _ in range(5)] == [["bad"], [], ["bad"], [], []]


def test_a_nan_loss_is_reported_when_it_comes() -> None:
    watch = LogWatcher("x", clock=Clock())
    feed_lines(watch, log_lines(600))
    assert "loss-nan" not in ids(refresh(watch))
    feed_lines(watch, ["iter 610: loss nan, time 168.00ms, mfu 2.21%"])
    update = refresh(watch)
    assert update.findings[0].id == "loss-nan"
    assert update.findings[0].severity == "problem"
    feed_lines(watch, ["iter 620: loss nan, time 168.00ms, mfu 2.21%"])
    assert ids(refresh(watch)) == []


def test_a_run_that_goes_on_has_not_ended() -> None:
    watch = LogWatcher("x", clock=Clock())
    feed_lines(watch, log_lines(600))
    assert refresh(watch).explanation.facts.ended is None
    assert refresh(watch, live=False).explanation.facts.ended == "cut"


def test_the_last_refresh_is_what_reading_the_file_gives(tmp_path: Path) -> None:
    path = tmp_path / "n.log"
    path.write_text("\n".join(log_lines(600)) + "\n")
    watch = LogWatcher(str(path), clock=Clock())
    *_, last = follow(path.open("rb"), watch)
    assert last.explanation.as_dict() == explain(read_run_log(str(path))).as_dict()


def test_the_card_and_the_overrides_are_used() -> None:
    card = find_card("RTX 4070 Ti")
    (overrides,) = parse_overrides(["--a.tokens_per_iteration=32768"], 1)
    watch = LogWatcher("x", card, overrides, clock=Clock())
    feed_lines(watch, log_lines(600))
    explanation = refresh(watch).explanation
    assert explanation.facts.tokens_per_iteration == 32768
    assert any("RTX 4070 Ti" in f"{finding}" for finding in explanation.findings)


# --- when to refresh ---


def test_refreshes_are_at_least_a_second_apart() -> None:
    clock = Clock()
    watch = LogWatcher("x", clock=clock)
    feed_lines(watch, log_lines(600))
    assert watch.is_due()
    refresh(watch)
    feed_lines(watch, log_lines(620, 610)[2:])
    assert not watch.is_due()
    clock.now += 0.99
    assert not watch.is_due()
    clock.now += 0.02
    assert watch.is_due()


def test_without_a_new_line_there_is_no_refresh() -> None:
    clock = Clock()
    watch = LogWatcher("x", clock=clock)
    feed_lines(watch, log_lines(600))
    refresh(watch)
    clock.now += 1000
    assert not watch.is_due()


def test_refreshes_that_take_long_are_rare() -> None:
    """At most a tenth of the time, however long the log is."""
    clock = Clock(cost=3.0)
    watch = LogWatcher("x", clock=clock)
    feed_lines(watch, log_lines(600))
    refresh(watch)
    clock.cost = 0.0
    end = clock.now
    feed_lines(watch, log_lines(620, 610)[2:])
    clock.now = end + 29
    assert not watch.is_due()
    clock.now = end + 31
    assert watch.is_due()


# --- a stream ---


class Slow:
    """A pipe that gives a piece at a time, and waits in between until it is told to proceed."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter(pieces)
        self.proceed = threading.Semaphore(1)

    def read1(self, size: int = -1) -> bytes:
        self.proceed.acquire(timeout=30)
        return next(self._pieces, b"")

    read = read1


def in_bytes(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "_POLL_S", 0.01)
    monkeypatch.setattr(watch_module, "_MIN_REFRESH_S", 0.01)
    monkeypatch.setattr(watch_module, "_MAX_TIME_SHARE", 1.0)


@pytest.mark.usefixtures("impatient")
def test_the_last_lines_of_a_run_that_stalls_are_explained() -> None:
    """The NaN is the last that comes; nothing after it makes us look."""
    pipe = Slow([in_bytes(log_lines(600)), b"iter 610: loss nan, time 168.00ms, mfu 2.21%\n"])
    reported: list[str] = []
    for update in follow(pipe, LogWatcher("x")):  # type: ignore[arg-type]
        reported += ids(update)
        if update.iteration == 600:
            pipe.proceed.release()  # the second piece comes only after the first was looked at
        if "loss-nan" in reported:
            break
    assert "eval-spikes" in reported


@pytest.mark.usefixtures("impatient")
def test_news_come_while_the_pipe_is_open_and_the_whole_at_its_end() -> None:
    pieces = [in_bytes(log_lines(300)), in_bytes(log_lines(800, 310)[2:])]
    pipe = Slow(pieces)
    echoed: list[str] = []
    iterations, evaluated, live = [], [], []
    for update in follow(pipe, LogWatcher("x"), echoed.append):  # type: ignore[arg-type]
        iterations.append(update.iteration)
        evaluated += [done.iteration for done in update.evaluations]
        live.append(update.explanation.log.live)
        if update.iteration == 300:
            pipe.proceed.release(2)  # the rest, and the end
    assert iterations[-1] == 800
    assert 300 in iterations
    assert iterations == sorted(iterations, key=lambda at: at or 0)
    assert evaluated == [0, 250, 500, 750]
    assert live == [True] * (len(live) - 1) + [False]
    assert echoed == [*log_lines(300), *log_lines(800, 310)[2:]]


def test_a_line_that_comes_in_pieces_is_one() -> None:
    content = in_bytes(log_lines(100))
    pipe = Slow([content[i : i + 7] for i in range(0, len(content), 7)])
    pipe.proceed.release(10_000)
    *_, last = follow(pipe, LogWatcher("x"))  # type: ignore[arg-type]
    assert last.explanation.facts.iterations_logged == 11


def test_a_stream_without_a_log() -> None:
    assert list(follow(io.BytesIO(b""), LogWatcher("x"))) == []
    assert list(follow(io.BytesIO(b"hello\n" * 100), LogWatcher("x"))) == []


def test_a_stream_that_cannot_be_read_says_so() -> None:
    with pytest.raises(UserError):
        list(follow(io.BytesIO(b"PK\x03\x04" + b"x" * 100), LogWatcher("x")))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(log_lines(60)), st.text(max_size=30)), max_size=40))
def test_any_lines_at_all(lines: list[str]) -> None:
    watch = LogWatcher("x", clock=Clock())
    for line in lines:
        watch.feed(LogLine(line))
        watch.refresh()


# --- a file that grows ---


def test_a_growing_file_waits_for_more(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one\n")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            with path.open("ab") as more:
                more.write(b"two\n")

    with path.open("rb") as file:
        growing = GrowingFile(file, sleep=sleep)
        assert growing.read1(100) == b"one\n"
        assert growing.read(100) == b"two\n"
    assert len(slept) == 3


def test_what_was_written_before_the_end_is_read(tmp_path: Path) -> None:
    """The writer ends between our reading nothing and our asking whether it has ended."""
    path = tmp_path / "x"
    path.write_bytes(b"")
    checks = 0

    def is_over() -> bool:
        nonlocal checks
        checks += 1
        if checks == 2:
            path.write_bytes(b"last\n")
        return checks >= 2

    with path.open("rb") as file:
        growing = GrowingFile(file, is_over, sleep=lambda seconds: None)
        assert growing.read1() == b"last\n"
        assert growing.read1() == b""


# --- a journal ---


def records() -> list[journal.Record]:
    def record(kind: str, at: int, **fields: object) -> journal.Record:
        return {"kind": kind, "time": 1e9 + at, "process": 0, "iter": at, **fields}

    step = {"step_ms": 38.0, "phases": {"train": 380.0}}
    return [
        record("run", 0, config={"max_iters": 100}, out_dir="runs/x"),
        record("eval", 0, split="train", loss=4.1, ms=100.0),
        record("eval", 0, split="val", loss=4.2, ms=100.0),
        *(record("step", at, loss=4 - at / 50, **step) for at in range(10, 101, 10)),
        record("finding", 100, severity="warning", title="compiling failed", evidence="1 of 1"),
        record("finding", 100, severity="warning", title="disk full", evidence="99%"),
        record("eval", 100, split="val", loss=2.2, ms=100.0),
        record("end", 100, reason="finished", ledger={"train": 3.8}),
    ]


def test_a_journal_is_known_by_its_first_line() -> None:
    *_, last = follow(io.BytesIO(b"".join(map(journal.encode_line, records()))), LogWatcher("x"))
    facts = last.explanation.facts
    assert last.explanation.log.trainer.id == "glassgpt"
    assert (facts.ended, facts.last_iteration, facts.best_val_loss) == ("finished", 100, 2.2)


def test_every_finding_in_the_journal_is_reported() -> None:
    """They may have no id of their own."""
    watch = LogWatcher("x", clock=Clock())
    feed_lines(watch, [journal.encode_line(one).decode().rstrip() for one in records()[:14]])
    assert "compiling failed" in [finding.title for finding in refresh(watch).findings]
    feed_lines(watch, [journal.encode_line(one).decode().rstrip() for one in records()[14:]])
    titles = [finding.title for finding in refresh(watch).findings]
    assert "disk full" in titles
    assert "compiling failed" not in titles


def test_a_torn_record_is_passed_over() -> None:
    watch = LogWatcher("x", clock=Clock())
    feed_lines(watch, [journal.encode_line(one).decode().rstrip() for one in records()[:8]])
    at = refresh(watch).iteration
    watch.feed(LogLine('{"kind":"step","iter":60,"ti', is_incomplete=True))
    assert refresh(watch).iteration == at


# --- looking changes nothing ---


@pytest.mark.parametrize("every", [1, 2, 3])
def test_refreshes_change_nothing(every: int) -> None:
    """Evaluations wait for the next line to tell their number; a look between must not take it from them."""
    lines = []
    for at in range(0, 1000, 10):
        if at % 250 == 0:
            lines.append(f"validation loss: {10 - at / 200:.4f}")
        lines.append(f"step {at:5d} | loss: {10 - at / 200:.6f} | lr 1.0e-04 | dt: 25.00ms | tok/sec: 800.00")
    refreshed, plain = LogWatcher("a"), LogWatcher("b")
    for index, line in enumerate(lines):
        plain.feed(LogLine(line))
        refreshed.feed(LogLine(line))
        if index % every == 0:
            refreshed.refresh()
    one, other = refreshed.refresh(live=False), plain.refresh(live=False)
    assert one is not None
    assert other is not None
    assert one.explanation.facts == other.explanation.facts
    assert other.explanation.facts.eval_steps == [0, 250, 500, 750]


def test_a_long_record_is_read_whole() -> None:
    run = {
        "kind": "run",
        "time": 0.0,
        "iter": 0,
        "process": 0,
        "config": {"max_iters": 50},
        "batch": {"tokens": 768},
    }
    run["machine"] = {"note": "x" * 6000}
    step = {"kind": "step", "time": 1.0, "iter": 10, "process": 0, "loss": 3.0, "step_ms": 5.0}
    file = io.BytesIO(b"".join(journal.encode_line(record) for record in (run, step)))
    *_, last = follow(file, LogWatcher("journal"))
    assert last.explanation.facts.tokens_per_iteration == 768


def test_a_file_that_is_begun_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("iter 0: loss 9.0, time 5.00ms, mfu 1.00%\n" * 50)

    def begin_again(seconds: float) -> None:
        path.write_text("iter 7: loss 1.0, time 5.00ms\n")

    with path.open("rb") as stream:
        growing = GrowingFile(stream, sleep=begin_again)
        assert b"iter 0" in growing.read1(1 << 20)
        assert growing.read1(1 << 20) == b"iter 7: loss 1.0, time 5.00ms\n"


def test_a_file_that_was_rotated_is_read_to_its_end_and_then_the_new_one(tmp_path: Path) -> None:
    path, old = tmp_path / "train.log", tmp_path / "train.log.1"
    path.write_bytes(b"one\n")

    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            path.rename(old)
        elif len(slept) == 2:
            with old.open("ab") as writer:  # which goes on with the file it has
                writer.write(b"last\n")
        else:
            path.write_bytes(b"new and longer\n")

    growing = GrowingFile(path.open("rb"), sleep=sleep, path=path)
    assert growing.read1(100) == b"one\n"
    assert growing.read1(100) == b"last\n"
    assert growing.read1(100) == b"new and longer\n"


def test_evaluations_after_a_resume_are_reported() -> None:
    def evaluated(at: int, loss: float, process: int) -> dict[str, object]:
        head = {"kind": "eval", "time": 0.0, "iter": at, "process": process}
        return {**head, "split": "val", "loss": loss, "ms": 5.0}

    watch = LogWatcher("journal")
    for at in (0, 10, 20, 30):
        watch.feed(LogLine(journal.dumps(evaluated(at, 5 - at / 100, 0))))
    watch.refresh()
    watch.feed(LogLine('{"kind":"resume","time":0,"iter":10,"process":1,"from_iter":10}'))
    watch.feed(LogLine(journal.dumps(evaluated(20, 1.0, 1))))
    update = watch.refresh()
    assert update is not None
    assert [done.val_loss for done in update.evaluations] == [1.0]
