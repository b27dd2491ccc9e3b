"""What is written comes back, whatever happens in between; what is not whole is passed over."""

from __future__ import annotations

import json
import math
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.account.journal import Journal, Record, current, encode, loads, read

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
    line = encode(record)
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
    (tmp_path / "j").write_bytes(encode(step(1, text=text)))
    assert next(read(tmp_path / "j"))["text"] == text


def test_floats_are_not_rounded(tmp_path: Path) -> None:
    loss = 3.1837449073791504
    (tmp_path / "j").write_bytes(encode(step(1, loss=loss)))
    assert next(read(tmp_path / "j"))["loss"] == loss


def test_a_line_torn_anywhere_loses_itself_only_and_the_next_one_is_fresh(tmp_path: Path) -> None:
    whole = [step(1, loss=math.nan), step(2, text="Ünïcode \n\x1b"), step(3, loss=0.5, list=[{"a": 1}])]
    lines = [encode(record) for record in whole]
    raw = b"".join(lines)
    ends = [sum(map(len, lines[: n + 1])) - 1 for n in range(3)]  # a record is whole without its newline
    path = tmp_path / "journal.jsonl"
    for cut in range(len(raw) + 1):
        path.write_bytes(raw[:cut])
        kept = whole[: sum(end <= cut for end in ends)]
        assert same(list(read(path)), kept)
        journal = Journal(path)
        journal.write(step(9))
        journal.close()
        assert same(list(read(path)), [*kept, step(9)])
        assert path.read_bytes().startswith(raw[:cut])  # what was there is never damaged
        assert b"\n\n" not in path.read_bytes()


def test_reading_while_it_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    last = 400

    def write() -> None:
        for number in range(last):
            journal.write(step(number, text="x" * (number % 50)))

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while seen < last:
        alive = writer.is_alive()
        found = [record["iter"] for record in read(path)]
        assert found == list(range(len(found)))
        assert len(found) >= seen
        seen = len(found)
        assert alive or seen == last
    writer.join()
    journal.close()


def test_a_record_is_in_the_file_before_write_returns(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.write(step(1))
    assert (tmp_path / "j").read_bytes() == encode(step(1))
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
def test_garbage_is_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode(step(1)) + line + b"\n" + encode(step(2)))
    assert list(read(path)) == [step(1), step(2)]


@few
@given(st.binary(max_size=60))
def test_any_bytes_are_passed_over(noise: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "j")
        path.write_bytes(encode(step(1)) + noise + b"\n" + encode(step(2)))
        assert list(read(path)) == [step(1), step(2)]


def test_a_line_nested_beyond_the_parser_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode(step(1)) + b"[" * 100_000 + b"\n" + encode(step(2)))
    assert list(read(path)) == [step(1), step(2)]


@pytest.mark.parametrize(
    "line", [b'{"kind":[],"iter":1}', b'{"kind":"step","iter":"x"}', b'{"kind":1,"iter":1}']
)
def test_a_record_whose_kind_is_no_word_or_iter_no_number_is_passed_over(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "j").write_bytes(line + b"\n")
    assert list(read(tmp_path / "j")) == []


def test_reading_never_executes_anything(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    code = f"__import__('pathlib').Path('{victim}').touch()"
    path = tmp_path / "journal.jsonl"
    lines = [
        code.encode(),
        encode(step(1, text=code, __class__="os.system", __reduce__=["os.system", f"touch {victim}"])),
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


def test_a_resume_takes_back_what_lies_past_it() -> None:
    first = [of("run", 0), of("step", 1), of("eval", 2), of("step", 2), of("step", 3), of("checkpoint", 3)]
    end = of("end", 4, reason="interrupted")
    again = [of("run", 2, 1), of("resume", 2, 1, from_iter=2), of("step", 3, 1)]
    assert current([*first, of("step", 4), end, *again]) == [*first[:4], end, *again]


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
    kept = [(record["kind"], record["iter"], record["process"]) for record in current(records)]
    assert kept == [
        ("run", 0, 0),
        ("run", 1, 1),
        ("resume", 1, 1),
        ("run", 0, 2),
        ("resume", 0, 2),
        ("step", 1, 2),
    ]


def test_without_a_resume_everything_counts() -> None:
    records = [of("run", 0), of("step", 2), of("step", 1)]
    assert current(iter(records)) == records


@few
@given(st.lists(st.integers(0, 6) | st.tuples(st.integers(0, 6)), max_size=20))
def test_steps_that_count_never_run_backwards(story: list[int | tuple[int]]) -> None:
    """A run that goes forward, and is resumed (the tuples) from anywhere at or before where it was."""
    records, done = [], 0
    for event in story:
        if isinstance(event, tuple):
            done = min(done, event[0])
            records.append(of("resume", done, from_iter=done))
        else:
            done += 1
            records.append(of("step", done))
    steps = [record["iter"] for record in current(records) if record["kind"] == "step"]
    assert steps == list(range(1, done + 1))


def test_an_integer_that_no_float_holds_is_infinite() -> None:
    assert loads('{"a": 1, "b": [-%s], "c": %s}' % ("9" * 400, "9" * 200)) == {  # noqa: UP031
        "a": 1,
        "b": [-math.inf],
        "c": 10**200 - 1,
    }
