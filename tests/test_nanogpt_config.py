"""nanoGPT's config files: they mean here what they mean to Python, and nothing in them is ever run."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from glassgpt.errors import UserError
from glassgpt.nanogpt_config import FileSetting, read_python_settings

many = settings(max_examples=200, deadline=None)

BEFORE: dict[str, Any] = {
    "out_dir": "out",
    "max_iters": 600_000,
    "lr_decay_iters": 600_000,
    "learning_rate": 6e-4,
    "min_lr": 6e-5,
    "wandb_project": "",
    "wandb_run_name": "",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for all, written anew each time; hypothesis runs many examples per test."""
    return tmp_path_factory.mktemp("config") / "train_mine.py"


def read(path: Path, text: str | bytes) -> tuple[dict[str, FileSetting], list[str]]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    found, problems = read_python_settings(path, BEFORE)
    assert all(f"{path}, line {problem.line}: `" in problem.text for problem in problems)
    return found, [problem.text for problem in problems]


def values(path: Path, text: str) -> dict[str, Any]:
    found, problems = read(path, text)
    assert problems == []
    return {name: setting.value for name, setting in found.items()}


def complaint(path: Path, text: str | bytes) -> str:
    """The one thing that is wrong, be it a line or the whole file."""
    try:
        (problem,) = read(path, text)[1]
    except UserError as error:
        (problem,) = error.problems
    assert str(path) in problem
    return problem


# --- values


def same(one: Any, other: Any) -> bool:
    both_nan = one != one and other != other
    return type(one) is type(other) and (both_nan or (one == other and str(one) == str(other)))


numbers = st.integers(0, 60).map(str) | st.floats(0, 1e6).map(repr) | st.sampled_from(["True", "False"])
arithmetic = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(" ".join),
        st.tuples(inner, st.sampled_from(["0", "1", "2", "3", "-1", "0.5"])).map(" ** ".join),
        st.tuples(st.sampled_from(["-", "+", "not "]), inner).map("".join),
    ).map("({})".format),
    max_leaves=8,
)


@many
@given(arithmetic)
def test_arithmetic_gives_what_python_makes_of_it(path: Path, expression: str) -> None:
    found, problems = read(path, f"max_iters = {expression}")
    refusal = "".join(problems)
    assume("is too large" not in refusal and "makes a complex" not in refusal)  # where Python goes on
    try:
        expected = eval(expression, {"__builtins__": {}})  # noqa: S307 - made of numbers, above
    except ZeroDivisionError:
        assert "divides by zero" in refusal
        return
    assert refusal == ""
    assert same(found["max_iters"].value, expected)


texts = st.text(max_size=20).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))


FORMS = """f'{_text}-{_text!r:>30}{_whole:0{2 * 2}d}{_number:.2e}{_number=}' + _text + f"{'}'}{{" """


@many
@given(texts, st.integers(-999, 999), st.floats(-1e9, 1e9))
def test_texts_give_what_python_makes_of_them(path: Path, text: str, whole: int, number: float) -> None:
    names = {"_text": text, "_whole": whole, "_number": number}
    lines = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    expected = eval(FORMS, {"__builtins__": {}}, names)  # noqa: S307 - written above
    assert values(path, f"{lines}out_dir = {FORMS}") == {"out_dir": expected}


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Settings of which some are used by later ones, and some are set again."""
    lines: list[str] = []
    usable = ["learning_rate", "max_iters", "min_lr"]
    for _ in range(draw(st.integers(1, 8))):
        name = draw(st.sampled_from([*usable, "lr_decay_iters", "_helper"]))
        used = draw(st.sampled_from(usable))
        sign = draw(st.sampled_from("+-*"))
        lines.append(f"{name} = {used} {sign} {draw(st.integers(1, 9))}")
        usable.append(name)
    return "\n".join(lines)


@many
@given(programs())
def test_a_file_means_what_it_means_to_python(path: Path, program: str) -> None:
    after = dict(BEFORE)
    exec(program, {"__builtins__": {}}, after)  # noqa: S102 - made of settings, above
    found = values(path, program)
    assert {**BEFORE, **found} == {name: value for name, value in after.items() if name != "_helper"}


def test_every_setting_comes_with_its_line(path: Path) -> None:
    text = '"""About."""\r\nimport time\r\rmax_iters = (\n    5\n)\nmin_lr: float = 1e-4; out_dir = "a" "b"\n'
    assert read(path, text) == (
        {"max_iters": FileSetting(5, 4), "min_lr": FileSetting(1e-4, 7), "out_dir": FileSetting("ab", 7)},
        [],
    )


def test_the_last_of_two_assignments_wins(path: Path) -> None:
    found, _ = read(path, "max_iters = 1\nmax_iters = 2\n")
    assert found == {"max_iters": FileSetting(2, 2)}


def test_names_stand_for_what_they_are_at_that_line(path: Path) -> None:
    text = "max_iters = 10\nlr_decay_iters = max_iters\nmax_iters = 20\n"
    assert values(path, text) == {"max_iters": 20, "lr_decay_iters": 10}
    # nanoGPT runs a file among its own defaults
    assert values(path, "min_lr = learning_rate / 10") == {"min_lr": BEFORE["learning_rate"] / 10}


def test_helpers_are_no_settings(path: Path) -> None:
    text = "gpus = 8\n_note = 'mine'\nmax_iters = 5 * gpus\n"
    assert values(path, text) == {"max_iters": 40}
    assert values(path, "gpus = 1\ngpus = gpus + 1") == {}


def test_a_name_that_nothing_uses_is_handed_on_for_the_caller_to_refuse(path: Path) -> None:
    assert read(path, "\nmax_iter = 5\n") == ({"max_iter": FileSetting(5, 2)}, [])
    assert values(path, "_used = 1\nmin_lr = _used\ngpus = 8") == {"min_lr": 1, "gpus": 8}


# --- run names


@pytest.mark.parametrize("name", ["wandb_run_name", "wandb_project"])
def test_a_computed_run_name_is_kept_as_it_is_written(path: Path, name: str) -> None:
    assert values(path, f'import time\n{name} = "é-" + str(time.time())  # now') == {
        name: '"é-" + str(time.time())'
    }
    assert values(path, f"{name} = (\n    'a'\n    + now()\n)") == {name: "'a' + now()"}
    assert values(path, f"{name} = 'a' + 'b'") == {name: "ab"}


def test_the_source_of_a_run_name_does_not_get_into_other_settings(path: Path) -> None:
    text = "wandb_run_name = 'a'\nwandb_run_name = now()\nout_dir = 'out-' + wandb_run_name"
    assert "line 3: `out_dir = 'out-' + wandb_run_name` needs the value of `wandb_run_name`" in complaint(
        path, text
    )


# --- imports


def test_imports_are_let_through_and_import_nothing(path: Path, subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "import time",
        "import os, math",
        "import a_module_that_does_not_exist.at_all as x",
        "from datetime import datetime",
        "from __future__ import annotations",
        "from . import x",
    ]
    for line in cases:
        with subtests.test(line):
            loaded = set(sys.modules)
            assert values(path, f"{line}\nmax_iters = 1") == {"max_iters": 1}
            assert set(sys.modules) == loaded


@pytest.mark.parametrize("line", ["from base import *", "from base import max_iters", "import x as min_lr"])
def test_an_import_that_would_set_something_is_refused(path: Path, line: str) -> None:
    assert f"line 2: `{line}` would take settings from another file" in complaint(path, f"\n{line}")


def test_an_imported_name_has_no_value(path: Path) -> None:
    found = complaint(path, "gpus = 8\nfrom cluster import gpus\nmax_iters = gpus * 2")
    assert "line 3: `max_iters = gpus * 2` needs the value of `gpus`, which is not known here" in found


# --- what is refused


TO_BE_RUN = [
    "open('victim', 'w')",
    "max_iters = open('victim', 'w')",
    "max_iters = __import__('os').system('touch victim')",
    "max_iters = [open(name, 'w') for name in ['victim']]",
    "max_iters = len({open(name, 'w') for name in ['victim']})",
    "max_iters = (lambda: open('victim', 'w'))()",
    "max_iters = 1 if open('victim', 'w') else 2",
    "max_iters = True or open('victim', 'w')",
    "out_dir = f\"{open('victim', 'w')}\"",
    "out_dir = f\"{1:{open('victim', 'w')}}\"",
    "max_iters: open('victim', 'w')",
    "max_iters += int(open('victim', 'w').name)",
    "max_iters = (_f := open('victim', 'w'))",
    "if open('victim', 'w'): pass",
    "for _f in open('victim', 'w'): pass",
    "while open('victim', 'w'): pass",
    "with open('victim', 'w') as _f: pass",
    "def _f(x=open('victim', 'w')): pass",
    "class _F(open('victim', 'w')): pass",
    "try: open('victim', 'w')\nfinally: pass",
    "assert open('victim', 'w')",
    "raise open('victim', 'w')",
    "del open('victim', 'w').name",
    "exec(\"open('victim', 'w')\")",
    "out_dir = __file__",
    "out_dir = str(5)",
    "max_iters = ~5",
    "max_iters = 1 < 2",
    "max_iters = 5 << 2",
    "max_iters = [5]",
    "max_iters = (5,)",
    "max_iters = {'a': 5}",
    "max_iters = math.pi",
    "max_iters = lr_decay_iters = 5",
    "max_iters, min_lr = 5, 1",
    "(max_iters) = *[5],",
    "max_iters.value = 5",
    "max_iters[0] = 5",
    "max_iters: int",
    "max_iters -= 1",
    "max_iters",
    "f'{max_iters}'",
    "5",
    "pass",
]


def test_what_would_have_to_be_run_is_refused_with_its_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.chdir(path.parent)
    for line in TO_BE_RUN:
        with subtests.test(line):
            problem = complaint(path, f"# first\n\n{line}\n")
            quote = line.replace("\n", " ")
            assert problem.startswith(f"{path}, line 3: `{quote if len(quote) <= 60 else quote[:59] + '…'}` ")
            assert problem.endswith("; write the value itself, or leave the line out")
            assert not Path("victim").exists()


def test_decorators_and_annotations_are_not_run_either(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    assert "line 2: `def f(): pass`" in complaint(path, "@open('victim', 'w').write\ndef f(): pass\n")
    assert values(path, "max_iters: open('victim', 'w') = 5") == {"max_iters": 5}
    assert values(path, "wandb_run_name = open('victim', 'w').name") != {}
    assert not Path("victim").exists()


def test_what_has_no_value_is_refused_with_the_reason(path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("1 / 0", "divides by zero"),
        ("1 // 0.0", "divides by zero"),
        ("5 % 0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("(-8) ** 0.5", "makes a complex"),
        ("5j", "makes a complex"),
        ("b'a'", "makes a bytes"),
        ("...", "makes a ellipsis"),
        ("'a' * 3", "does arithmetic on something that is not a number"),
        ("'%d' % 3", "does arithmetic on something that is not a number"),
        ("'a' + 3", "does arithmetic on something that is not a number"),
        ("-'a'", "does arithmetic on something that is not a number"),
        ("None + 1", "does arithmetic on something that is not a number"),
        ("unheard_of", "needs the value of `unheard_of`, which is not known here"),
        ("f'{1:x y}'", "has an invalid format"),
        ("f'{None:5}'", "has an invalid format"),
        ("f'{-1:c}'", "has an invalid format"),
    ]
    for expression, reason in cases:
        with subtests.test(expression):
            assert f"line 1: `max_iters = {expression}` {reason}" in complaint(
                path, f"max_iters = {expression}"
            )


def test_every_problem_is_reported_at_once(path: Path) -> None:
    text = "max_iters = int(5)\nprint(1)\nunheard_of = f()\nmin_lr = 1 / 0\nout_dir = 'fine'\n"
    found, problems = read(path, text)
    assert [
        "line 1" in problems[0],
        "line 2" in problems[1],
        "line 3" in problems[2],
        "line 4" in problems[3],
    ]
    assert len(problems) == 4
    assert found == {"unheard_of": FileSetting(None, 3), "out_dir": FileSetting("fine", 5)}


# --- files made to break something


BOMBS = {
    "a tower of powers": "max_iters = 9**9**9",
    "a tower of powers, negative": "max_iters = 9**-9**9**9",
    "a float beyond floats": "max_iters = 9.0**9**9",
    "a power of a power": "_a = 2**200\nmax_iters = _a**_a",
    "a long text": "out_dir = 'a' * 10**9",
    "a wide form": "out_dir = f'{1:1000000000}'",
    "a wide form, put together": "_w = 10**9\nout_dir = f'{1:{_w}}'",
    "a precise form": "out_dir = f'{1:.999999999f}'",
    "a text that doubles": "_a = 'aaaa'\n" + "_a = _a + _a\n" * 40,
    "a number that squares": "_a = 9\n" + "_a = _a * _a\n" * 40,
    "a form that doubles": "_a = 'aaaa'\n" + "_a = f'{_a}{_a}'\n" * 40,
    "digits": "max_iters = " + "9" * 90_000,
    "hexadecimal digits": "max_iters = 0x" + "f" * 90_000,
    "parentheses": "max_iters = " + "(" * 90_000,
    "brackets": "max_iters = " + "[" * 150 + "]" * 150,
    "signs": "max_iters = " + "-" * 90_000 + "1",
    "nots": "max_iters = " + "not " * 20_000 + "1",
    "a sum": "max_iters = " + "+".join(["1"] * 40_000),
    "a sum that can be parsed": "max_iters = " + "+".join(["1"] * 700) + "+f()",
    "attributes": "max_iters = a" + ".a" * 40_000,
    "calls": "max_iters = a" + "()" * 40_000,
    "lambdas": "max_iters = " + "lambda:" * 10_000 + "1",
    "targets": "a=" * 40_000 + "1",
    "a chain": "max_iters = " + "<".join(["1"] * 40_000),
    "elifs": "if 1:\n pass\n" + "elif 1:\n pass\n" * 3000,
    "a large file": "#" * 200_000,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_at_once(path: Path, bomb: str) -> None:
    begun = time.process_time()
    try:
        problems = read(path, BOMBS[bomb])[1]
    except UserError as error:
        problems = error.problems
    assert time.process_time() - begun < 2.0  # a busy machine's seconds are long
    assert problems
    assert all(str(path) in problem and len(problem) < 500 for problem in problems)
    # The parser does not say at which line it gave up.
    assert "line " in problems[0] or bomb == "a large file" or "is nested too deeply" in problems[0]


def test_what_is_no_python_is_refused_with_its_line(path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[bytes, str]] = [
        (b"max_iters = 1\nmin_lr = = 2\n", "line 2: invalid syntax"),
        (b"a = 1\n  b = 2\n", "line 2: unexpected indent"),
        (b"a = 1\nb = 'no end\n", "line 2: unterminated string literal"),
        (b"a = (1\n", "line 1: '(' was never closed"),
        (b"a = 1\nb = 2\0\n", "line 2: this is not text in UTF-8"),
        (b"a = 1\nb = '\xff'\n", "line 2: this is not text in UTF-8"),
        ("max_iters = 1\n".encode("utf-16"), "line 1: this is not text in UTF-8"),
        (b"out_dir = '\\N{NO SUCH NAME}'", "line 1: (unicode error)"),
    ]
    for data, expected in cases:
        with subtests.test(repr(data)):
            assert complaint(path, data).startswith(f"{path}, {expected}")


def test_a_file_that_is_too_deep_for_the_parser_is_refused(path: Path) -> None:
    assert complaint(path, "min_lr = " + "-" * 50_000 + "1\n") == f"{path} is nested too deeply"


def test_a_file_that_is_not_there_or_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no config file"):
        read_python_settings(tmp_path / "none.py", BEFORE)
    with pytest.raises(UserError, match="cannot be read"):
        read_python_settings(tmp_path, BEFORE)
    with pytest.raises(UserError, match="cannot be read"):
        read_python_settings(Path("a\0.py"), BEFORE)


@pytest.mark.parametrize("text", ["", "\n\n# nothing\n", "\ufeffmax_iters = 600000", "\x0cmin_lr = 6e-5"])
def test_empty_files_and_odd_beginnings(path: Path, text: str) -> None:
    assert values(path, text).items() <= BEFORE.items()


def test_a_backslash_too_many_is_said_to_nobody(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert values(path, r"out_dir = 'runs\mine'") == {"out_dir": r"runs\mine"}


@many
@given(st.text(st.sampled_from("ab=1+*-/()'\"{}f:\n\t #.,%!rwandb_run_name"), max_size=60) | st.text())
def test_any_text_is_read_or_refused(path: Path, text: str) -> None:
    with contextlib.suppress(UserError):
        read(path, text.encode("utf-8", "surrogatepass"))
