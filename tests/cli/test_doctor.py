"""`glass doctor` as people and programs meet it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import EVIL, controls, environment
from rich.console import Console

from glassgpt.cli.doctor_command import _progress, doctor
from glassgpt.doctor import checks, compile_check, disk_check, selftests, speed_check
from glassgpt.doctor.check import Answer, Check, Line, Page, Visit
from glassgpt.errors import UserError
from glassgpt.show.terminal.doctor_view import DoctorPage

Capture = pytest.CaptureFixture[str]

DOCTOR = (
    sys.executable,
    "-c",
    "import sys; from glassgpt.cli.doctor_command import doctor; sys.exit(doctor(sys.argv[1:]))",
)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    """What the only check will find; the rest is not looked at."""
    lines: list[Line] = []

    def look(visit: Visit) -> list[Line]:
        return [*lines, Line("place", str(visit.out_dir))]

    slow = Check("slow one", "machine", look, "taking long", slow=True)
    monkeypatch.setattr(checks, "CHECKS", (Check("all", "machine", look, "looking"), slow))
    return lines


def test_the_page_ends_in_a_verdict(found: list[Line], capsys: Capture) -> None:
    found.append(Line("gpu", "none found", "note"))
    assert doctor(["--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "machine",
        "note     gpu            none found",
        "ok       place          runs",
    ]
    assert lines[-2].startswith("verdict  0 problems, 1 note, 1 ok, in ")
    assert lines[-1].strip() == "left out by --quick: slow one"


def test_a_problem_is_told_with_its_fix_and_by_the_exit_code(found: list[Line], capsys: Capture) -> None:
    found.append(Line("threads", "too many", "problem", "export OMP_NUM_THREADS=2"))
    assert doctor(["--quick"]) == 1
    out = capsys.readouterr().out
    assert "problem  threads        too many\n" in out
    assert "fix: export OMP_NUM_THREADS=2" in out
    assert "verdict  1 problem, 0 notes, 1 ok" in out
    assert "         threads: export OMP_NUM_THREADS=2" in out


def test_json_is_one_document(found: list[Line], capsys: Capture) -> None:
    found.append(Line("disk", "slow", "problem", "another disk", {"speed": float("nan"), "free": 3}))
    assert doctor(["--json", "--out_dir=elsewhere/runs"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["problems"], told["left_out"]) == ("problem", 2, [])
    assert told["lines"][0] == {
        "section": "machine",
        "check": "all",
        "name": "disk",
        "says": "slow",
        "verdict": "problem",
        "fix": "another disk",
        "numbers": {"speed": "nan", "free": 3},
        "error": "",
    }
    assert told["lines"][1]["says"] == "elsewhere/runs"
    assert not Path("elsewhere").exists()


def test_nothing_harms_a_terminal(found: list[Line], capsys: Capture) -> None:
    found.append(Line(EVIL, EVIL, "problem", EVIL, {"name": EVIL}))
    doctor([])
    assert controls(capsys.readouterr().out) == set()
    doctor(["--json"])
    assert controls(json.loads(capsys.readouterr().out)["lines"][0]["says"]) == set()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quik"], "did you mean --quick"),
        (["cuda"], "takes no name: cuda"),
        (["-q"], "unknown flag -q"),
        (["--quick=maybe"], "--quick"),
        (["--out_dir=FILE"], "is a file"),
        (["--out_dir=FILE/below"], "is a file"),
        (["--out_dir=a\0b"], "no name that a folder can have"),
        (["--out_dir=\udcff"], "no name that a folder can have"),
    ],
)
def test_mistakes_are_told(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("x")
    with pytest.raises(UserError, match=said):
        doctor(words)


def test_help_does_not_import_torch() -> None:
    command = "from glassgpt.cli.doctor_command import doctor; doctor(['-h'])"
    code = f"import sys; {command}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stdout.splitlines()[-1] == "False"
    assert "--out_dir" in done.stdout


def test_a_narrow_terminal_gets_whole_words() -> None:
    out = io.StringIO()
    console = Console(file=out, width=60, highlight=False, emoji=False)
    check = Check("a", "speed", lambda visit: [], "")
    line = Line("matmul gpu", "[red]500 TFLOP/s[/red], 51% of the 989 in the table", "note", "see the clocks")
    page = Page((Answer(check, (line,)),), (), 1.5)
    shown = DoctorPage(console)
    shown.add(page.answers[0])
    shown.add(Answer(check, ()))  # nothing to say
    shown.close(page)
    assert out.getvalue().splitlines() == [
        "speed",
        "note     matmul gpu     [red]500 TFLOP/s[/red], 51% of the",
        "                        989 in the table",
        "                        fix: see the clocks",
        "",
        "verdict  0 problems, 1 note, 0 ok, in 1.5 s",
    ]


def test_a_terminal_sees_what_is_under_way() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    with _progress(console) as begin:
        begin(Check("a", "speed", lambda visit: [], "multiplying"))
    assert "multiplying" in out.getvalue()
    quiet = Console(file=io.StringIO(), force_terminal=False)
    with _progress(quiet) as begin:
        begin(Check("a", "speed", lambda visit: [], "multiplying"))
    assert quiet.file.getvalue() == ""  # type: ignore[attr-defined]


def test_the_page_in_docs_has_the_limits_of_the_program() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs/doctor.md").read_text(encoding="utf-8").split())
    for limits in ((speed_check._FAST, speed_check._SLOW), (speed_check._FAST_COPY, speed_check._SLOW_COPY)):
        assert f"elow {limits[0]:.0%}" in text
        assert f"is a note, below {limits[1]:.0%} a problem" in text
    assert compile_check._LIMIT_S == selftests._LIMIT_S
    assert f"cut off after {compile_check._LIMIT_S:.0f} seconds" in text
    sizes = [size // 2**20 for size in disk_check._SIZES]
    assert f"Files of {sizes[0]}, {sizes[1]} and {sizes[2]} MiB" in text
    assert f"after {selftests._UPDATES} updates are within 1e-5" in text
    assert selftests._EQUAL == 1e-5
    assert f"within {100 * selftests._SAME_ARITHMETIC:g}% in float32" in text
    assert f"our kernels: losses within {100 * selftests._SAME_FORMULAS:g}%" in text
    assert text.count(f"within {100 * selftests._LESS_EXACT:g}%") == 2
    assert all(f"| {check.section} | " in text for check in checks.CHECKS)


def test_this_machine_quickly(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DOCTOR, "--quick", "--json"], capture_output=True, text=True, cwd=tmp_path, env=environment()
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    told: dict[str, Any] = json.loads(done.stdout)
    assert [line["error"] for line in told["lines"] if line["error"]] == []
    assert told["left_out"] == [
        "matmul",
        "compile",
        "kernels",
        "accumulation",
        "resume",
        "cpu and gpu",
        "fast paths",
    ]
    assert {"system", "processor", "memory", "torch", "threads", "disk"} <= {
        line["check"] for line in told["lines"]
    }
    assert str(tmp_path) not in done.stdout
    assert str(Path.home()) not in done.stdout or len(str(Path.home())) < 3
    assert list(tmp_path.iterdir()) == []
