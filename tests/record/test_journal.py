"""Every record that was written can be read, whatever happens in between; torn lines are skipped."""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.record import journal
from glassgpt.record.journal import (
    Journal,
    Record,
    RunSuperseded,
    effective_records,
    encode_line,
    loads,
    read,
    read_backwards,
)

few = settings(max_examples=60, deadline=None)


def step(iteration: int, **more: Any) -> Record:
    return {"kind": "step", "time": 1.5, "process": 0, "iter": iteration} | more


def same(a: Any, b: Any) -> bool:
    """Equal, where NaN equals NaN, a tuple equals a list, and -0.0 is not 0.0."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def strictly(line: bytes) -> Any:
    """As a JSON parser that knows no NaN reads it."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


words = st.text(max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | words | st.sampled_from(["nan", "inf"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(words.map(lambda w: f"_{w}"), inner, max_size=3)
    ),
    max_leaves=6,
)
records = st.builds(
    lambda more, loss, i: step(i) | {"more": more, "loss": loss}, values, st.floats(), st.integers(0, 2**40)
)


@few
@given(st.lists(records, max_size=4))
def test_everything_comes_back_and_is_strict_json(written: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.jsonl")
        journal = Journal(path)
        for record in written:
            journal.write(record)
        journal.close()
        lines = path.read_bytes().splitlines(keepends=True)
        assert len(lines) == len(written)
        assert all(isinstance(strictly(line), dict) for line in lines)
        assert all(line.endswith(b"\n") and line.isascii() for line in lines)
        assert same(list(read(path)), written)


def test_nan_and_infinities_are_words_in_the_file(tmp_path: Path) -> None:
    norms = [math.inf, 1.0, -math.inf]
    record = step(1, loss=math.nan, recent_grad_norms=norms, deep={"a": [{"stderr": math.nan}]})
    line = encode_line(record)
    fields = strictly(line)
    assert (fields["loss"], fields["recent_grad_norms"], fields["deep"]) == (
        "nan",
        ["inf", 1.0, "-inf"],
        {"a": [{"stderr": "nan"}]},
    )
    (tmp_path / "j").write_bytes(line)
    assert same(list(read(tmp_path / "j")), [record])


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_text_stays_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "j").write_bytes(encode_line(step(1, text=text)))
    assert next(read(tmp_path / "j"))["text"] == text


def test_floats_are_not_rounded(tmp_path: Path) -> None:
    loss = 3.1837449073791504
    (tmp_path / "j").write_bytes(encode_line(step(1, loss=loss)))
    assert next(read(tmp_path / "j"))["loss"] == loss


def test_a_line_torn_anywhere_loses_itself_only_and_the_next_one_is_fresh(tmp_path: Path) -> None:
    whole = [step(1, loss=math.nan), step(2, text="Ünïcode \n\x1b"), step(3, loss=0.5, list=[{"a": 1}])]
    lines = [encode_line(record) for record in whole]
    raw = b"".join(lines)
    ends = [sum(map(len, lines[: n + 1])) - 1 for n in range(3)]  # a record is whole without its newline
    path = tmp_path / "journal.jsonl"
    for cut in range(len(raw) + 1):
        path.write_bytes(raw[:cut])
        intact = whole[: sum(end <= cut for end in ends)]
        assert same(list(read(path)), intact)
        journal = Journal(path)
        journal.write(step(9))
        journal.close()
        assert same(list(read(path)), [*intact, step(9)])
        assert path.read_bytes().startswith(raw[:cut])  # what was there is never damaged
        assert b"\n\n" not in path.read_bytes()


def test_reading_while_it_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    last = 400

    def write() -> None:
        for number in range(last):
            journal.write(step(number, text="x" * (number % 50)))

    thread = threading.Thread(target=write)
    thread.start()
    seen = 0
    while seen < last:
        alive = thread.is_alive()
        iters_read = [record["iter"] for record in read(path)]
        assert iters_read == list(range(len(iters_read)))
        assert len(iters_read) >= seen
        seen = len(iters_read)
        assert alive or seen == last
    thread.join()
    journal.close()


def test_a_record_is_in_the_file_before_write_returns(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.write(step(1))
    assert (tmp_path / "j").read_bytes() == encode_line(step(1))
    journal.close()


GARBAGE = [
    b"",
    b"\0\0\0\0",
    b"\xff\xfe\xfa",
    b"not json",
    b"{",
    b"}",
    b"[]",
    b"3",
    b'"step"',
    b"null",
    b'{"kind": "step"}',
    b'{"iter": 3}',
    b'{"kind": "step", "iter": 1}{"kind": "step", "iter": 2}',
    b"9" * 5000,
    "{“kind”: 1}".encode(),
    b'{"kind": "step", "iter": 1, "x": "\xff"}',
]


@pytest.mark.parametrize("line", GARBAGE)
def test_garbage_is_skipped(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode_line(step(1)) + line + b"\n" + encode_line(step(2)))
    assert list(read(path)) == [step(1), step(2)]


@few
@given(st.binary(max_size=60))
def test_any_bytes_are_skipped(noise: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "j")
        path.write_bytes(encode_line(step(1)) + noise + b"\n" + encode_line(step(2)))
        assert list(read(path)) == [step(1), step(2)]


def test_a_line_nested_beyond_the_parser_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode_line(step(1)) + b"[" * 100_000 + b"\n" + encode_line(step(2)))
    assert list(read(path)) == [step(1), step(2)]


@pytest.mark.parametrize(
    "line", [b'{"kind":[],"iter":1}', b'{"kind":"step","iter":"x"}', b'{"kind":1,"iter":1}']
)
def test_a_record_whose_kind_is_no_word_or_iter_no_number_is_skipped(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "j").write_bytes(line + b"\n")
    assert list(read(tmp_path / "j")) == []


def test_reading_never_executes_anything(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    code = f"__import__('pathlib').Path('{victim}').touch()"
    path = tmp_path / "journal.jsonl"
    lines = [
        code.encode(),
        encode_line(step(1, text=code, __class__="os.system", __reduce__=["os.system", f"touch {victim}"])),
        b'!!python/object/apply:os.system ["touch ' + str(victim).encode() + b'"]',
        b"cos\nsystem\n(S'touch " + str(victim).encode() + b"'\ntR.",
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    (only,) = read(path)
    assert only["text"] == code
    assert not victim.exists()


def test_an_empty_journal_has_no_records(tmp_path: Path) -> None:
    Journal(tmp_path / "j").close()
    assert (tmp_path / "j").read_bytes() == b""
    assert list(read(tmp_path / "j")) == []


def test_what_cannot_be_json_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    with pytest.raises(TypeError):
        journal.write(step(1, what=object()))
    journal.write(step(2))
    journal.close()
    assert [record["iter"] for record in read(tmp_path / "j")] == [2]


# --- what still counts


def of(kind: str, iteration: int, process: int = 0, **more: Any) -> Record:
    return {"kind": kind, "iter": iteration, "process": process} | more


def test_a_resume_supersedes_what_lies_past_it() -> None:
    first = [of("run", 0), of("step", 1), of("eval", 2), of("step", 2), of("step", 3), of("checkpoint", 3)]
    end = of("end", 4, reason="interrupted")
    again = [of("run", 2, 1), of("resume", 2, 1, from_iter=2), of("step", 3, 1)]
    assert effective_records([*first, of("step", 4), end, *again]) == [*first[:4], end, *again]


def test_a_resume_of_a_resume() -> None:
    records = [
        of("run", 0),
        of("step", 1),
        of("step", 5),
        of("run", 1, 1),
        of("resume", 1, 1, from_iter=1),
        of("step", 3, 1),
        of("run", 0, 2),
        of("resume", 0, 2, from_iter=0),
        of("step", 1, 2),
    ]
    effective = [(record["kind"], record["iter"], record["process"]) for record in effective_records(records)]
    assert effective == [
        ("run", 0, 0),
        ("run", 1, 1),
        ("resume", 1, 1),
        ("run", 0, 2),
        ("resume", 0, 2),
        ("step", 1, 2),
    ]


def test_without_a_resume_every_record_is_effective() -> None:
    records = [of("run", 0), of("step", 2), of("step", 1)]
    assert effective_records(iter(records)) == records


@few
@given(st.lists(st.integers(0, 6) | st.tuples(st.integers(0, 6)), max_size=20))
def test_effective_steps_never_run_backwards(story: list[int | tuple[int]]) -> None:
    """A run that goes forward, and is resumed (the tuples) from anywhere at or before where it was."""
    records, done = [], 0
    for event in story:
        if isinstance(event, tuple):
            done = min(done, event[0])
            records.append(of("resume", done, from_iter=done))
        else:
            done += 1
            records.append(of("step", done))
    steps = [record["iter"] for record in effective_records(records) if record["kind"] == "step"]
    assert steps == list(range(1, done + 1))


# --- from the end ---


@few
@given(
    st.lists(
        st.sampled_from(
            [encode_line(step(1, text="x" * 50)), encode_line(step(2)), b"\n", b'{"kind":"st', b"\0" * 70]
        )
    ),
    st.integers(1, 200),
)
def test_backwards_it_is_the_same_records(pieces: list[bytes], block: int) -> None:
    """Whole lines, torn ones, empty ones and holes, cut anywhere by the blocks that are read."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_READ_BLOCK_BYTES", block)
        path = Path(folder) / "journal.jsonl"
        path.write_bytes(b"".join(pieces))
        assert list(read_backwards(path)) == list(read(path))[::-1]


def test_an_endless_line_is_skipped_backwards_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning alone would be a whole record, if its end were dropped without a trace."""
    monkeypatch.setattr(journal, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(journal, "_READ_BLOCK_BYTES", 300)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(
        encode_line(step(1)) + encode_line(step(2)).rstrip() + b" " * 5000 + b"\n" + encode_line(step(3))
    )
    assert [record["iter"] for record in read_backwards(path)] == [3, 1]


# --- a file that another process or program writes to ---


def by(start: str, iteration: int, process: int = 0, kind: str = "step") -> Record:
    return step(iteration) | {"kind": kind, "process": process, "start": start}


def iters(path: Path) -> list[int]:
    return [record["iter"] for record in read(path)]


def write(journal: Journal, record: Record) -> None:
    journal.check()
    journal.write(record)


def begun(path: Path, start: str = "aa", process: int = 0, count: int = 3) -> Journal:
    journal = Journal(path)
    for iteration in range(count):
        write(journal, by(start, iteration, process))
    return journal


def test_of_two_writers_the_later_start_stays(tmp_path: Path) -> None:
    for number, (older, later) in enumerate(
        ((("bb", 0), ("aa", 1)), (("aa", 1), ("bb", 1)), (("", 0), ("aa", 1)))
    ):
        path = tmp_path / str(number)
        one, other = begun(path, *older), begun(path, *later)
        before = path.read_bytes()
        for _ in range(2):
            with pytest.raises(RunSuperseded):
                write(one, by(older[0], 9, older[1]))
        assert path.read_bytes() == before
        one._file.write(encode_line(by(older[0], 8, older[1])))  # which had looked a moment too early
        write(other, by(later[0], 3, later[1]))
        assert iters(path) == [0, 1, 2, 0, 1, 2, 8, 3]


def test_lines_that_are_no_records_do_no_harm(tmp_path: Path) -> None:
    journal = begun(tmp_path / "j")
    for note in ("a note of mine\n", "{", "\n\n"):
        with (tmp_path / "j").open("a") as file:
            file.write(note)
        write(journal, by("aa", 3))
    assert (iters(tmp_path / "j"), journal.lost_reason) == ([0, 1, 2, 3, 3, 3], "")


def test_a_file_that_is_gone_or_another_is_noticed_and_all_of_it_is_kept(tmp_path: Path) -> None:
    def replace(path: Path) -> None:
        path.rename(path.with_suffix(".moved"))
        begun(path, "ff", 5, count=9).close()

    def overwrite(path: Path) -> None:
        path.write_bytes(encode_line(by("ff", 7)) * 9)

    def make_pipe(path: Path) -> None:
        path.rename(path.with_suffix(".moved"))
        os.mkfifo(path)

    changes: dict[str, Any] = {
        "deleted": Path.unlink,
        "moved": lambda path: path.rename(path.with_suffix(".moved")),
        "replaced": replace,
        "emptied": lambda path: path.write_bytes(b""),
        "overwritten": overwrite,
        "pipe": make_pipe,
    }
    for name, change in changes.items():
        path = tmp_path / name
        begun(path, "00", 0, count=2).close()
        journal = begun(path, "aa", 1)
        change(path)
        after = path.read_bytes() if path.is_file() else None
        write(journal, by("aa", 3, 1))
        assert journal.lost_reason, name
        write(journal, by("aa", 4, 1))
        assert (path.read_bytes() if path.is_file() else None) == after, name
        journal.move(tmp_path / f"{name}-rescued")
        write(journal, by("aa", 5, 1))
        assert not journal.lost_reason
        # Where the file itself was emptied, only what this process remembers is left.
        complete = [0, 1, 0, 1, 2, 3, 4, 5]
        expected = [0, 2, 3, 4, 5] if name in ("emptied", "overwritten") else complete
        assert iters(tmp_path / f"{name}-rescued") == expected, name


def test_a_file_that_an_editor_saved_is_continued(tmp_path: Path) -> None:
    """By a rename, so that the open file is not the one with the name any more; with or without changes."""
    for number, lines in enumerate((slice(None), slice(0, 3), slice(2, None), slice(0, -1))):
        path = tmp_path / str(number)
        journal = begun(path, count=5)
        (tmp_path / "edited").write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[lines]))
        (tmp_path / "edited").replace(path)
        for iteration in (5, 6, 7):
            write(journal, by("aa", iteration))
        assert iters(path) == ([2, 3, 4, 5, 6, 7] if number == 2 else list(range(8)))
        assert not journal.lost_reason


def test_what_an_earlier_start_wrote_after_the_next_one_is_not_effective() -> None:
    records = [by("aa", 0, 0, "run"), by("aa", 5), by("bb", 4, 1, "run"), by("aa", 6), by("bb", 5, 1)]
    assert effective_records(records) == [records[0], records[1], records[2], records[4]]
    without = [{name: value for name, value in record.items() if name != "start"} for record in records]
    assert effective_records(without) == without, "older versions did not say"


def test_an_integer_that_no_float_holds_is_infinite() -> None:
    assert loads('{"a": 1, "b": [-%s], "c": %s}' % ("9" * 400, "9" * 200)) == {  # noqa: UP031
        "a": 1,
        "b": [-math.inf],
        "c": 10**200 - 1,
    }


def test_a_line_is_decoded_the_same_whether_it_needs_care_or_not() -> None:
    """Nearly every line takes the fast decoder. Words of numbers, and huge integers, must not."""
    plain = {
        "kind": "step",
        "iter": 10**20,
        "time": 1.5,
        "loss": 2.0,
        "text": "nan",
        "phases": {"a": 299 * "9"},
    }
    assert journal.loads(json.dumps(plain)) == plain
    careful = {"losses": ["nan", "-inf"], "text": "inf", "nested": {"loss": "inf"}, "lr": 1}
    loaded = journal.loads(json.dumps(careful).encode())
    assert math.isnan(loaded["losses"][0])
    assert loaded["losses"][1] == -math.inf
    assert loaded["text"] == "inf"
    assert loaded["nested"]["loss"] == math.inf
    assert journal.loads('{"a": [-' + "7" * 400 + "]}") == {"a": [-math.inf]}
    assert journal.loads(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("sssserc"), st.integers(0, 3)), max_size=30))
def test_effective_records_backwards_are_the_same(story: list[tuple[int, str, int]]) -> None:
    kinds = {"s": "step", "e": "end", "r": "resume", "c": "checkpoint"}
    records: list[Record] = [
        {"kind": kinds[letter], "iter": at, "time": float(number), "start": f"{start}"}
        for number, (at, letter, start) in enumerate(story)
    ]
    starts = [record for record in records if record["kind"] == "resume"]
    backwards = journal.stream_effective_records_backwards(starts, reversed(records))
    assert list(backwards) == journal.effective_records(records)[::-1]


def test_reading_all_but_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written = Journal(path)
    kinds = ["run", "step", "eval", "step", "resume", "step", "end"]
    for number, kind in enumerate(kinds):
        written.write({"kind": kind, "iter": number, "time": 0.0, "text": "a step"})
    written.close()
    assert [one["kind"] for one in journal.read(path, but_steps=True)] == ["run", "eval", "resume", "end"]
    assert [one["iter"] for one in journal.read_starts(path)] == [0, 4]
