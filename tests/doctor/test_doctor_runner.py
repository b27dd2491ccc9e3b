"""Going through checks: a page whatever they do, processes of their own, nothing about the person."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import doctor_checks
import pytest

from glassgpt.doctor.checks import CHECKS, run_checks
from glassgpt.doctor.diagnosis import (
    Check,
    CheckContext,
    CheckResult,
    CheckVerdict,
    DiagnosticLine,
    DoctorReport,
    redact,
)
from glassgpt.doctor.isolated_check import IsolatedCheckFailed, run_isolated, summarize_error

EVIL = "\x1b]0;owned\x07[red]x\u202ey\x9b31m"


def saying(*lines: DiagnosticLine) -> Callable[[CheckContext], list[DiagnosticLine]]:
    return lambda visit: list(lines)


def failing(error: BaseException) -> Callable[[CheckContext], list[DiagnosticLine]]:
    def look(visit: CheckContext) -> list[DiagnosticLine]:
        raise error

    return look


def check(
    name: str, look: Callable[[CheckContext], list[DiagnosticLine]], slow: bool = False, needs: str = ""
) -> Check:
    return Check(name, "section", look, f"doing {name}", slow, needs)


def examined(*checks: Check, quick: bool = False) -> DoctorReport:
    return run_checks(checks, Path("runs"), quick)


# --- the page ---


@pytest.mark.parametrize(
    ("verdicts", "verdict", "code"),
    [
        (["ok"], "ok", 0),
        ([], "ok", 0),
        (["ok", "note"], "note", 0),
        (["note", "problem", "ok"], "problem", 1),
    ],
)
def test_the_worst_line_is_the_verdict_and_only_a_problem_the_exit_code(
    verdicts: list[CheckVerdict], verdict: str, code: int
) -> None:
    page = examined(check("a", saying(*(DiagnosticLine("x", "y", given) for given in verdicts))))
    assert (page.verdict, page.exit_code) == (verdict, code)
    told = page.as_dict()
    assert told["verdict"] == verdict
    assert [told["problems"], told["notes"], told["ok"]] == [
        verdicts.count(kind) for kind in ("problem", "note", "ok")
    ]
    assert [line["verdict"] for line in told["lines"]] == verdicts


def test_a_check_that_fails_is_a_problem_and_the_rest_goes_on() -> None:
    page = examined(
        check("good", saying(DiagnosticLine("good", "fine"))),
        check("bad", failing(ValueError("odd"))),
        check("after", saying(DiagnosticLine("after", "fine too"))),
    )
    assert [line.verdict for answer in page.results for line in answer.lines] == ["ok", "problem", "ok"]
    line = page.lines_with("problem")[0]
    assert (line.name, line.message) == ("bad", "failed: ValueError: odd")
    assert "glass doctor --json" in line.fix
    assert "Traceback" in line.error
    assert page.exit_code == 1


def test_an_error_of_the_card_asks_to_look_at_the_card() -> None:
    page = examined(check("bad", failing(RuntimeError("CUDA error: launch\nmore"))))
    assert page.lines_with("problem")[0].message == "failed: RuntimeError: CUDA error: launch"
    assert "nvidia-smi" in page.lines_with("problem")[0].fix


def test_being_interrupted_is_no_finding() -> None:
    with pytest.raises(KeyboardInterrupt):
        examined(check("a", failing(KeyboardInterrupt())))


def test_what_needs_a_broken_check_is_not_tried() -> None:
    page = examined(
        check("torch", failing(ImportError("no torch"))),
        check("speed", failing(AssertionError("must not be called")), needs="torch"),
        check("disk", saying(DiagnosticLine("disk", "fine"))),
    )
    lines = [line for answer in page.results for line in answer.lines]
    assert [line.verdict for line in lines] == ["problem", "note", "ok"]
    assert "torch" in lines[1].message


def test_quick_leaves_out_what_is_slow_and_says_so() -> None:
    seen: list[str] = []
    checks = [
        check("fast", saying(DiagnosticLine("a", "b"))),
        check("slow", failing(AssertionError("must not be called")), slow=True),
    ]
    page = run_checks(checks, Path("runs"), quick=True, on_start=lambda check: seen.append(check.name))
    assert seen == ["fast"]
    assert page.as_dict()["left_out"] == ["slow"]
    assert page.exit_code == 0


def test_everybody_is_told_in_order_and_the_clock_is_read_around_it() -> None:
    ticks = iter([10.0, 12.5])
    told: list[str] = []

    def tell(answer: CheckResult) -> None:
        told.append(f"told {answer.lines[0].name}")

    page = run_checks(
        [check("a", saying(DiagnosticLine("a", ""))), check("b", saying(DiagnosticLine("b", "")))],
        Path("runs"),
        on_start=lambda check: told.append(check.progress_text),
        on_result=tell,
        clock=lambda: next(ticks),
    )
    assert told == ["doing a", "told a", "doing b", "told b"]
    assert page.seconds == 2.5


def test_the_folder_to_work_in_is_gone_afterwards() -> None:
    folders: list[Path] = []

    def look(visit: CheckContext) -> list[DiagnosticLine]:
        folders.append(visit.scratch_dir)
        (visit.scratch_dir / "file").write_text("x")
        return []

    examined(check("a", look))
    assert not folders[0].exists()


def test_the_checks_have_names_of_their_own_and_need_what_comes_before() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for number, one in enumerate(CHECKS):
        assert not one.depends_on or one.depends_on in names[:number]
        assert one.progress_text
    sections = [check.section for check in CHECKS]
    assert sorted(set(sections), key=sections.index) == [
        section for at, section in enumerate(sections) if at == 0 or sections[at - 1] != section
    ]


# --- nothing about the person, nothing that harms ---


def test_control_characters_do_not_get_out() -> None:
    line = DiagnosticLine(EVIL, EVIL, "problem", EVIL, {"name": EVIL, "speed": 1.5, "none": None}, EVIL)
    page = examined(check("a", saying(line)), check("b", failing(RuntimeError(EVIL))))
    for line in page.lines_with("problem"):
        for text in (line.name, line.message, line.fix, line.error, str(line.values)):
            assert not set(text) & set("\x1b\x07\u202e\x9b")
    assert page.results[0].lines[0].values["speed"] == 1.5


def test_whose_machine_it_is_stays_there() -> None:
    cases: list[tuple[str, str]] = [
        ("no file /home/alice/.cache/x.cpp", "no file ~/.cache/x.cpp"),
        ("/home/alice", "~"),
        ("/home/alicette/x and /data/alice/x", "/home/alicette/x and /data/USER/x"),
        ("in /tmp/torchinductor_alice/ab.cpp:3", "in /tmp/torchinductor_USER/ab.cpp:3"),
        ("alice is a word here, as glass is", "alice is a word here, as glass is"),
        ("alice@box7: refused by //box7/share", "alice@HOST: refused by //HOST/share"),
        ("box7 cores", "box7 cores"),
    ]
    wrong = [
        (text, clean, got)
        for text, clean in cases
        if (got := redact(text, "/home/alice", "alice", "box7")) != clean
    ]
    assert wrong == []


def test_a_crash_does_not_tell_the_home_folder() -> None:
    path = Path.home() / "secret" / "x.py"
    page = examined(check("a", failing(OSError(f"cannot read {path}"))))
    line = page.lines_with("problem")[0]
    assert line.message == "failed: OSError: cannot read ~/secret/x.py"
    assert str(path) not in line.error


# --- processes of their own ---


@pytest.fixture(autouse=True)
def checks_of_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate process finds them too."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def test_lines_come_back_from_another_process(tmp_path: Path) -> None:
    lines = run_isolated(doctor_checks.fine, tmp_path, 30)
    assert lines == [DiagnosticLine("fine", f"in {tmp_path.name}", values={"share": 0.5, "none": None})]


def test_an_error_there_is_told_here(tmp_path: Path) -> None:
    with pytest.raises(
        IsolatedCheckFailed, match=r"RuntimeError: no such thing: .*Python\.h: No such file"
    ) as caught:
        run_isolated(doctor_checks.broken, tmp_path, 30)
    assert "Traceback" in caught.value.trace


def test_a_process_that_dies_says_how_and_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(IsolatedCheckFailed, match=r"its process died \(SIGSEGV\): this is the end"):
        run_isolated(doctor_checks.deadly, tmp_path, 30)
    with pytest.raises(IsolatedCheckFailed, match=r"its process died \(exit code 7\)$"):
        run_isolated(doctor_checks.leaving, tmp_path, 30)


def test_what_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(IsolatedCheckFailed, match="timed out after 1 s"):
        run_isolated(doctor_checks.endless, tmp_path, 1)


def test_nothing_that_was_built_before_is_found_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    values = run_isolated(doctor_checks.surroundings, tmp_path, 30)[0].values
    assert values["NVIDIA_TF32_OVERRIDE"] == "0"
    places = [str(values[name]) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")]
    assert all(place.startswith(str(tmp_path)) for place in places)
    assert os.environ["TRITON_CACHE_DIR"] == "/elsewhere"


def test_a_failure_apart_is_a_line_of_the_page(tmp_path: Path) -> None:
    page = examined(check("build", lambda visit: run_isolated(doctor_checks.broken, visit.scratch_dir, 30)))
    line = page.lines_with("problem")[0]
    assert line.message.startswith("failed: RuntimeError: no such")
    assert "doctor_checks.py" in line.error


def test_an_error_in_one_line() -> None:
    assert summarize_error(ValueError("\n one \ntwo")) == "ValueError: one"
    assert summarize_error(ValueError()) == "ValueError"
    assert (
        summarize_error(ValueError("one\nx:2: error: no\ny:3: error: not"))
        == "ValueError: one: x:2: error: no"
    )
    assert len(summarize_error(ValueError("x" * 10_000))) < 500
