"""A mistake on the command line is named with its fix, and nothing is made or changed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from workplace import (
    TINY_FLAGS,
    Capture,
    error_lines,
    folder_contents,
    glass,
    prepare_dataset_mine,
    prepare_text,
)

from glassgpt.cli import main
from glassgpt.record import journal


@pytest.fixture
def mine(here: Path, capsys: Capture) -> Path:
    """A folder with a dataset called `mine`."""
    prepare_dataset_mine(capsys)
    return here


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trian"], ["there is no command 'trian'; did you mean glass train"]),
        (["zzz"], ["there is no command 'zzz'; commands: train, prepare, runs, show"]),
        (["train", "quickstrat"], ["quickstrat is neither a preset .* did you mean quickstart"]),
        (["train", "nothing.toml"], ["there is no config file nothing.toml"]),
        (
            ["train", "quickstart", "gpt2_124m"],
            ["one preset or file at a time, not quickstart and gpt2_124m"],
        ),
        (["train", "--n_layr=3"], ["unknown setting --n_layr; did you mean --n_layer"]),
        (["train", "--n_layer=three"], ["--n_layer=three is not a number"]),
        (["train", "--n_layer=1.5"], ["--n_layer=1.5 is not a whole number"]),
        (["train", "--n_layer"], ["--n_layer needs a value"]),
        (["train", "--arch=gpt5"], ["--arch=gpt5 is not one of gpt2, modern"]),
        (["train", "--block_size=0"], ["--block_size=0 must be greater than 0"]),
        (
            ["train", "--n_embd=100", "--n_head=8"],
            ["--n_embd=100 is not divisible by --n_head=8; try --n_embd=96"],
        ),
        (
            [
                "train",
                "--block_size=16",
                "--batch_size=4",
                "--gradient_accumulation_steps=2",
                "--batch_tokens=64",
            ],
            ["--batch_size=4 x --gradient_accumulation_steps=2 .* not --batch_tokens=64; leave one"],
        ),
        (
            ["train", "--eval_tokens=64", "--eval_iters=2"],
            ["--eval_tokens and --eval_iters say the same thing twice"],
        ),
        (
            ["train", "--dataset=mine"],
            ["no dataset at data/mine: run  glass prepare FILE_OR_FOLDER --out_dir=data/mine"],
        ),
        (["train", "--device=abacus"], ["--device=abacus is not one of auto, cpu, cuda"]),
        (["train", "--device=cpu:7"], ["--device=cpu:7 is not one of auto, cpu, cuda, cuda:N, mps"]),
        (["train", "--device=cpu:0:0"], ["--device=cpu:0:0 is not one of"]),
        (
            ["train", "--init_from=resume"],
            ["there is no run runs/quickstart; "],
        ),
        (["train", "--init_from=resume", "--out_dir=x"], ["--out_dir=x holds no run to resume"]),
        (
            ["train", "--init_from=x"],
            ["x is neither a run, nor nanoGPT's ckpt.pt, nor one of gpt2, .*glass runs"],
        ),
        (["train", "--init_from=x@5", "--n_layer=2"], ["x@5 is neither a run"]),
        (
            ["train", "--n_layr=3", "--n_head=x", "--bias=maybe", "--seed"],
            [
                "--seed needs a value",
                "unknown setting --n_layr",
                "--n_head=x is not",
                "--bias=maybe is neither",
            ],
        ),
        (
            ["train", "--n_layer=0", "--dropout=1.5", "--device=abacus"],
            ["--n_layer=0 must be", "--dropout=1.5 must be", "--device=abacus is not"],
        ),
        (["prepare"], ["name one thing to prepare: pylib"]),
        (["prepare", "a", "b"], ["name one thing to prepare"]),
        (["prepare", "nothing.txt"], ["nothing.txt"]),
        (["prepare", "pylib", "--tokeniser=char"], ["unknown setting --tokeniser; did you mean --tokenizer"]),
        (["runs", "nowhere"], ["there is no folder nowhere"]),
        (["runs", "--al"], ["unknown setting --al"]),
        (["show"], ["say which run to show; `glass runs` lists them"]),
        (["show", "runs/none"], ["runs/none holds no run"]),
        (["show", "a", "--svgg=x"], ["unknown setting --svgg; did you mean --svg"]),
        (["sample"], ["there is no run in runs/ to sample from; say which: glass sample RUN"]),
        (["sample", "mine"], ["mine is neither a run, nor nanoGPT's ckpt.pt"]),
        (["sample", "--out_dir=out"], ["there is no run out; "]),
        (["sample", "a", "b"], ["one run at a time, not a and b; --compare=RUN2"]),
        (["sample", "--start=FILE:x"], ["--start=FILE:x cannot be read: No such file"]),
        (
            ["sample", "--temprature=1", "--top_k=0", "--top_p=none", "--seed=x"],
            [
                "unknown setting --temprature; did you mean --temperature",
                "--seed=x is not",
                "--top_k=0 must be",
            ],
        ),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_a_mistake_is_named_with_the_fix_and_nothing_is_made(
    here: Path, capsys: Capture, arguments: list[str], expected: list[str]
) -> None:
    problems = error_lines(capsys, *arguments)
    assert len(problems) == len(expected)
    for problem, pattern in zip(problems, expected, strict=True):
        assert re.search(pattern, problem), problem
    assert folder_contents(here) == {}


def test_a_device_that_is_not_there(mine: Path, capsys: Capture) -> None:
    import torch

    missing = "mps" if torch.cuda.is_available() else "cuda"
    (problem,) = error_lines(
        capsys, "train", "--dataset=mine", *TINY_FLAGS, "--block_size=16", f"--device={missing}"
    )
    assert problem == f"--device={missing} is not available here; try --device=auto or --device=cpu"


def test_half_a_torchrun_is_refused_before_anything_is_prepared(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "3")
    (problem,) = error_lines(capsys, "train")
    assert "lacks LOCAL_RANK, MASTER_ADDR, MASTER_PORT: start them with torchrun, or `glass train" in problem
    assert folder_contents(here) == {}


@pytest.mark.parametrize("text", ["", "x"])
def test_a_text_that_is_empty_or_only_a_character(here: Path, capsys: Capture, text: str) -> None:
    Path("data").mkdir()
    Path("short.txt").write_text(text)
    (problem,) = error_lines(capsys, "prepare", "short.txt")
    assert "text" in problem


def test_a_text_shorter_than_the_context(here: Path, capsys: Capture) -> None:
    prepare_text("short", "to be or not to be")
    (problem,) = error_lines(capsys, "train", "--dataset=short", *TINY_FLAGS, "--block_size=64")
    assert re.search(
        r"training split has \d+ tokens, fewer than --block_size=64 \+ 1; .*lower --block_size", problem
    )


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (b"", "is damaged, it is not valid JSON"),
        (b"[]", "is damaged, it is not a JSON object"),
        (b'{"version": 99}', "has version 99"),
    ],
)
def test_a_corrupt_manifest(mine: Path, capsys: Capture, damage: bytes, expected: str) -> None:
    Path("data/mine/manifest.json").write_bytes(damage)
    (problem,) = error_lines(capsys, "train", "--dataset=mine", *TINY_FLAGS, "--block_size=16")
    assert f"data/mine/manifest.json {expected}" in problem
    assert "--overwrite" in problem


def test_tokens_that_were_cut_off(mine: Path, capsys: Capture) -> None:
    path = Path("data/mine/train.bin")
    path.write_bytes(path.read_bytes()[:-2])
    (problem,) = error_lines(capsys, "train", "--dataset=mine", *TINY_FLAGS, "--block_size=16")
    assert "data/mine/train.bin has" in problem


def test_an_out_dir_that_is_a_file_or_holds_a_run(mine: Path, capsys: Capture) -> None:
    Path("file").write_text("mine")
    (problem,) = error_lines(
        capsys, "train", "--dataset=mine", *TINY_FLAGS, "--block_size=16", "--out_dir=file"
    )
    assert problem == "--out_dir=file cannot be made: file is a file; choose another --out_dir"
    Path("run").mkdir()
    Path("run", journal.FILE_NAME).write_text("")
    (problem,) = error_lines(
        capsys, "train", "--dataset=mine", *TINY_FLAGS, "--block_size=16", "--out_dir=run"
    )
    assert "--out_dir=run holds a run already" in problem
    assert "--init_from=resume" in problem


def test_a_mistake_in_a_real_process_is_one_line_and_code_2(here: Path) -> None:
    done = glass("train", "--n_layr=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown setting --n_layr; did you mean --n_layer?\n"


def test_a_flag_is_checked_against_the_settings_it_will_run_with(mine: Path, capsys: Capture) -> None:
    # On a CPU quickstart has 4 heads; 64 is divisible by that, and not by the default of 12.
    small = ["--n_embd=64", "--max_iters=1", "--eval_tokens=64", "--probe_seconds=0", "--sample_tokens=0"]
    assert main(["train", "--dataset=mine", "--device=cpu", "--block_size=16", "--batch_size=1", *small]) == 0


@pytest.mark.parametrize("device", ["auto:1", "cpu:"])
def test_a_device_that_makes_no_sense(mine: Path, capsys: Capture, device: str) -> None:
    (problem,) = error_lines(
        capsys, "train", "--dataset=mine", *TINY_FLAGS, "--block_size=16", f"--device={device}"
    )
    assert f"--device={device}" in problem


def test_a_seed_of_more_than_64_bits(mine: Path, capsys: Capture) -> None:
    (problem,) = error_lines(
        capsys, "train", "--dataset=mine", *TINY_FLAGS, "--block_size=16", f"--seed={10**25}"
    )
    assert "--seed=" in problem


def test_nothing_is_prepared_for_a_run_that_cannot_start(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassgpt.data import prepare

    prepared = []
    monkeypatch.setattr(prepare, "prepare", lambda *args, **options: prepared.append(args))
    Path("file").write_text("mine")
    main(["train", "--out_dir=file"])
    assert prepared == []


def test_a_text_that_cannot_be_prepared_leaves_no_empty_folder(here: Path, capsys: Capture) -> None:
    Path("empty.txt").write_text("")
    error_lines(capsys, "prepare", "empty.txt")


def test_a_wrong_preset_and_a_wrong_flag_are_reported_together(here: Path, capsys: Capture) -> None:
    assert len(error_lines(capsys, "train", "quickstrat", "--n_layr=3")) == 2


def test_a_wrong_type_and_a_wrong_value_are_reported_together(here: Path, capsys: Capture) -> None:
    assert len(error_lines(capsys, "train", "--n_layer=x", "--n_head=-1")) == 2


def test_a_misspelt_setting_of_a_run_is_reported_without_torch(here: Path) -> None:
    code = "import sys, glassgpt.cli as cli; print(cli.main(['train', '--n_layr=3']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]


def test_a_problem_is_one_harmless_line(here: Path, capsys: Capture) -> None:
    Path("evil.toml").write_text('"\\u001b[31m\\nok: all is well" = 1\n')
    (problem,) = error_lines(capsys, "train", "evil.toml")
    assert "\x1b" not in problem


def test_more_than_one_folder_of_runs_is_refused(here: Path, capsys: Capture) -> None:
    error_lines(capsys, "runs", ".", "nowhere")
