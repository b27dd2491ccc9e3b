"""`glass doctor` as people and programs meet it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import HOSTILE_TEXT, control_characters, environment
from rich.console import Console

from glassgpt.cli.check_commands import _progress, doctor
from glassgpt.doctor import checks, compile_check, disk_check, selftests, speed_check
from glassgpt.doctor.diagnosis import Check, CheckContext, CheckResult, DiagnosticLine, DoctorReport
from glassgpt.errors import UserError
from glassgpt.show.terminal.doctor_view import DoctorConsole

Capture = pytest.CaptureFixture[str]

DOCTOR = (
    sys.executable,
    "-c",
    "import sys; from glassgpt.cli.check_commands import doctor; sys.exit(doctor(sys.argv[1:]))",
)


@pytest.fixture
def doctor_lines(monkeypatch: pytest.MonkeyPatch) -> list[DiagnosticLine]:
    """What the only check will find; the other checks are not run."""
    lines: list[DiagnosticLine] = []

    def look(visit: CheckContext) -> list[DiagnosticLine]:
        return [*lines, DiagnosticLine("place", str(visit.out_dir))]

    slow = Check("slow one", "machine", look, "taking long", is_slow=True)
    monkeypatch.setattr(checks, "CHECKS", (Check("all", "machine", look, "looking"), slow))
    return lines


def test_the_page_ends_in_a_verdict(doctor_lines: list[DiagnosticLine], capsys: Capture) -> None:
    doctor_lines.append(DiagnosticLine("gpu", "none found", "note"))
    assert doctor(["--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "machine",
        "note     gpu            none found",
        "ok       place          runs",
    ]
    assert lines[-2].startswith("verdict  0 problems, 1 note, 1 ok, in ")
    assert lines[-1].strip() == "skipped by --quick: slow one"


def test_a_problem_is_printed_with_its_fix_and_sets_the_exit_code(
    doctor_lines: list[DiagnosticLine], capsys: Capture
) -> None:
    doctor_lines.append(DiagnosticLine("threads", "too many", "problem", "export OMP_NUM_THREADS=2"))
    assert doctor(["--quick"]) == 1
    out = capsys.readouterr().out
    assert "problem  threads        too many\n" in out
    assert "fix: export OMP_NUM_THREADS=2" in out
    assert "verdict  1 problem, 0 notes, 1 ok" in out
    assert "         threads: export OMP_NUM_THREADS=2" in out


def test_json_is_one_document(doctor_lines: list[DiagnosticLine], capsys: Capture) -> None:
    doctor_lines.append(
        DiagnosticLine("disk", "slow", "problem", "another disk", {"speed": float("nan"), "free": 3})
    )
    assert doctor(["--json", "--out_dir=elsewhere/runs"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["problems"], document["left_out"]) == ("problem", 2, [])
    assert document["lines"][0] == {
        "section": "machine",
        "check": "all",
        "name": "disk",
        "says": "slow",
        "verdict": "problem",
        "fix": "another disk",
        "numbers": {"speed": "nan", "free": 3},
        "error": "",
    }
    assert document["lines"][1]["says"] == "elsewhere/runs"
    assert not Path("elsewhere").exists()


def test_nothing_harms_a_terminal(doctor_lines: list[DiagnosticLine], capsys: Capture) -> None:
    doctor_lines.append(
        DiagnosticLine(HOSTILE_TEXT, HOSTILE_TEXT, "problem", HOSTILE_TEXT, {"name": HOSTILE_TEXT})
    )
    doctor([])
    assert control_characters(capsys.readouterr().out) == set()
    doctor(["--json"])
    assert control_characters(json.loads(capsys.readouterr().out)["lines"][0]["says"]) == set()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--quik"], "did you mean --quick"),
        (["cuda"], "takes no name: cuda"),
        (["-q"], "unknown flag -q"),
        (["--quick=maybe"], "--quick"),
        (["--out_dir=FILE"], "is a file"),
        (["--out_dir=FILE/below"], "is a file"),
        (["--out_dir=a\0b"], "not a valid folder name"),
        (["--out_dir=\udcff"], "not a valid folder name"),
    ],
)
def test_mistakes_are_errors(
    words: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("x")
    with pytest.raises(UserError, match=problem):
        doctor(words)


def test_help_does_not_import_torch() -> None:
    command = "from glassgpt.cli.check_commands import doctor; doctor(['-h'])"
    code = f"import sys; {command}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stdout.splitlines()[-1] == "False"
    assert "--out_dir" in done.stdout


def test_a_narrow_terminal_gets_whole_words() -> None:
    out = io.StringIO()
    console = Console(file=out, width=60, highlight=False, emoji=False)
    check = Check("a", "speed", lambda visit: [], "")
    line = DiagnosticLine(
        "matmul gpu", "[red]500 TFLOP/s[/red], 51% of the 989 in the table", "note", "see the clocks"
    )
    page = DoctorReport((CheckResult(check, (line,)),), (), 1.5)
    shown = DoctorConsole(console)
    shown.print_result(page.results[0])
    shown.print_result(CheckResult(check, ()))  # nothing to say
    shown.print_summary(page)
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
    for limits in (
        (speed_check._GOOD_MATMUL_SHARE, speed_check._BAD_MATMUL_SHARE),
        (speed_check._GOOD_BANDWIDTH_SHARE, speed_check._BAD_BANDWIDTH_SHARE),
    ):
        assert f"elow {limits[0]:.0%}" in text
        assert f"is a note, below {limits[1]:.0%} a problem" in text
    assert compile_check._LIMIT_S == selftests._LIMIT_S
    assert f"cut off after {compile_check._LIMIT_S:.0f} seconds" in text
    sizes = [size // 2**20 for size in disk_check._TEST_FILE_BYTES]
    assert f"Files of {sizes[0]}, {sizes[1]} and {sizes[2]} MiB" in text
    assert f"after {selftests._UPDATES} updates are within 1e-5" in text
    assert selftests._ABSOLUTE_TOLERANCE == 1e-5
    assert f"within {100 * selftests._CROSS_DEVICE_TOLERANCE:g}% in float32" in text
    assert f"our kernels: losses within {100 * selftests._KERNEL_TOLERANCE:g}%" in text
    assert text.count(f"within {100 * selftests._HALF_PRECISION_TOLERANCE:g}%") == 2
    assert all(f"| {check.section} | " in text for check in checks.CHECKS)


def test_this_machine_quickly(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DOCTOR, "--quick", "--json"], capture_output=True, text=True, cwd=tmp_path, env=environment()
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    assert [line["error"] for line in document["lines"] if line["error"]] == []
    assert document["left_out"] == [
        "matmul",
        "compile",
        "kernels",
        "accumulation",
        "resume",
        "cpu and gpu",
        "fast paths",
    ]
    assert {"system", "processor", "memory", "torch", "threads", "disk"} <= {
        line["check"] for line in document["lines"]
    }
    assert str(tmp_path) not in done.stdout
    assert str(Path.home()) not in done.stdout or len(str(Path.home())) < 3
    assert list(tmp_path.iterdir()) == []
