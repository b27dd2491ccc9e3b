"""Whole runs by command: their output, what they make, going on with them, and beginning from them."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from workplace import (
    TINY_FLAGS,
    WORDS,
    Capture,
    error_lines,
    folder_contents,
    glass,
    prepare_dataset_mine,
    prepare_text,
    records,
    train,
)

from glassgpt.cli import main
from glassgpt.record import journal


@pytest.fixture
def mine(here: Path, capsys: Capture) -> Path:
    """A folder with a dataset called `mine`."""
    prepare_dataset_mine(capsys)
    return here


def test_a_whole_run_its_second_start_and_its_continuation(mine: Path, capsys: Capture) -> None:
    assert train(max_iters=6, sample_tokens=8) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b" not in captured.out
    assert "\r" not in captured.out
    for line in (
        r"model         modern, [\d.]+k parameters, on mine: ",
        r"device        \S.*, float32, ",
        r"time          .*6 updates, ",
        r"loss          [\d.]+ at the end \(",
        r"run           runs/quickstart$",
        r"eval      0   train \d\.\d{4}  val \d\.\d{4} ± ",
        r"eval      3   train ",
        r"saved     3   ",
        r"iter      6   loss \d\.\d{4} +[\d.]+ ms +[\d.]+k? tok/s  lr ",
        r"eval      6   val .* whole split",
        r"sample        ",
        r"wall time +\d+\.\d\d s  100.0%",
        r"end           finished after 6 updates",
        r"next          sample from it:   glass sample runs/quickstart$",
        r"              train it longer:  glass train --init_from=resume --out_dir=runs/quickstart --max",
    ):
        assert re.search(f"^{line}", captured.out, re.MULTILINE), line
    made = {path.name for path in Path("runs/quickstart").iterdir()}
    assert {"config.toml", journal.FILE_NAME, "checkpoints", "tokenizer"} <= made
    saved = sorted(path.name for path in Path("runs/quickstart/checkpoints").iterdir())
    assert saved == ["00000003", "00000006"]  # quickstart keeps five
    ledger = records("runs/quickstart")[-1]
    assert sum(ledger["ledger"].values()) == pytest.approx(ledger["wall_s"], abs=1e-9)

    first = folder_contents(Path("runs/quickstart"))
    assert train(max_iters=6) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["quickstart", "quickstart-2"]
    assert folder_contents(Path("runs/quickstart")) == first  # a run is never overwritten

    capsys.readouterr()
    resume = ["train", "--init_from=resume", "--out_dir=runs/quickstart", "--max_iters=9"]
    assert main(resume) == 0
    captured = capsys.readouterr()
    assert "resume        after 6 updates" in captured.out
    assert "end           finished after 9 updates" in captured.out
    raw = Path("runs/quickstart", journal.FILE_NAME).read_bytes()
    before = first[journal.FILE_NAME]
    assert before is not None
    assert raw.startswith(before)  # it only grows
    assert [record["process"] for record in records("runs/quickstart") if record["kind"] == "run"] == [0, 1]
    for whole in raw.splitlines():
        json.loads(whole, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))

    capsys.readouterr()
    assert main(["runs"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in table[1:]] == [
        ["runs/quickstart", "finished", "9/9"],
        ["runs/quickstart-2", "finished", "6/6"],
    ]


def test_show_prints_a_run_again_and_draws_it(mine: Path, capsys: Capture) -> None:
    assert train("--log_interval=1", sample_tokens=8) == 0
    live = capsys.readouterr().out
    assert main(["show", "runs/quickstart"]) == 0
    again = capsys.readouterr().out
    assert live == f"{again}{'report':<13} runs/quickstart/report.html\n"
    assert main(["show", "runs/quickstart", "--svg=run.svg"]) == 0
    assert ElementTree.parse("run.svg").getroot().tag.endswith("svg")
    (problem,) = error_lines(capsys, "show", "runs/quickstart", "--svg=none/run.svg")
    assert problem.startswith("--svg=none/run.svg cannot be written")


def test_resume_without_out_dir_takes_the_newest(mine: Path, capsys: Capture) -> None:
    assert train() == 0
    assert train() == 0
    assert main(["train", "--init_from=resume", "--max_iters=4"]) == 0
    assert records("runs/quickstart")[-1]["iter"] == 3
    assert records("runs/quickstart-2")[-1]["iter"] == 4


def test_resume_keeps_the_settings_of_the_run(mine: Path, capsys: Capture) -> None:
    assert train("--seed=5", "--beta1=0.8") == 0
    assert main(["train", "--init_from=resume", "--max_iters=4", "--weight_decay=0.2"]) == 0
    first, second = (record["config"] for record in records("runs/quickstart") if record["kind"] == "run")
    decided = {"init_from", "out_dir", "device", "dtype", "compile", "attention", "kernels", "graph"}
    decided.add("gradient_accumulation_steps")  # or more processes would make it a larger update
    changed = {name for name in first if first[name] != second[name]}
    assert changed - decided == {"max_iters", "weight_decay"}


def test_resume_checks_a_flag_against_the_settings_of_the_run(mine: Path, capsys: Capture) -> None:
    assert train() == 0
    # 128 tokens are 8 sequences of the run's context of 16; the preset's default context is 1024.
    assert main(["train", "--init_from=resume", "--max_iters=4", "--batch_tokens=128"]) == 0


def test_a_run_begins_from_another_and_is_sampled(mine: Path, capsys: Capture) -> None:
    assert train("--keep_checkpoints=5", "--schedule=cosine", "--warmup_iters=0", max_iters=6) == 0
    before = folder_contents(Path("runs/quickstart"))
    capsys.readouterr()
    assert main(["train", "--init_from=quickstart@3", "--max_iters=7"]) == 0
    output = capsys.readouterr().out
    where = "runs/quickstart/checkpoints/00000003"
    assert re.search(
        rf"^init_from +{where}   \(resumes at update 3 with its optimizer\)$", output, re.MULTILINE
    )
    assert re.search(r"^advice +the learning rate jumps from \S+ to \S+ at update 4", output, re.MULTILINE)
    assert [record["iter"] for record in records("runs/quickstart-2") if record["kind"] == "step"][-1] == 7
    assert folder_contents(Path("runs/quickstart")) == before
    assert main(["sample", "--num_samples=1", "--max_new_tokens=15", "--start=the "]) == 0
    text = capsys.readouterr()
    assert re.fullmatch(r"the (.|\n){15}\n-{15}\n", text.out)
    assert text.err.startswith("model         runs/quickstart-2/checkpoints/0000000")


def test_config_toml_of_a_resumed_run_starts_another_one(mine: Path, capsys: Capture) -> None:
    assert train() == 0
    assert main(["train", "--init_from=resume", "--max_iters=4"]) == 0
    assert main(["train", "runs/quickstart/config.toml"]) == 0


def test_config_toml_asks_for_the_same_run(mine: Path, capsys: Capture) -> None:
    assert train() == 0
    assert main(["train", "runs/quickstart/config.toml"]) == 0
    losses = [
        [record["loss"] for record in records(run) if record["kind"] == "eval"]
        for run in ("runs/quickstart", "runs/config")
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "0123456789 !?",
            "has a vocabulary of 13, runs/quickstart/checkpoints/00000003 of 29; it needs the dataset",
        ),
        (
            WORDS.upper(),
            "numbers its tokens differently from runs/quickstart/checkpoints/00000003",
        ),
    ],
)
def test_another_vocabulary_is_refused_on_resume(
    mine: Path, capsys: Capture, text: str, expected: str
) -> None:
    assert train() == 0
    prepare_text("other", text * 60)
    before = Path("runs/quickstart", journal.FILE_NAME).read_bytes()
    (problem,) = error_lines(capsys, "train", "--init_from=resume", "--dataset=other", "--max_iters=6")
    assert problem.startswith("--dataset=other ")
    assert expected in problem
    assert Path("runs/quickstart", journal.FILE_NAME).read_bytes() == before


def test_another_shape_is_refused_on_resume(mine: Path, capsys: Capture) -> None:
    assert train() == 0
    (problem,) = error_lines(capsys, "train", "--init_from=resume", "--n_layer=2")
    assert problem == (
        "--n_layer=2 does not fit runs/quickstart/checkpoints/00000003, which has n_layer=1: leave it out"
    )


def test_a_text_without_a_newline_can_be_sampled(here: Path, capsys: Capture) -> None:
    prepare_text("mine", WORDS.replace("\n", " ") * 60)
    assert train(sample_tokens=8) == 0
    assert records("runs/quickstart")[-1]["reason"] == "finished"


def test_a_run_in_a_process_of_its_own_prints_plain_lines_and_accounts_for_its_start(mine: Path) -> None:
    done = glass(
        "train", "--dataset=mine", *TINY_FLAGS, "--block_size=16", "--max_iters=6", "--sample_tokens=8"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", done.stdout)
    assert "end           finished after 6 updates" in done.stdout
    end = records("runs/quickstart")[-1]
    assert end["ledger"]["startup"] > 0.1  # Python and torch had to start
    assert end["ledger"]["other"] < 0.05 * end["wall_s"]


# --- a dataset by its path


@pytest.mark.parametrize("is_absolute", [False, True], ids=["relative", "absolute"])
def test_a_dataset_by_its_path_is_the_same_for_every_command(
    here: Path, capsys: Capture, is_absolute: bool
) -> None:
    Path("../mine.txt").write_text(WORDS * 60)
    assert main(["prepare", "../mine.txt", "--out_dir=some/where"]) == 0
    path = str(here / "some/where" if is_absolute else "some/where")
    flags = [*TINY_FLAGS, "--block_size=8", "--device=cpu", "--sample_tokens=0", "--log_interval=3"]
    assert main(["train", *flags, f"--dataset={path}", "--out_dir=run", "--max_iters=3"]) == 0
    assert main(["train", "--init_from=resume", "--out_dir=run", "--max_iters=6"]) == 0
    assert main(["train", "--init_from=run", f"--data_dir={path}", "--out_dir=fork", "--max_iters=9"]) == 0
    by_path, resumed, by_folder = (
        record["data"]
        for run in ("run", "fork")
        for record in journal.read(Path(run, journal.FILE_NAME))
        if record["kind"] == "run"
    )
    assert by_path["name"] == "mine"
    assert by_path["hash"] == resumed["hash"] == by_folder["hash"]
    capsys.readouterr()
    assert main(["plan", "quickstart", f"--dataset={path}", "--gpu=rtx4070"]) == 0
    assert f"prepared in {path}" in capsys.readouterr().out
    assert not Path("data").exists()


# --- ~, which a shell leaves alone after =


def test_home_is_home_and_no_folder_of_that_name(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    flags = [*TINY_FLAGS, "--block_size=8", "--device=cpu", "--sample_tokens=0", "--dataset=mine"]
    assert main(["train", *flags, "--out_dir=~/run", "--max_iters=3"]) == 0
    run = tmp_path / "home/run"
    assert f"--init_from=resume --out_dir={run} " in capsys.readouterr().out
    assert error_lines(capsys, "train", *flags, "--out_dir=~/run")[0].startswith(
        "--out_dir=~/run holds a run"
    )
    assert main(["train", "--init_from=resume", "--out_dir=~/run", "--max_iters=6"]) == 0
    assert main(["train", "--init_from=~/run", "--out_dir=~/fork", "--max_iters=9"]) == 0
    Path("config.toml").write_text('out_dir = "~/run"\n')
    assert main(["train", "config.toml", *flags, "--max_iters=3"]) == 0
    assert main(["train", "config.toml", "--init_from=resume", "--max_iters=4"]) == 0
    assert main(["show", str(run), "--svg=~/run.svg"]) == 0
    assert main(["report", str(run), "--out=~/run.html"]) == 0
    assert {path.name for path in run.parent.iterdir()} == {"run", "run-2", "fork", "run.svg", "run.html"}
    assert not Path("~").exists()


@pytest.mark.parametrize(("language", "script"), [("hi", "\u0900-\u097f"), ("ar", "\u0600-\u06ff")])
def test_a_run_speaks_the_readers_language_and_its_journal_english(
    mine: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, language: str, script: str
) -> None:
    assert train(f"--lang={language}") == 0
    lines = capsys.readouterr().out.splitlines()
    values = [line for line in lines if re.match(r"(iter|eval|saved) +\d+   ", line)]
    assert len(values) > 4  # lines of values are the same in every language
    assert not any(re.search(f"[{script}]", line) for line in values)
    others = [line for line in lines if line not in values and line.strip() and "glass " not in line]
    assert sum(bool(re.search(f"[{script}]", line)) for line in others) > 10
    journal_text = Path("runs/quickstart", journal.FILE_NAME).read_text(encoding="utf-8")
    assert not re.search(f"[{script}]", journal_text)
    monkeypatch.setenv("LANG", f"{language}.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    assert main(["show", "runs/quickstart"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == lines[: len(shown)]
    (problem,) = error_lines(capsys, "train", "--lang=xx")
    assert "--lang=xx" in problem
