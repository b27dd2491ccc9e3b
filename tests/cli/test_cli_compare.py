"""The command `glass compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import (
    HOSTILE_TEXT,
    LOCALE,
    Capture,
    control_characters,
    finished_run,
    glass,
    hostile_run,
    nanogpt_log,
    parse_strict_json,
    write_run,
)

from glassgpt.i18n import translate


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two logs in it, in English."""
    monkeypatch.chdir(tmp_path)
    for name in LOCALE:
        monkeypatch.delenv(name, raising=False)
    Path("a.log").write_text(nanogpt_log())
    Path("b.log").write_text(nanogpt_log(1200, factor=0.8))
    return tmp_path


def errors_of(capsys: Capture, *arguments: str) -> list[str]:
    return commands.error_lines(capsys, "compare", *arguments)


def output_of(capsys: Capture, *arguments: str) -> str:
    return commands.stdout_of(capsys, "compare", *arguments)


def document(capsys: Capture, *arguments: str) -> dict[str, Any]:
    return parse_strict_json(output_of(capsys, *arguments, "--json"))


# --- errors ---


@pytest.mark.parametrize("names", [[], ["a.log"]], ids=str)
def test_at_least_two_runs(names: list[str], capsys: Capture) -> None:
    (problem,) = errors_of(capsys, *names)
    assert "at least two" in problem


def test_every_missing_file_is_named(capsys: Capture) -> None:
    problems = errors_of(capsys, "a.log", "nothere", "neither", "b.log")
    assert len(problems) == 2
    assert "nothere" in problems[0]
    assert "neither" in problems[1]


def test_a_file_that_is_not_a_log(capsys: Capture) -> None:
    Path("poem").write_text("Shall I compare thee\n")
    Path("folder").mkdir()
    assert "poem is not a training log" in errors_of(capsys, "a.log", "poem")[0]
    assert "folder" in errors_of(capsys, "a.log", "folder")[0]


def test_all_problems_at_once(capsys: Capture) -> None:
    text = "\n".join(errors_of(capsys, "--lang=fr", "--gpu=foo", "--bar=1", "--c.n_layer=3"))
    for part in ("at least two", "--lang=fr", "--gpu=foo", "--bar", "--c.n_layer"):
        assert part in text


def test_bad_overrides_of_a_run(capsys: Capture, subtests: pytest.Subtests) -> None:
    for flag in ("--a.n_layr=3", "--a.n_layer=x", "--c.n_layer=3", "--a.parameters=-5", "--a."):
        with subtests.test(flag):
            (problem,) = errors_of(capsys, "a.log", "b.log", flag)
            assert flag.partition("=")[0] in problem


def test_the_standard_input_is_read_once(capsys: Capture) -> None:
    (problem,) = errors_of(capsys, "-", "-")
    assert "once" in problem


def test_a_missing_config_file(capsys: Capture) -> None:
    (problem,) = errors_of(capsys, "a.log", "b.log", "--b.config=nothere.py")
    assert "nothere.py" in problem


# --- output ---


def test_which_is_better_and_which_faster(capsys: Capture) -> None:
    text = output_of(capsys, "a.log", "b.log")
    order = ["A: a.log (nanoGPT)", "B: b.log (nanoGPT)", "equally fast", "B is better than A", "What differs",
             "Derived", "Validation loss", "Tokens per second"]  # fmt: skip
    place = 0
    for part in order:
        place = text.index(part, place)


def test_the_runs_of_one_file(capsys: Capture) -> None:
    Path("both.log").write_text(nanogpt_log() + nanogpt_log(1200, factor=0.8))
    parsed = document(capsys, "both.log", "--b.dropout=0.1")
    apart = document(capsys, "a.log", "b.log")
    assert [run["facts"]["best_val_loss"] for run in parsed["runs"]] == [
        run["facts"]["best_val_loss"] for run in apart["runs"]
    ]
    names = [run["name"] for run in parsed["runs"]]
    assert names[0] != names[1]
    assert not any(claim["id"] == "several-runs" for claim in parsed["verdict"])
    assert "--c" not in (problem := errors_of(capsys, "both.log", "--c.dropout=0.1")[0])
    assert "2 runs" in problem


def test_the_longest_run_of_a_file_among_several(capsys: Capture) -> None:
    Path("both.log").write_text(nanogpt_log() + nanogpt_log(1200, factor=0.8))
    parsed = document(capsys, "a.log", "both.log")
    (claim,) = [claim for claim in parsed["verdict"] if claim["id"] == "several-runs"]
    assert (claim["runs"], claim["values"]["runs"]) == (["B"], 2)
    longest = max(document(capsys, "a.log", "b.log")["runs"], key=lambda run: run["facts"]["last_iteration"])
    assert parsed["runs"][1]["facts"]["last_iteration"] == longest["facts"]["last_iteration"]


def test_json_is_strict(capsys: Capture) -> None:
    Path("b.log").write_text(
        nanogpt_log() + "step 750: train loss nan, val loss nan\niter 750: loss nan, time 5ms\n"
    )
    parsed = document(capsys, "a.log", "b.log")
    assert [run["label"] for run in parsed["runs"]] == ["A", "B"]
    assert [run["name"] for run in parsed["runs"]] == ["a.log", "b.log"]
    assert parsed["runs"][1]["facts"]["final_val_loss"] == "nan"
    assert all("claim" in claim for claim in parsed["verdict"])


def test_any_mix_of_formats(capsys: Capture) -> None:
    folder = write_run(Path("runs/mine"), finished_run())
    names = [str(folder), "a.log", str(folder / "journal.jsonl"), "b.log"]
    parsed = document(capsys, *names)
    assert [run["format"] for run in parsed["runs"]] == ["glassgpt", "nanogpt", "glassgpt", "nanogpt"]
    assert output_of(capsys, *names)


def test_a_log_from_the_standard_input(capsys: Capture) -> None:
    done = glass("compare", "-", "b.log", "--json", stdin=Path("a.log").read_bytes())
    assert done.returncode == 0
    piped, from_file = json.loads(done.stdout), document(capsys, "a.log", "b.log")
    assert piped["runs"][0].pop("name") == "standard input"
    from_file["runs"][0].pop("name")
    assert piped == from_file


def test_overrides_of_a_run(capsys: Capture) -> None:
    flags = ["--a.n_layer=6", "--b.n_layer=12", "--a.n_head", "6", "--b.n_head=12"]
    text = output_of(capsys, "a.log", "b.log", *flags)
    rows = [line.split() for line in text.splitlines()]
    assert ["n_layer", "6", "12"] in rows
    assert ["n_head", "6", "12"] in rows


def test_the_same_log_twice(capsys: Capture) -> None:
    text = output_of(capsys, "a.log", "a.log")
    assert "equally fast" in text
    assert "is better than" not in text
    assert translate("compare_view.differences.none") in text


@pytest.mark.parametrize("language", ["hi", "ar"])
def test_in_another_language(language: str, capsys: Capture) -> None:
    bidi_marks = (
        "\N{RIGHT-TO-LEFT MARK}\N{FIRST STRONG ISOLATE}\N{LEFT-TO-RIGHT ISOLATE}\N{POP DIRECTIONAL ISOLATE}"
    )
    text = output_of(capsys, "a.log", "b.log", f"--lang={language}")
    assert "\N{REPLACEMENT CHARACTER}" not in text
    assert not control_characters(text, "\n" + bidi_marks)
    assert "equally fast" not in text
    assert ("\N{FIRST STRONG ISOLATE}" in text) == (language == "ar")
    assert "What differs" not in text


# --- hostile text ---


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=str)
def test_a_hostile_journal_cannot_harm_a_terminal(flags: list[str], capsys: Capture) -> None:
    evil = write_run(Path("runs/evil"), hostile_run())
    good = write_run(Path("runs/good"), finished_run())
    text = output_of(capsys, str(evil), str(good), *flags)
    assert not control_characters(text)
    assert "[red]x[/red]" in text


def test_hostile_words_on_the_command_line(capsys: Capture) -> None:
    assert not control_characters("".join(errors_of(capsys, "a.log", f"b{HOSTILE_TEXT}")))
    assert not control_characters(
        "".join(
            errors_of(
                capsys,
                "a.log",
                "b.log",
                f"--gpu={HOSTILE_TEXT}",
                f"--{HOSTILE_TEXT}=1",
                f"--a.{HOSTILE_TEXT}=1",
            )
        )
    )
    assert not control_characters(
        output_of(capsys, "a.log", "b.log", f"--a.device_name={HOSTILE_TEXT}", f"--b.dataset={HOSTILE_TEXT}")
    )


def test_file_names_are_one_line_each(capsys: Capture) -> None:
    Path("b.log").rename("b.log\nA is better than B.\n")
    output = output_of(capsys, "a.log", "b.log\nA is better than B.\n")
    assert "A is better than B." not in output.splitlines()
