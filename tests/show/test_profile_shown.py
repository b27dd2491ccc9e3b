"""What a look into some updates shows, in the terminal and in the report."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console
from run_records import step_record, whole_run

from glassgpt.explain.explanation import explain
from glassgpt.i18n import translate
from glassgpt.record.journal import Record
from glassgpt.runs.from_journal import run_log_from_records
from glassgpt.show.page.view import make_view
from glassgpt.show.terminal.run_console import RunConsole
from glassgpt.show.terminal.run_lines import short_kernel_name

GEMM = "void cutlass::Kernel2<cutlass_80_tensorop<float, 4>::Params>(cutlass::Params)"


def profile(**changes: Any) -> Record:
    top = [
        {"name": GEMM, "ms": 30.0, "share": 0.75, "calls": 480},
        {"name": "Memcpy DtoD (Device -> Device)", "ms": 10.0, "share": 0.25, "calls": 10},
    ]
    fields = {
        "kind": "profile", "time": 1.0e9, "process": 0, "iter": 20, "from_iter": 10, "updates": 10,
        "trace": "profile/trace-10-20.json.gz", "bytes": 1000, "wall_ms": 50.0, "of": "kernels", "busy": 0.8,
        "top": top,
    }  # fmt: skip
    return fields | changes


def shown(*records: Record) -> list[str]:
    out = Console(file=io.StringIO(), width=200, highlight=False, emoji=False)
    console = RunConsole(out)
    for one in records:
        console(one)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


def profile_tables(*records: Record) -> list[dict[str, Any]]:
    """Of the page and the report."""
    explanation = explain(run_log_from_records([*whole_run(), *records], "run"))
    tables = make_view(explanation.analysis, explanation.findings, "run")["tables"]
    return [table for table in tables if table["id"] == "profile"]


def test_the_console_has_a_line_and_the_table() -> None:
    head, *table = shown(profile())
    assert re.match(r"profile +Updates 11 to 20 .* profile/trace-10-20\.json\.gz", head)
    assert re.findall(r"[\d.]+(?: ms|%)", head) == ["5.00 ms", "80%"]
    assert table == [
        "               75.0%   3.00 ms      48 x  cutlass::Kernel2",
        "               25.0%   1.00 ms       1 x  Memcpy DtoD",
    ]


def test_the_console_shows_ten() -> None:
    top = [{"name": f"k{at}", "ms": 1.0, "share": 0.05, "calls": 1} for at in range(20)]
    assert len(shown(profile(top=top))) == 1 + 10


def test_a_step_that_was_only_watched_says_so() -> None:
    fields = dict.fromkeys(("step_ms", "tokens_per_s", "mfu", "first_update_ms"))
    (line,) = shown(step_record(20, **fields))
    assert "under the profiler" in line


def test_the_report_has_it_whole() -> None:
    (table,) = profile_tables(profile())
    assert re.findall(r"\d+ to \d+|[\d.]+(?: ms|%)", table["caption"]) == ["11 to 20", "5.00 ms", "80%"]
    assert "profile/trace-10-20.json.gz" in table["caption"]
    first = table["rows"][0]
    assert "cutlass_80_tensorop<float, 4>" in first["name"]  # the whole name
    assert first["value"] == "75.0%"
    assert first["reason"] == translate("report.profile.per_update", time="3.00 ms", calls="48")


def test_a_run_without_one_has_no_such_section() -> None:
    assert profile_tables() == []


def test_a_damaged_record_is_passed_over(subtests: pytest.Subtests) -> None:
    cases: list[Record] = [
        {"top": None},
        {"top": [{"name": "x"}]},
        {"top": [[]]},
        {"busy": None},
        {"wall_ms": float("nan")},
        {"updates": "ten"},
        {"trace": 5},
    ]
    for changes in cases:
        with subtests.test(repr(changes)):
            assert shown(profile(**changes)) == []
            assert profile_tables(profile(**changes)) == []


def test_a_hostile_name_is_text() -> None:
    evil = "<script>alert(1)</script>\x1b[31m\u202e"
    piece = {"name": evil, "ms": 1.0, "share": 1.0, "calls": 1}
    said = str(profile_tables(profile(top=[piece], trace=evil)))
    assert not any(char in said for char in ("\x1b", "\\x1b", "\u202e", "\\u202e"))
    assert not any(char in line for line in shown(profile(top=[piece], trace=evil)) for char in "\x1b\u202e")


def test_names_of_kernels_are_cut_to_what_can_be_read() -> None:
    assert short_kernel_name("aten::mm") == "aten::mm"
    assert short_kernel_name(
        "void at::native::vectorized_elementwise_kernel<4, F<std::array<char*, 3>>>(int)"
    ) == ("vectorized_elementwise_kernel")
    assert short_kernel_name("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn") == (
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
    )
    assert len(short_kernel_name("x" * 400)) == 64
    assert short_kernel_name("<<<") == "<<<"
    assert short_kernel_name("(a)") == "(a)"
