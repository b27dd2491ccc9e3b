"""What a run prints, line by line, from records made by hand; and again from its journal."""

from __future__ import annotations

import copy
import io
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from run_records import (
    LEDGER,
    checkpoint_record,
    end_record,
    eval_record,
    record,
    run_record,
    sample_record,
    step_record,
    whole_run,
)

from glassgpt.errors import UserError
from glassgpt.record.journal import FILE_NAME, Journal, Record, encode_line
from glassgpt.record.ledger import PHASES
from glassgpt.show.terminal.run_console import RunConsole
from glassgpt.show.terminal.runs_view import replay, replay_svg

LABEL = 14  # characters in front of a line's text
NEW_BEST = "best so far"


def plain() -> Console:
    return Console(file=io.StringIO(), width=200, highlight=False, emoji=False)


def text_of(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def shown(*records: Record, verbose: bool = False, out: Console | None = None) -> list[str]:
    out = out or plain()
    console = RunConsole(out, verbose=verbose)
    for one in records:
        console(one)
    return text_of(out).splitlines()


def test_an_explosion_is_said_once_while_it_lasts() -> None:
    """And rings, on a terminal. Odd batches, and a loss that is only noisy, are none."""

    def losses(*values: float) -> list[Record]:
        return [run_record(1000), *(step_record(10 * at, loss=one) for at, one in enumerate(values, 1))]

    calm = [4 - at / 20 for at in range(30)]
    lines = shown(*losses(*calm, *[9.0] * 20))
    [said] = [at for at, line in enumerate(lines) if line.startswith("problem")]
    text = "The training loss explodes: 2.5500 at iteration 300, 9.0000 at iteration 310. Lower"
    assert text in lines[said]
    assert [line.split()[1] for line in lines[:said] if line.startswith("iter")][-1] == "330"  # the third
    assert not [line for line in shown(*losses(*calm, 9.0, 9.0, *[2.5] * 20)) if line.startswith("problem")]
    assert not [line for line in shown(*losses(*calm, *calm)) if line.startswith("problem")]
    again = shown(*losses(*calm, *[9.0] * 8, *[2.5] * 30, *[9.0] * 8))
    assert len([line for line in again if line.startswith("problem")]) == 2
    start = [run_record(1000), eval_record(0, "val", 4.2)]
    early = shown(*start, *(step_record(at, loss=12.0) for at in range(10, 100, 10)))
    assert len([line for line in early if line.startswith("problem")]) == 1
    bells = {}
    for live in (True, False):
        out = Console(file=io.StringIO(), width=80, force_terminal=True)
        console = RunConsole(out, live)
        for one in losses(*calm, *[9.0] * 20):
            console(one)
        bells[live] = text_of(out).count("\a")
        assert max(cell_len(line) for line in Text.from_ansi(text_of(out)).plain.splitlines()) <= 80
    assert bells == {True: 1, False: 0}


def test_a_run_that_the_page_stops_says_so() -> None:
    requests = [
        {"kind": "request", "iter": 238, "action": action, "by": "page"} for action in ("save", "stop")
    ]
    assert shown(*requests) == ["stop          asked for by page"]


def labelled(lines: list[str]) -> dict[str, str]:
    """The text of each line by its label; of equal labels, the last."""
    return {line[:LABEL].strip(): line[LABEL:] for line in lines if line[:LABEL].strip()}


def written(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True)
    journal = Journal(folder / FILE_NAME)
    for one in records:
        journal.write(one)
    journal.close()
    return folder


# --- the start


FORECAST = {
    "memory_bytes": 3 * 2**28,
    "tokens_per_s": [15_000.0, 19_000.0, 24_000.0],
    "total_s": [100.0, 187.0, 300.0],
    "why": "12 reference runs",
    "loss_curve": [[0, 4.05, 4.17, 4.42], [100, 2.41, 2.53, 2.7]],
    "overfits_at": None,
}


def test_the_first_screen_is_six_lines() -> None:
    out = plain()
    console = RunConsole(out, page_url=lambda run_dir: f"http://127.0.0.1:1/{run_dir.name}")
    console(run_record(forecast=FORECAST))
    assert text_of(out).splitlines() == [
        "model         gpt2, 10.7M parameters, on mine: 1M tokens (char)",
        "device        cpu (4 threads), float32, PyTorch's kernels",
        "time          3m 07s for 100 updates, 1.6 epochs (80%: 1m 40s to 5m 00s)",
        "loss          2.53 at the end (2.41 to 2.70)",
        "run           runs/mine",
        "page          http://127.0.0.1:1/mine",
        "",
    ]


def test_the_first_screen_says_what_is_not_known_or_not_as_asked() -> None:
    assert list(labelled(shown(run_record()))) == ["model", "device", "run"]  # no forecast, no page
    unknown = FORECAST | {"total_s": None, "loss_curve": None}
    lines = labelled(shown(run_record(forecast=unknown)))
    assert lines["time"].startswith("unknown ")
    assert "trained weights" in lines["loss"]
    overfits = labelled(shown(run_record(forecast=FORECAST | {"overfits_at": 80})))["loss"]
    assert re.findall(r"[\d.]+", overfits) == ["2.53", "2.41", "2.70", "80"]
    resumed = labelled(shown(run_record(forecast=FORECAST, iter=70)))["time"]
    assert resumed.startswith("30 of 100 updates")
    asked = {"name": "dtype", "value": "bfloat16", "reason": "CPUs have no float16", "notable": True}
    choices = [*run_record()["choices"], asked]
    assert labelled(shown(run_record(choices=choices)))["dtype"] == "bfloat16   (CPUs have no float16)"


def test_a_gpu_is_named_with_its_kernels() -> None:
    values = {"device": "cuda", "dtype": "bfloat16", "kernels": "triton", "graph": "on"}
    choices = [{"name": name, "value": value, "reason": ""} for name, value in values.items()]
    machine = run_record()["machine"] | {"device": {"type": "cuda", "name": "NVIDIA H200"}}
    run = run_record(choices=choices, machine=machine)
    assert labelled(shown(run))["device"] == "NVIDIA H200, bfloat16, Triton kernels, CUDA graph"
    line = labelled(shown(run | {"team": {"size": 8, "per_machine": 8}}))["device"]
    assert re.findall(r"8|NVIDIA H200", line) == ["8", "NVIDIA H200"]


def test_verbose_says_why_and_what_100_percent_is() -> None:
    lines = shown(run_record(forecast=FORECAST), verbose=True)
    assert lines[lines.index("") + 1 :] == [
        "versions      glassgpt 0.1.0, torch 2.13.0",
        "shape         gpt2: n_layer 6, n_head 6, n_embd 384, context 256",
        "data          1M training tokens, 112k validation tokens, char",
        "device        cpu   (no GPU found)",
        "dtype         float32   (n_embd < 64)",
        "MFU           70.96 MFLOP per token, 100% is 96.0 GFLOP/s   (measured: float32 matmuls for 1 s)",
        "expected      768 MiB of memory, 15k to 24k tok/s   (12 reference runs)",
        "",
    ]


def test_table_peak_and_measured_peak_are_both_shown() -> None:
    peak = run_record()["peak"] | {"table": 80e12, "value": 80e12, "source": "the maker"}
    line = labelled(shown(run_record(peak=peak), verbose=True))["MFU"]
    assert re.findall(r"[\d.]+ [GT]FLOP/s", line) == ["80.0 TFLOP/s", "96.0 GFLOP/s"]
    assert "the maker" in line


def test_an_unknown_peak_is_shown_as_unknown() -> None:
    peak = run_record()["peak"] | {"measured": None, "value": None, "source": "unknown: not measured"}
    assert labelled(shown(run_record(peak=peak), verbose=True))["MFU"].endswith("peak unknown: not measured")


def test_a_resume_says_from_where_and_what_was_damaged() -> None:
    lines = shown(record("resume", 1500, {"from_iter": 1500, "complaints": ["x/00002000 is damaged"]}, {}))
    assert lines == ["warning       x/00002000 is damaged", "resume        after 1,500 updates"]


# --- on the way


def test_a_step_line() -> None:
    assert shown(run_record(), step_record(50))[-1] == (
        "iter     50   loss 2.5000   38.1 ms  19.4k tok/s  MFU 12.3%  lr 1.00e-03  norm 0.75  3m 07s to go"
    )


def test_values_of_step_lines_stand_in_columns() -> None:
    speeds = ((38.1, 19_400.0), (7.5, 6_300.0), (5985.0, 812.0), (12_000.0, 1.5e6))
    records = [step_record(50, step_ms=ms, tokens_per_s=rate) for ms, rate in speeds]
    lines = shown(run_record(), *records)[-4:]
    assert {(line.index("tok/s"), line.index("MFU")) for line in lines} == {(43, 50)}


def test_the_last_step_line_has_nothing_to_go() -> None:
    assert "to go" not in shown(run_record(100), step_record(100, eta_s=0.0))[-1]


def test_a_step_without_a_peak_or_without_speed() -> None:
    assert "MFU" not in shown(run_record(), step_record(50, mfu=None))[-1]
    first = {"step_ms": None, "tokens_per_s": None, "mfu": None, "eta_s": None}
    assert shown(run_record(), step_record(1, **first, first_update_ms=61_000.0))[-1] == (
        "iter      1   loss 2.5000  first update 1m 01s  lr 1.00e-03  norm 0.75"
    )


def test_a_loss_that_is_not_finite_is_shown() -> None:
    for loss, text in ((math.nan, "loss nan"), (math.inf, "loss inf")):
        line = shown(run_record(), step_record(3, loss=loss, grad_norm=math.nan))[-1]
        assert line.startswith(f"iter      3   {text}  ")
        assert "norm nan" in line


def test_train_and_val_are_one_line_with_the_time_of_both() -> None:
    lines = shown(eval_record(50, "train", 2.2, ms=1000.0), eval_record(50, "val", 2.25, ms=600.0, best=True))
    (fields,) = (re.split(" {2,}", line) for line in lines)
    assert fields[:4] == ["eval", "50", "train 2.2000", "val 2.2500 ± 0.0123"]
    assert fields[4:] == ["2.345 bits/byte", "32.8k tokens", "took 1.6 s", NEW_BEST]


def test_compile_time_is_separate_from_eval_time() -> None:
    lines = shown(
        eval_record(0, "train", 4.2, compile_ms=1500.0),
        eval_record(0, "val", 4.25, compile_ms=500.0, best=True),
    )
    assert re.findall(r"[\d.]+ m?s\b", lines[0]) == ["800 ms", "2.0 s"]
    assert NEW_BEST not in lines[0]


def test_best_so_far_marks_the_best_only() -> None:
    best = [True, True, False, True]  # the first of all is the best by itself: that is no news
    lines = shown(*(eval_record(n, "val", 3.0, best=is_best) for n, is_best in enumerate(best)))
    assert [line.endswith(NEW_BEST) for line in lines] == [False, True, False, True]


def test_the_closing_pass_stands_alone_and_is_not_in_the_curve() -> None:
    records = [eval_record(n, "val", loss) for n, loss in enumerate((4.0, 2.25))]
    closing = eval_record(9, "val", 1.9, whole_split=True, closing=True, stderr=math.nan)
    lines = shown(run_record(), *records, closing, end_record(9))
    assert "eval      9   val 1.9000  2.345 bits/byte  whole split  took 400 ms" in lines
    assert "best          validation loss 2.2500 at iter 50   █▁" in lines


def test_a_save_line() -> None:
    lines = shown(checkpoint_record(50), checkpoint_record(60, best=False))
    assert [line.split()[:4] for line in lines] == [["saved", at, "161", "KiB"] for at in ("50", "60")]
    assert [re.findall(r"[\d.]+ ms", line) for line in lines] == [["0.24 ms", "14.5 ms"]] * 2
    assert [line.endswith("  best") for line in lines] == [True, False]


def test_a_finding_has_evidence_and_advice() -> None:
    finding = whole_run()[3]
    line = labelled(shown(*whole_run()[:4]))["warning"]
    assert line == f"{finding['title']} ({finding['evidence']}). {finding['advice']}."
    assert "--compile=off" in line


def test_a_kind_from_the_future_is_passed_over() -> None:
    assert shown(record("hologram", 1, {}, {})) == []


# --- the end


def test_the_ledger_shows_every_phase_and_sums_to_the_wall_time() -> None:
    lines = [line.replace(" s ", " ") for line in shown(run_record(), end_record(100))]
    head = lines.index(next(line for line in lines if line.startswith("where the time went")))
    rows = [line.split() for line in lines[head + 1 : head + 1 + len(PHASES)]]
    assert [row[0] for row in rows] == list(PHASES)
    assert {row[0]: float(row[1]) for row in rows} == LEDGER
    assert {row[0]: row[2] for row in rows}["train"] == "70.0%"
    assert sum(float(row[2].rstrip("%")) for row in rows) == pytest.approx(100)
    total = lines[head + 1 + len(PHASES)].split()
    assert total[:4] == ["wall", "time", "100.00", "100.0%"]
    assert all(len(row) > 4 for row in rows)  # each says what it means


def test_the_end_says_how_it_went_and_what_next() -> None:
    losses = [4.0, 3.0, 2.25]
    evals = [eval_record(n, split, loss) for n, loss in enumerate(losses) for split in ("train", "val")]
    lines = shown(run_record(), *evals, end_record(100))
    assert labelled(lines)["end"] == "finished after 100 updates in 1m 40s"
    assert "best          validation loss 2.2500 at iter 50   █▄▁" in lines
    assert labelled(lines)["next"].endswith("  glass sample runs/mine")
    after = lines[[line[:LABEL].strip() for line in lines].index("next") + 1]
    assert after.endswith("  glass train --init_from=resume --out_dir=runs/mine --max_iters=200")


def test_the_command_that_lists_all_runs_lists_this_one() -> None:
    commands = {
        "runs/mine": "glass runs",
        "out-mine": "glass runs .",
        "my runs/mine": "glass runs 'my runs'",
        "/tmp/runs/mine": "glass runs /tmp/runs",
    }
    for run, command in commands.items():
        lines = shown(run_record(out_dir=run), end_record(100))
        assert [line for line in lines if line.endswith(f":     {command}")], run


def test_own_dataset_gets_no_hint_to_train_on_it() -> None:
    run = run_record()
    for name, own in (("pylib", False), ("diary", True)):
        lines = shown(run | {"data": run["data"] | {"name": name}}, end_record(100))
        assert any("glass train my.txt" in line for line in lines) != own


def test_an_interrupted_run_prints_the_resume_command() -> None:
    lines = shown(run_record(), end_record(7, "interrupted", best_iter=None, best_val_loss=math.inf))
    assert labelled(lines)["next"].endswith("  glass train --init_from=resume --out_dir=runs/mine")
    assert not any(line.startswith("best") for line in lines)


def test_a_crash_shows_its_error() -> None:
    lines = shown(run_record(), end_record(7, "crashed", error="ValueError: no \x1b[2J"))
    assert "problem       ValueError: no \N{REPLACEMENT CHARACTER}[2J" in lines


def test_a_run_that_was_not_finite_says_where_and_what_to_try() -> None:
    details = {"bad_iter": 31, "last_checkpoint": "runs/mine/checkpoints/00000020"}
    norms = {"recent_grad_norms": [9.0, 0.5, 1.0, 20.0, 400.0, math.inf]}
    lines = shown(run_record(), end_record(30, "not finite", **details, **norms))
    end = labelled(lines)["end"]
    assert end.startswith("not finite ")
    assert re.findall(r"\d+", end) == ["30", "1", "40"]
    assert "iter 31" in labelled(lines)["problem"]
    assert labelled(lines)["norms"].endswith(": 0.5, 1, 20, 400, inf")
    assert any("runs/mine/checkpoints/00000020" in line for line in lines)
    assert any("--learning_rate" in line for line in lines)
    without = shown(run_record(), end_record(0, "not finite", **details | {"last_checkpoint": None}, **norms))
    assert any("no checkpoint" in line for line in without)
    assert not any("runs/mine/checkpoints" in line for line in without)


def test_an_mfu_over_100_is_explained() -> None:
    lines = shown(run_record(), step_record(50, mfu=104.0), end_record(100))
    assert labelled(lines)["MFU"].startswith("MFU 104%: ")
    assert "MFU" not in labelled(shown(run_record(), step_record(50), end_record(100)))


def test_a_sample_is_printed_as_it_is_except_for_what_could_harm() -> None:
    evil = "To be,\n\x1b[2J\x1b]0;pwned\x07\x9b31m[red]or not[/red] :smile: [/b]"
    lines = shown(sample_record(100, evil))
    assert lines[:2] == ["", "sample        250 ms, not cherry-picked:"]
    assert lines[2] == "To be,"
    assert lines[3] == "\ufffd[2J\ufffd]0;pwned\ufffd\ufffd31m[red]or not[/red] :smile: [/b]"


def test_no_record_can_smuggle_an_escape_sequence_into_a_line() -> None:
    evil = "\x1b[31m\x9b2J\N{RIGHT-TO-LEFT OVERRIDE}"
    records = [
        run_record(out_dir=evil, choices=[{"name": "device", "value": evil, "reason": evil}]),
        record("resume", 1, {"from_iter": 1, "complaints": [evil]}, {}),
        record("finding", 1, {"severity": "x", "title": evil, "evidence": evil, "advice": evil}, {}),
        sample_record(1, evil),
        end_record(1, "crashed", error=evil),
    ]
    text = "\n".join(shown(*records))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\N{RIGHT-TO-LEFT OVERRIDE}]", text)


def test_a_label_from_a_record_is_made_harmless_too() -> None:
    choice = {"name": "dev\x1b[31m", "value": "cpu", "reason": "x"}
    finding = {"severity": "\x1b[2J", "title": "t", "evidence": "e", "advice": "a"}
    assert "\x1b" not in "\n".join(shown(run_record(choices=[choice]), record("finding", 1, finding, {})))


# --- a terminal


def test_a_terminal_gets_the_same_lines_and_a_bar_that_goes_away() -> None:
    out = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None, highlight=False)
    console = RunConsole(out, live=True)
    for one in whole_run():
        console(one)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text_of(out)).replace("\r", "\n")
    lines = [line.rstrip() for line in text.splitlines()]
    for line in shown(*whole_run()):
        assert line.rstrip() in lines
    assert "\x1b[?25h" in text_of(out)  # the cursor is back
    assert text_of(out).count("\a") == 1  # for its one warning


# --- replay


def test_a_replay_prints_what_the_run_printed(tmp_path: Path) -> None:
    out = plain()
    replay(written(tmp_path / "run", whole_run()), out)
    assert text_of(out).splitlines() == shown(*whole_run())
    assert len(text_of(out)) > 1000


def test_a_replay_leaves_out_what_a_resume_took_back(tmp_path: Path) -> None:
    resume = record("resume", 50, {"from_iter": 50, "complaints": []}, {})
    lost = step_record(60, loss=9.75)
    records = [run_record(), step_record(50), lost, run_record(), resume, step_record(60, loss=1.25)]
    out = plain()
    replay(written(tmp_path / "run", records), out)
    assert "9.75" not in text_of(out)
    assert "loss 1.2500" in text_of(out)


def test_a_replay_of_a_torn_journal_shows_what_is_whole(tmp_path: Path) -> None:
    run_dir = written(tmp_path / "run", whole_run())
    raw = (run_dir / FILE_NAME).read_bytes()
    whole_line = raw.index(b"\n") + 1
    for cut in range(whole_line, len(raw), 97):
        (run_dir / FILE_NAME).write_bytes(raw[:cut])
        out = plain()
        replay(run_dir, out)
        assert shown(*whole_run())[: len(text_of(out).splitlines())] == text_of(out).splitlines()


@pytest.mark.parametrize("content", ["", '{"kind": "ru'])
def test_a_journal_without_a_whole_record_is_an_error(tmp_path: Path, content: str) -> None:
    run_dir = written(tmp_path / "run", [])
    (run_dir / FILE_NAME).write_text(content)
    with pytest.raises(UserError, match="run has no records yet"):
        replay(run_dir, plain())


def test_a_journal_that_lost_its_first_line_is_still_shown(tmp_path: Path) -> None:
    out = plain()
    replay(written(tmp_path / "run", whole_run()[1:]), out)
    assert "finished after 100 updates" in text_of(out)


def test_a_sample_that_reads_nan_can_be_replayed(tmp_path: Path) -> None:
    out = plain()
    replay(written(tmp_path / "run", [run_record(), sample_record(1, "nan")]), out)
    assert text_of(out).splitlines()[-1] == "nan"


def test_where_there_is_no_run_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no run: .*`glass runs` lists the runs"):
        replay(tmp_path, plain())


# --- a picture


def texts_in(svg: Path) -> str:
    root = ElementTree.parse(svg).getroot()
    assert root.tag.endswith("svg")
    return "\n".join(element.text or "" for element in root.iter()).replace("\N{NO-BREAK SPACE}", " ")


def test_the_picture_is_well_formed_and_has_the_lines(tmp_path: Path) -> None:
    records = [*whole_run()[:-1], sample_record(100, "<b>&amp;\x1b[2J]]>\x00"), whole_run()[-1]]
    run_dir = written(tmp_path / "a&b<c>", records)
    replay_svg(run_dir, tmp_path / "run.svg", 118)
    text = texts_in(tmp_path / "run.svg")
    assert "38.1 ms" in text
    assert [phase for phase in PHASES if phase not in text] == []
    assert "<b>&amp;" in text


@pytest.mark.parametrize("char", ["\ufffe", "\uffff"])
def test_the_picture_is_well_formed_whatever_the_sample(tmp_path: Path, char: str) -> None:
    replay_svg(written(tmp_path / "run", [sample_record(1, char)]), tmp_path / "run.svg", 118)
    assert "not cherry-picked" in texts_in(tmp_path / "run.svg")


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    run_dir = written(tmp_path / "run", whole_run())
    with pytest.raises(UserError, match=r"^--svg=.* cannot be written: No such file"):
        replay_svg(run_dir, tmp_path / "none" / "run.svg", 118)


# --- figures of any size


def test_one_update_is_singular() -> None:
    run = run_record(max_iters=1)
    lines = shown(run | {"data": run["data"] | {"epochs": 1.0}, "forecast": FORECAST}, end_record(1))
    assert " for 1 update, 1 epoch (" in labelled(lines)["time"]
    assert "end           finished after 1 update in 1m 40s" in lines
    assert shown({"kind": "resume", "iter": 1, "from_iter": 1, "complaints": []}) == [
        "resume        after 1 update"
    ]


def test_many_epochs_are_a_number_people_read() -> None:
    run = run_record(forecast=FORECAST)
    lines = shown(run | {"data": run["data"] | {"epochs": 260.4}})
    assert " for 100 updates, 260 epochs (" in labelled(lines)["time"]


def test_a_loss_that_exploded_fits_its_line() -> None:
    (line,) = shown(step_record(10, loss=1.0932e31, grad_norm=2.5e19))
    assert "loss 1.093e+31 " in line
    assert line.endswith("norm 2.5e+19")
    (line,) = shown(eval_record(10, "val", 5e12, stderr=2e10, bits_per_byte=7e12))
    assert "val 5e+12 ± 2e+10  7e+12 bits/byte" in line


def test_a_small_mfu_is_not_zero() -> None:
    assert "MFU 0.042%" in shown(step_record(10, mfu=0.0421))[0]
    assert "MFU 1.0%" in shown(step_record(10, mfu=0.96))[0]


def test_a_large_models_arithmetic_is_a_number_people_read() -> None:
    run = run_record()
    lines = shown(run | {"model": run["model"] | {"flops_per_token": 10_304_000_000}}, verbose=True)
    assert labelled(lines)["MFU"].startswith("10,304 MFLOP ")


def test_the_time_of_a_process_goes_with_its_own_updates() -> None:
    lines = shown(run_record(iter=70), end_record(100))
    assert re.findall(r"\d+", labelled(lines)["end"]) == ["100", "30", "1", "40"]


def test_a_replay_names_records_with_values_of_wrong_types(tmp_path: Path) -> None:
    """A null, a text, a huge number or a list for any value."""
    texts, raised = [], []
    for original in whole_run():
        tables = [name for name in original if isinstance(original[name], dict)]
        inside = [(name, key) for name in tables for key in original[name] if name != "config"]
        inside += [("config", "max_iters")] if "config" in tables else []
        for place in [*((name,) for name in original if name not in ("kind", "iter", "time")), *inside]:
            wrongs: list[Any] = [None, "text", 10**400, []]
            for wrong in wrongs:
                changed = copy.deepcopy(original)
                (changed if len(place) == 1 else changed[place[0]])[place[-1]] = wrong
                records = [changed] if original["kind"] == "run" else [run_record(), changed]
                (tmp_path / FILE_NAME).write_bytes(b"".join(map(encode_line, records)))
                out = plain()
                try:
                    replay(tmp_path, out)
                except Exception as error:  # noqa: BLE001 - each is an offender
                    raised.append((original["kind"], place, wrong, repr(error)))
                texts.append(text_of(out))
    assert raised == []
    assert any(re.search(r"not shown: .*\bstep\b.*\biter\b", text) for text in texts)


def test_a_narrow_terminal_says_that_the_closing_evaluation_is_over_the_whole_split() -> None:
    out = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None, highlight=False)
    console = RunConsole(out)
    for record_ in (run_record(), eval_record(9, "val", 1.9, whole_split=True, closing=True)):
        console(record_)
    printed = out.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"^eval      9   val 1\.9000.*  whole split$", printed, re.MULTILINE)
