"""Whatever stands between the lines of a log, or was done to all of them, its facts stay the same."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from dirt import NOISE, STAMPS, TEXT_DIRT, Dirt, coloured, crlf, notebook, of_two_ranks, twice
from hypothesis import given, settings
from hypothesis import strategies as st
from log_checks import ExpectedLog, check_facts, expected_facts, nearly_equal, parse_facts, parse_log
from printed import SyntheticRun
from printed_more import every_trainer

from glassgpt.runs.analysis import Analysis
from glassgpt.runs.lines import read_lines
from glassgpt.runs.recognise import read_log

COURSE = SyntheticRun(updates=43, eval_every=10)
TRAINERS = every_trainer(COURSE)
NAMES = sorted(TRAINERS)
# These count their lines, so what is printed twice is there twice.
UNNUMBERED = {name for name in NAMES if name.startswith("trainer")}

courses = st.builds(
    SyntheticRun,
    updates=st.integers(22, 60),
    eval_every=st.sampled_from((5, 7, 9)),
    seed=st.integers(0, 1000),
    base_ms=st.sampled_from((2.5, 100.0, 3000.0)),
).filter(lambda course: (course.updates - 1) % course.eval_every != 0)


def read_bytes(data: bytes) -> dict[str, object]:
    return Analysis(read_log(read_lines(io.BytesIO(data)), "run.log")).facts.as_dict()


def check_bytes(data: bytes, expected: ExpectedLog) -> None:
    got = read_bytes(data)
    wrong = {
        name: (got[name], want)
        for name, want in expected_facts(expected).items()
        if not nearly_equal(got[name], want)
    }
    assert wrong == {}, f"got, wanted: {wrong}"


def test_the_facts_of_a_clean_log(subtests: pytest.Subtests) -> None:
    for name, expected in TRAINERS.items():
        with subtests.test(name):
            assert parse_log(expected.text).trainer.id == expected.format
            check_facts(expected.text, expected)


@settings(max_examples=12, deadline=None)
@given(courses, st.sampled_from(NAMES))
def test_the_facts_of_any_course(course: SyntheticRun, name: str) -> None:
    expected = every_trainer(course)[name]
    check_facts(expected.text, expected)


@settings(max_examples=12, deadline=None)
@given(st.integers(3, 40), st.sampled_from(NAMES))
def test_the_first_nan_is_found(nan_from: int, name: str) -> None:
    expected = every_trainer(replace(COURSE, nan_from=nan_from))[name]
    check_facts(expected.text, expected)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 10**6), st.integers(1, 30))
def test_noise_between_lines_changes_nothing(name: str, seed: int, amount: int) -> None:
    expected, dice = TRAINERS[name], random.Random(seed)
    lines = expected.lines
    for _ in range(amount):
        lines.insert(dice.randrange(len(lines) + 1), dice.choice(NOISE))
    check_facts("".join(f"{line}\n" for line in lines), expected)


def test_every_kind_of_noise_after_every_line_changes_nothing(subtests: pytest.Subtests) -> None:
    for name, expected in TRAINERS.items():
        with subtests.test(name):
            check_facts("".join("\n".join((line, *NOISE, "")) for line in expected.lines), expected)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_a_log_that_stops_says_what_it_says_up_to_there(name: str, data: st.DataObject) -> None:
    expected = TRAINERS[name]
    last = max(at for at, part in enumerate(expected.parts) if part.row)  # with it, the plan is fulfilled
    expected = expected.truncated(data.draw(st.integers(len(expected.parts) // 2, last - 1)))
    check_facts(expected.text, expected)


@pytest.mark.parametrize("dirt", [*TEXT_DIRT.values(), notebook, twice], ids=lambda dirt: dirt.__name__)
def test_dirt_changes_nothing(dirt: Dirt, subtests: pytest.Subtests) -> None:
    for name, expected in TRAINERS.items():
        if dirt is of_two_ranks and name == "trainer with bars":
            continue  # a bar is drawn by one rank only
        if dirt is twice and name in UNNUMBERED:
            continue
        with subtests.test(name):
            check_facts(dirt(expected.text), expected)


@pytest.mark.parametrize("stamp", STAMPS)
def test_what_stands_in_front_of_every_line_changes_nothing(stamp: str, subtests: pytest.Subtests) -> None:
    for name, expected in TRAINERS.items():
        # An evaluation off the grid tells the end of a log, but not of an excerpt.
        unsure = stamp == "fenced" and expected.format == "build-nanogpt"
        with subtests.test(name):
            check_facts(STAMPS[stamp](expected.text), expected, ignoring=("ended",) if unsure else ())


BYTES: dict[str, Callable[[str], bytes]] = {
    "crlf": lambda text: crlf(text).encode(),
    "coloured": lambda text: coloured(text).encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "utf-8-sig": lambda text: text.encode("utf-8-sig"),
    "utf-16": lambda text: text.encode("utf-16"),
    "utf-16-le": lambda text: text.encode("utf-16-le"),
    "utf-16-be": lambda text: text.encode("utf-16-be"),
}


@pytest.mark.parametrize("form", BYTES)
def test_line_ends_colours_and_encodings(form: str, subtests: pytest.Subtests) -> None:
    for name, expected in TRAINERS.items():
        with subtests.test(name):
            check_bytes(BYTES[form](expected.text), expected)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_a_line_cut_in_the_middle_says_nothing_wrong(name: str, data: st.DataObject) -> None:
    """Each fact is as without the line, or as with all of it, as far as the digits go."""
    expected = TRAINERS[name]
    telling = [at for at, part in enumerate(expected.parts) if part.row or part.eval or part.save is not None]
    at = data.draw(st.sampled_from(telling[5:]))
    before, line = expected.truncated(at).text, expected.parts[at].text
    cut = data.draw(st.integers(1, len(line)))
    got, without, whole = (parse_facts(before + line[:end]).as_dict() for end in (cut, 0, len(line)))
    for fact in (
        "best_val_loss",
        "final_val_loss",
        "loss_last",
        "last_iteration",
        "checkpoint_steps",
        "steady_ms",
    ):
        assert nearly_equal(got[fact], without[fact]) or close(got[fact], whole[fact]), (fact, line[:cut])


def close(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-3 * abs(other)
    return one == other
