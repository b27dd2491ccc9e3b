"""A run that is read further at each poll: appended, truncated, replaced, resumed."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from pathlib import Path

import journals
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_watch import Clock, log_lines

from glassgpt.errors import UserError
from glassgpt.explain.explanation import explain_runs
from glassgpt.explain.watch import FollowedRun
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.record.run_dir import lock_run_dir
from glassgpt.runs import journal_index
from glassgpt.runs.reading import read_run_log, read_run_logs
from glassgpt.show.page.series import rows_of
from glassgpt.show.page.stream import PageEvent, RunStream, cursor_of


def append(path: Path, lines: Sequence[str], at: float = 1000.0) -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))
    os.utime(path, (at, at))


def follow(path: Path, now: float = 1001.0) -> FollowedRun:
    return FollowedRun(str(path), clock=Clock(), wall_clock=lambda: now)


def record_lines(records: Sequence[Record]) -> list[str]:
    return [journal.dumps(record) for record in records]


def own_records(last: int) -> list[Record]:
    return [journals.run(200), journals.first_step(), *(journals.step(at) for at in range(10, last + 1, 10))]


def last_iteration(followed: FollowedRun) -> int:
    assert followed.run_log is not None
    return int(followed.run_log.steps.iteration[-1])


# --- reading ---


def test_a_log_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    append(path, log_lines(300))
    followed = follow(path)
    assert followed.poll()
    assert followed.is_live
    assert last_iteration(followed) == 300
    assert not followed.poll()
    before = followed.run_log
    assert followed.run_log is before  # built once
    append(path, log_lines(500, 310)[2:])
    assert followed.poll()
    assert last_iteration(followed) == 500
    assert followed.generation == 0


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 4000), max_size=6))
def test_however_it_is_cut_the_end_is_what_reading_the_file_gives(cuts: list[int]) -> None:
    import tempfile

    text = "\n".join(log_lines(600))  # the last line has no end
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        now = [1000.0]
        followed = FollowedRun(str(path), clock=Clock(), wall_clock=lambda: now[0])
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
            with path.open("a") as file:
                file.write(text[begin:end])
            os.utime(path, (1000.0, 1000.0))
            followed.poll()
        now[0] = 1e9  # long after
        followed.poll()
        followed.refresh()
        assert not followed.is_live
        assert followed.explanation is not None
        whole = explain_runs(read_run_logs(str(path)))
        assert followed.explanation.facts == whole.facts
        assert followed.explanation.verdict == whole.verdict


def test_a_journal_that_grows(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    append(path, record_lines(own_records(50)))
    followed = follow(tmp_path)
    assert followed.poll()
    assert not followed.is_live  # nobody holds its lock
    torn, rest = record_lines([journals.step(60)])[0][:30], record_lines([journals.step(60)])[0][30:]
    with path.open("a") as file:
        file.write(torn)
    assert not followed.poll()
    append(path, [rest])
    assert followed.poll()
    assert last_iteration(followed) == 60


def test_a_run_is_live_while_its_lock_is_held(tmp_path: Path) -> None:
    append(tmp_path / journal.FILE_NAME, record_lines(own_records(50)))
    lock = lock_run_dir(tmp_path)
    assert lock is not None
    followed = follow(tmp_path)
    followed.poll()
    # The lock of this very process does not count on every system: ask as another one would.
    assert followed.is_live == (lock_run_dir(tmp_path, shared=True) is None)
    lock.close()
    followed.poll()
    assert not followed.is_live


@pytest.mark.parametrize("as_journal", [False, True])
def test_a_file_that_is_replaced_is_read_anew(tmp_path: Path, as_journal: bool) -> None:
    path = tmp_path / (journal.FILE_NAME if as_journal else "train.log")
    append(path, record_lines(own_records(100)) if as_journal else log_lines(300))
    followed = follow(path)
    followed.poll()
    path.unlink()
    shorter = own_records(40) if as_journal else []
    append(path, record_lines(shorter) if as_journal else log_lines(100))
    assert followed.poll()
    assert (last_iteration(followed), followed.generation) == (40 if as_journal else 100, 1)
    path.unlink()  # and by a longer one, whose bytes differ
    longer = [journals.run(999), *own_records(190)[1:]]
    append(path, record_lines(longer) if as_journal else ["another head", *log_lines(900)])
    assert followed.poll()
    assert (last_iteration(followed), followed.generation) == (190 if as_journal else 900, 2)


def test_a_long_journal_is_read_from_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_index, "MIN_BYTES", 1000)
    path = tmp_path / journal.FILE_NAME
    append(path, record_lines(own_records(100)))
    first = follow(tmp_path)
    first.poll()
    assert journal_index.index_path(path).exists()
    append(path, record_lines([journals.step(110)]))
    parsed: list[Record] = []
    original = journal.parse_records

    def counting(lines: Sequence[bytes]) -> list[Record]:
        parsed.extend(records := list(original(lines)))
        return records

    monkeypatch.setattr(journal, "parse_records", counting)
    second = follow(tmp_path)
    second.poll()
    assert [record["iter"] for record in parsed] == [110]
    assert first.run_log is not None
    assert second.run_log is not None
    assert second.run_log.steps.loss[:-1].tolist() == first.run_log.steps.loss.tolist()


def test_reading_stops_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgpt.runs import following

    monkeypatch.setattr(following, "_BLOCK_BYTES", 2000)
    append(tmp_path / journal.FILE_NAME, record_lines(own_records(200)))
    followed = FollowedRun(str(tmp_path), clock=Clock(cost=1.0), wall_clock=lambda: 1001.0)
    shares = []
    while followed.read_share < 1.0:
        followed.poll(max_s=0.5)
        shares.append(followed.read_share)
    assert len(shares) > 2
    assert shares == sorted(shares)
    assert last_iteration(followed) == 200


def test_what_cannot_be_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress("\n".join(log_lines(300)).encode()))
    os.utime(path, (1000.0, 1000.0))
    clock = Clock()
    followed = FollowedRun(str(path), clock=clock, wall_clock=lambda: 1e9)
    assert followed.poll()
    assert last_iteration(followed) == 300
    path.write_bytes(gzip.compress("\n".join(log_lines(500)).encode()))
    clock.now += 100
    assert followed.poll()
    assert last_iteration(followed) == 500


def test_a_second_run_in_the_file_takes_over(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    append(path, log_lines(600))
    followed = follow(path)
    followed.poll()
    followed.refresh()
    append(path, log_lines(100))
    followed.poll()
    assert (last_iteration(followed), followed.generation) == (100, 1)


def test_no_file_and_no_log(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        follow(tmp_path / "missing.log").poll()
    path = tmp_path / "poem.txt"
    append(path, ["Shall I compare thee", "to a summer's day"], at=1.0)
    followed = follow(path, now=1e9)
    followed.poll()
    with pytest.raises(UserError, match="not a training log"):
        followed.run_log  # noqa: B018


def test_the_program_that_writes_it_is_known(tmp_path: Path) -> None:
    path, is_running = tmp_path / "output.log", [True]
    append(path, log_lines(300))
    followed = FollowedRun(str(path), is_writing=lambda: is_running[0], wall_clock=lambda: 1e9)
    followed.poll()
    assert followed.is_live
    is_running[0] = False
    assert followed.poll()
    assert not followed.is_live


def test_explaining_takes_a_tenth_of_the_time(tmp_path: Path) -> None:
    path, clock = tmp_path / "train.log", Clock()
    append(path, log_lines(300))
    followed = FollowedRun(str(path), clock=clock, wall_clock=lambda: 1001.0)
    followed.poll()
    assert followed.refresh()
    assert not followed.refresh()  # nothing is new
    append(path, log_lines(400, 310)[2:])
    followed.poll()
    assert not followed.refresh()  # too early
    assert followed.refresh(force=True)
    append(path, log_lines(500, 410)[2:])
    followed.poll()
    clock.now += 2.1
    assert followed.refresh()


# --- what one reader is sent ---


def events(stream: RunStream) -> list[PageEvent]:
    return list(stream.tick())


def names(sent: Sequence[PageEvent]) -> list[str]:
    return [event.name for event in sent]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_rows_since_a_cursor_join_to_all_rows(lengths: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        append(path, log_lines(0))
        followed = follow(path)
        followed.poll()
        assert followed.run_log is not None
        rows = rows_of(followed.run_log)
        stream = RunStream(followed, str(cursor_of(followed)))
        assert events(stream) == []
        last = 0
        for length in lengths:
            append(path, log_lines(last + 10 * min(length, 40), last + 10)[2:])
            last += 10 * min(length, 40)
            followed.poll()
            sent = events(stream)
            assert set(names(sent)) == {"append"}
            for event in sent:
                rows.setdefault(event.data["series"], []).extend(event.data["rows"])
        assert followed.run_log is not None
        assert rows == rows_of(followed.run_log)


def test_a_tick_sends_at_most_fifty_rows_and_no_spike_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    append(path, log_lines(0))
    followed = follow(path)
    followed.poll()
    stream = RunStream(followed, str(cursor_of(followed)))
    lines = [f"iter {at}: loss 2.0000, time 100.00ms, mfu 2.21%" for at in range(1, 2000)]
    lines[777] = "iter 778: loss 9.0000, time 100.00ms, mfu 2.21%"
    append(path, lines)
    followed.poll()
    (loss,) = [event for event in events(stream) if event.data["series"] == "loss"]
    assert 20 <= len(loss.data["rows"]) <= 50
    assert max(row[-1] for row in loss.data["rows"]) == 9.0


def test_a_resume_supersedes_what_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    append(path, record_lines(own_records(100)))
    followed = follow(tmp_path)
    followed.poll()
    assert followed.run_log is not None
    rows = rows_of(followed.run_log)["loss"]
    stream = RunStream(followed, str(cursor_of(followed)))
    names(events(stream))
    again = [journals.resume(50, 1), journals.run(200, 1)]
    again[1]["iter"] = 50
    append(path, record_lines([*again, *(journals.step(at, 1, loss=1.0) for at in (60, 70))]))
    followed.poll()
    sent = events(stream)
    assert (sent[0].name, sent[0].data) == ("supersede", {"from_iter": 50})
    rows = [row for row in rows if (row[0] or 0) <= 50]
    rows += next(event.data["rows"] for event in sent if event.data.get("series") == "loss")
    whole = [row for row in rows_of(followed.run_log)["loss"] if row[1] is not None]
    assert [row for row in rows if row[1] is not None] == whole
    assert [row[0] for row in whole] == [1, 10, 20, 30, 40, 50, 60, 70]


def test_a_replaced_file_resets_the_page(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    append(path, log_lines(300))
    followed = follow(path)
    followed.poll()
    stream = RunStream(followed, str(cursor_of(followed)))
    path.unlink()
    append(path, log_lines(100))
    followed.poll()
    assert names(events(stream)) == ["reset"]
    assert events(stream) == []
    assert names(events(RunStream(followed, "nonsense"))) == ["reset"]
    assert events(RunStream(followed, stream.cursor)) == []


def test_only_what_changed_of_the_view_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    append(path, log_lines(300))
    followed = follow(path)
    followed.poll()
    view = {"sentence": "a", "panels": [1, 2], "tables": [3]}
    stream = RunStream(followed, str(cursor_of(followed)), view)
    assert list(stream.tick(view)) == []
    (event,) = stream.tick({**view, "sentence": "b"})
    assert (event.name, event.data) == ("summary", {"sentence": "b"})


def test_large_parts_of_the_view_wait_their_turn(tmp_path: Path) -> None:
    path, clock = tmp_path / "train.log", Clock()
    append(path, log_lines(300))
    followed = follow(path)
    followed.poll()
    stream = RunStream(followed, str(cursor_of(followed)), {}, clock)
    sent = []
    for number in range(60):
        clock.now += 1.0
        view = {"sentence": f"{number}", "panels": f"{number}" * 3000, "ledger": f"{number}" * 9000}
        sent += [event.data.keys() for event in stream.tick(view)]
    counts = {name: sum(name in one for one in sent) for name in ("sentence", "panels", "ledger")}
    assert counts["sentence"] == 60
    assert 2 <= counts["panels"] <= 6
    assert 1 <= counts["ledger"] <= 2
    assert not any({"panels", "ledger"} <= one for one in sent)


def test_the_end_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    append(path, log_lines(300), at=1.0)
    followed = follow(path, now=1e9)
    followed.poll()
    stream = RunStream(followed, str(cursor_of(followed)))
    (event,) = events(stream)
    assert (event.name, event.data) == ("end", {"reason": "cut"})
    assert events(stream) == []


def test_the_demo_is_over() -> None:
    followed = FollowedRun("demo:gpu")
    assert followed.poll()
    assert not followed.is_live
    assert last_iteration(followed) == read_run_log("demo:gpu").steps.iteration[-1]
