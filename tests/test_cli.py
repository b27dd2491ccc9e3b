"""`glass`, as a person or a script meets it: what it prints, what it makes, and what it leaves alone."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from glassgpt.account import journal
from glassgpt.cli import main
from glassgpt.data import bulk
from glassgpt.version import VERSION

WORDS = "the quick brown fox jumps over a lazy dog;\n"
TINY = [
    "--n_layer=1",
    "--n_embd=32",
    "--n_head=2",
    "--batch_size=4",
    "--eval_interval=3",
    "--eval_tokens=64",
    "--probe_seconds=0",
]

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def mine(here: Path, capsys: Capture) -> Path:
    """A folder with a dataset called `mine`, prepared from a text that is elsewhere."""
    prepared("mine", WORDS * 60)
    capsys.readouterr()
    return here


def prepared(name: str, text: str) -> None:
    path = Path("..", f"{name}.txt")
    path.write_text(text)
    assert main(["prepare", str(path)]) == 0


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, files with what is in them."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def refused(capsys: Capture, *arguments: str) -> list[str]:
    """The problems said, after checking that it was said properly and that nothing was touched."""
    before = contents(Path.cwd())
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert contents(Path.cwd()) == before
    lines = said.err.splitlines()
    assert lines
    assert all(line.startswith("error: ") for line in lines)
    assert said.out == ""
    return [line.removeprefix("error: ") for line in lines]


def glass(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real thing, in a process of its own, in the current folder."""
    return subprocess.run(
        [sys.executable, "-m", "glassgpt", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
    )


# --- a dataset by its path


@pytest.mark.parametrize("is_absolute", [False, True], ids=["relative", "absolute"])
def test_a_dataset_by_its_path_is_the_same_for_every_command(
    here: Path, capsys: Capture, is_absolute: bool
) -> None:
    Path("../mine.txt").write_text(WORDS * 60)
    assert main(["prepare", "../mine.txt", "--out_dir=some/where"]) == 0
    path = str(here / "some/where" if is_absolute else "some/where")
    flags = [*TINY, "--block_size=8", "--device=cpu", "--sample_tokens=0", "--log_interval=3"]
    assert main(["train", *flags, f"--dataset={path}", "--out_dir=run", "--max_iters=3"]) == 0
    assert main(["train", "--init_from=resume", "--out_dir=run", "--max_iters=6"]) == 0
    assert main(["train", "--init_from=run", f"--data_dir={path}", "--out_dir=fork", "--max_iters=9"]) == 0
    by_path, resumed, by_folder = (
        record["data"]
        for run in ("run", "fork")
        for record in journal.read(Path(run, journal.NAME))
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
    flags = [*TINY, "--block_size=8", "--device=cpu", "--sample_tokens=0", "--dataset=mine"]
    assert main(["train", *flags, "--out_dir=~/run", "--max_iters=3"]) == 0
    run = tmp_path / "home/run"
    assert f"--init_from=resume --out_dir={run} " in capsys.readouterr().out
    assert refused(capsys, "train", *flags, "--out_dir=~/run")[0].startswith("--out_dir=~/run holds a run")
    assert main(["train", "--init_from=resume", "--out_dir=~/run", "--max_iters=6"]) == 0
    assert main(["train", "--init_from=~/run", "--out_dir=~/fork", "--max_iters=9"]) == 0
    Path("config.toml").write_text('out_dir = "~/run"\n')
    assert main(["train", "config.toml", *flags, "--max_iters=3"]) == 0
    assert main(["train", "config.toml", "--init_from=resume", "--max_iters=4"]) == 0
    assert main(["show", str(run), "--svg=~/run.svg"]) == 0
    assert main(["report", str(run), "--out=~/run.html"]) == 0
    assert {path.name for path in run.parent.iterdir()} == {"run", "run-2", "fork", "run.svg", "run.html"}
    assert not Path("~").exists()


# --- stopped


def test_stopped_before_it_has_loaded(here: Path) -> None:
    """Loading takes some tenths of a second, and an impatient person is faster."""
    code = """
import runpy, sys
class Impatient:
    def find_spec(self, name, *_):
        if name == "glassgpt.cli.explain":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Impatient())
runpy.run_module("glassgpt", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (130, "stopped at once")


# --- answers at once


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["runs"],
        ["show", "runs/mine"],
        ["train", "--help"],
        ["prepare", "--help"],
        ["sample", "--help"],
        ["train", "quickstrat"],
    ],
    ids=" ".join,
)
def test_what_needs_no_torch_does_not_import_it(here: Path, arguments: list[str]) -> None:
    (here / "runs" / "mine").mkdir(parents=True)
    (here / "runs" / "mine" / journal.NAME).write_bytes(journal.encode({"kind": "log", "iter": 1, "time": 1}))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = (
        "import runpy, sys\n"
        "sys.argv = ['glass', *sys.argv[1:]]\n"
        "try:\n"
        "    runpy.run_module('glassgpt', run_name='__main__')\n"
        "finally:\n"
        "    print('torch' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == (2 if "quickstrat" in arguments else 0), done.stderr
    assert done.stderr.splitlines()[-1] == "False"
    # Importing torch alone takes more than this; seconds of the processor, so other work does not count.
    assert after.ru_utime - before.ru_utime < 1.5


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(capsys: Capture, arguments: list[str]) -> None:
    assert main(arguments) == 0
    said = capsys.readouterr().out
    for command in ("train", "sample", "prepare", "runs", "show"):
        assert f"glass {command} " in said


def test_help_says_what_can_be_prepared(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "glass prepare" in line)
    assert "'PATTERN'" in line
    assert "OWNER/NAME on Hugging Face" in line


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        (2, "\nstopped at once; the same command goes on after the last full shard\n"),
        (0, "\nstopped at once\n"),  # there is nothing to go on from
    ],
)
def test_ctrl_c_while_much_is_prepared(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, shards: int, said: str
) -> None:
    lines = [json.dumps({"text": f"{at} {WORDS * 60}"}) for at in range(1600)]  # 4 MB, four parcels
    Path("many.jsonl").write_text("\n".join(lines) + "\n")
    words = ["prepare", "many.jsonl", "--tokenizer=byte", "--shard_tokens=100000", "--workers=1"]
    saved = 0
    original = bulk._save

    def save(*arguments: Any) -> None:
        nonlocal saved
        if saved == shards:
            raise KeyboardInterrupt
        original(*arguments)
        saved += 1

    with monkeypatch.context() as patch:
        patch.setattr(bulk, "_save", save)
        assert main(words) == 130
    assert capsys.readouterr().err == said
    assert main(words) == 0
    assert ("going on where it was stopped" in capsys.readouterr().out) == (shards > 0)


def test_the_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"glassgpt {VERSION}\n"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train", "--learning_rate"),
        ("prepare", "--tokenizer"),
        ("runs", "FOLDER"),
        ("show", "--svg"),
        ("sample", "--temperature"),
    ],
)
def test_every_command_has_help(here: Path, capsys: Capture, command: str, expected: str) -> None:
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert expected in said
    assert contents(here) == {}


def test_help_of_train_lists_the_presets(capsys: Capture) -> None:
    assert main(["train", "quickstart", "-h"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"shakespeare_char_cpu\s+nanoGPT's README run", said)


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tarin"], ["there is no command 'tarin'; there are train, prepare, runs, show"]),
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
        (["prepare"], ["say what to prepare, one thing at a time: pylib"]),
        (["prepare", "a", "b"], ["say what to prepare"]),
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
    found = refused(capsys, *arguments)
    assert len(found) == len(expected)
    for problem, pattern in zip(found, expected, strict=True):
        assert re.search(pattern, problem), problem
    assert contents(here) == {}


def test_a_device_that_is_not_there(mine: Path, capsys: Capture) -> None:
    import torch

    missing = "mps" if torch.cuda.is_available() else "cuda"
    (problem,) = refused(capsys, "train", "--dataset=mine", *TINY, "--block_size=16", f"--device={missing}")
    assert problem == f"--device={missing} is not available here; try --device=auto or --device=cpu"


def test_half_a_torchrun_is_refused_before_anything_is_prepared(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "3")
    (problem,) = refused(capsys, "train")
    assert "not LOCAL_RANK, MASTER_ADDR, MASTER_PORT: start them with torchrun, or `glass train" in problem
    assert contents(here) == {}


@pytest.mark.parametrize("text", ["", "x"])
def test_a_text_that_is_empty_or_only_a_character(here: Path, capsys: Capture, text: str) -> None:
    Path("data").mkdir()
    Path("short.txt").write_text(text)
    (problem,) = refused(capsys, "prepare", "short.txt")
    assert "text" in problem


def test_a_text_shorter_than_the_context(here: Path, capsys: Capture) -> None:
    prepared("short", "to be or not to be")
    (problem,) = refused(capsys, "train", "--dataset=short", *TINY, "--block_size=64")
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
    (problem,) = refused(capsys, "train", "--dataset=mine", *TINY, "--block_size=16")
    assert f"data/mine/manifest.json {expected}" in problem
    assert "--overwrite" in problem


def test_tokens_that_were_cut_off(mine: Path, capsys: Capture) -> None:
    path = Path("data/mine/train.bin")
    path.write_bytes(path.read_bytes()[:-2])
    (problem,) = refused(capsys, "train", "--dataset=mine", *TINY, "--block_size=16")
    assert "data/mine/train.bin has" in problem


def test_an_out_dir_that_is_a_file_or_holds_a_run(mine: Path, capsys: Capture) -> None:
    Path("file").write_text("mine")
    (problem,) = refused(capsys, "train", "--dataset=mine", *TINY, "--block_size=16", "--out_dir=file")
    assert problem == "--out_dir=file cannot be made: file is a file; choose another --out_dir"
    Path("run").mkdir()
    Path("run", journal.NAME).write_text("")
    (problem,) = refused(capsys, "train", "--dataset=mine", *TINY, "--block_size=16", "--out_dir=run")
    assert "--out_dir=run holds a run already" in problem
    assert "--init_from=resume" in problem


def test_a_mistake_in_a_real_process_is_one_line_and_code_2(here: Path) -> None:
    done = glass("train", "--n_layr=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown setting --n_layr; did you mean --n_layer?\n"


# --- mistakes that are answered wrongly at present


def test_a_flag_is_checked_against_the_settings_it_will_run_with(mine: Path, capsys: Capture) -> None:
    # On a CPU quickstart has 4 heads; 64 is divisible by that, and not by the default of 12.
    small = ["--n_embd=64", "--max_iters=1", "--eval_tokens=64", "--probe_seconds=0", "--sample_tokens=0"]
    assert main(["train", "--dataset=mine", "--device=cpu", "--block_size=16", "--batch_size=1", *small]) == 0


@pytest.mark.parametrize("device", ["auto:1", "cpu:"])
def test_a_device_that_makes_no_sense(mine: Path, capsys: Capture, device: str) -> None:
    (problem,) = refused(capsys, "train", "--dataset=mine", *TINY, "--block_size=16", f"--device={device}")
    assert f"--device={device}" in problem


def test_a_seed_of_more_than_64_bits(mine: Path, capsys: Capture) -> None:
    (problem,) = refused(capsys, "train", "--dataset=mine", *TINY, "--block_size=16", f"--seed={10**25}")
    assert "--seed=" in problem


def test_nothing_is_prepared_for_a_run_that_cannot_start(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassgpt.data import prepare

    asked = []
    monkeypatch.setattr(prepare, "prepare", lambda *args, **options: asked.append(args))
    Path("file").write_text("mine")
    main(["train", "--out_dir=file"])
    assert asked == []


def test_a_text_that_cannot_be_prepared_leaves_no_empty_folder(here: Path, capsys: Capture) -> None:
    Path("empty.txt").write_text("")
    refused(capsys, "prepare", "empty.txt")


def test_a_wrong_preset_and_a_wrong_flag_are_reported_together(here: Path, capsys: Capture) -> None:
    assert len(refused(capsys, "train", "quickstrat", "--n_layr=3")) == 2


def test_a_wrong_type_and_a_wrong_value_are_reported_together(here: Path, capsys: Capture) -> None:
    assert len(refused(capsys, "train", "--n_layer=x", "--n_head=-1")) == 2


def test_a_problem_is_one_harmless_line(here: Path, capsys: Capture) -> None:
    Path("evil.toml").write_text('"\\u001b[31m\\nok: all is well" = 1\n')
    (problem,) = refused(capsys, "train", "evil.toml")
    assert "\x1b" not in problem


def test_more_than_one_folder_of_runs_is_refused(here: Path, capsys: Capture) -> None:
    refused(capsys, "runs", ".", "nowhere")


# --- a run


def train(*more: str, max_iters: int = 3, sample_tokens: int = 0) -> int:
    length = ["--block_size=16", f"--max_iters={max_iters}", f"--sample_tokens={sample_tokens}"]
    return main(["train", "quickstart", "--dataset=mine", *TINY, *length, *more])


def records(run_dir: str) -> list[journal.Record]:
    return list(journal.read(Path(run_dir, journal.NAME)))


def test_a_whole_run_its_second_start_and_its_continuation(mine: Path, capsys: Capture) -> None:
    assert train(max_iters=6, sample_tokens=8) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "\x1b" not in said.out
    assert "\r" not in said.out
    for line in (
        r"run           runs/quickstart   \(glassgpt",
        r"model         modern: 1 layer, 2 heads, 32 wide, context 16: [\d.]+k parameters",
        r"device        \S+   \(",
        r"batch_tokens  64   \(4 sequences x 16 tokens per update\)",
        r"eval      0   train \d\.\d{4}  val \d\.\d{4} ± ",
        r"eval      3   train ",
        r"save      3   ",
        r"iter      6   loss \d\.\d{4}  [\d.]+ ms  [\d.]+k? tok/s  lr ",
        r"eval      6   val .* whole split",
        r"sample        ",
        r"wall time +\d+\.\d\d  100.0%",
        r"end           finished after 6 updates",
        r"next          train it longer:  glass train --init_from=resume --out_dir=runs/quickstart --max",
    ):
        assert re.search(f"^{line}", said.out, re.MULTILINE), line
    made = {path.name for path in Path("runs/quickstart").iterdir()}
    assert {"config.toml", journal.NAME, "checkpoints", "tokenizer"} <= made
    assert [path.name for path in Path("runs/quickstart/checkpoints").iterdir()] == ["00000006"]
    ledger = records("runs/quickstart")[-1]
    assert sum(ledger["ledger"].values()) == pytest.approx(ledger["wall_s"], abs=1e-9)

    first = contents(Path("runs/quickstart"))
    assert train(max_iters=6) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["quickstart", "quickstart-2"]
    assert contents(Path("runs/quickstart")) == first  # a run is never overwritten

    capsys.readouterr()
    resume = ["train", "--init_from=resume", "--out_dir=runs/quickstart", "--max_iters=9"]
    assert main(resume) == 0
    said = capsys.readouterr()
    assert "resume        after 6 updates" in said.out
    assert "end           finished after 9 updates" in said.out
    raw = Path("runs/quickstart", journal.NAME).read_bytes()
    before = first[journal.NAME]
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
    (problem,) = refused(capsys, "show", "runs/quickstart", "--svg=none/run.svg")
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
    before = contents(Path("runs/quickstart"))
    capsys.readouterr()
    assert main(["train", "--init_from=quickstart@3", "--max_iters=7"]) == 0
    said = capsys.readouterr().out
    where = "runs/quickstart/checkpoints/00000003"
    assert re.search(
        rf"^init_from +{where}   \(goes on at update 3 with its optimizer\)$", said, re.MULTILINE
    )
    assert re.search(r"^advice +the learning rate jumps from \S+ to \S+ at update 4", said, re.MULTILINE)
    assert [record["iter"] for record in records("runs/quickstart-2") if record["kind"] == "step"][-1] == 7
    assert contents(Path("runs/quickstart")) == before
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
            "numbers its tokens differently from the dataset that runs/quickstart/checkpoints/00000003 was",
        ),
    ],
)
def test_another_vocabulary_is_refused_on_resume(
    mine: Path, capsys: Capture, text: str, expected: str
) -> None:
    assert train() == 0
    prepared("other", text * 60)
    before = Path("runs/quickstart", journal.NAME).read_bytes()
    (problem,) = refused(capsys, "train", "--init_from=resume", "--dataset=other", "--max_iters=6")
    assert problem.startswith("--dataset=other ")
    assert expected in problem
    assert Path("runs/quickstart", journal.NAME).read_bytes() == before


def test_another_shape_is_refused_on_resume(mine: Path, capsys: Capture) -> None:
    assert train() == 0
    (problem,) = refused(capsys, "train", "--init_from=resume", "--n_layer=2")
    assert problem == "--n_layer=2 does not fit runs/quickstart/checkpoints/00000003, which has n_layer=1"


def test_a_text_without_a_newline_can_be_sampled(here: Path, capsys: Capture) -> None:
    prepared("mine", WORDS.replace("\n", " ") * 60)
    assert train(sample_tokens=8) == 0
    assert records("runs/quickstart")[-1]["reason"] == "finished"


def test_a_run_in_a_process_of_its_own_prints_plain_lines_and_accounts_for_its_start(mine: Path) -> None:
    done = glass("train", "--dataset=mine", *TINY, "--block_size=16", "--max_iters=6", "--sample_tokens=8")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", done.stdout)
    assert "end           finished after 6 updates" in done.stdout
    end = records("runs/quickstart")[-1]
    assert end["ledger"]["startup"] > 0.1  # Python and torch had to start
    assert end["ledger"]["other"] < 0.05 * end["wall_s"]


def test_a_pipe_that_closes_early_is_no_error(here: Path) -> None:
    (here / "runs" / "mine").mkdir(parents=True)
    (here / "runs" / "mine" / journal.NAME).write_text("")
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "glassgpt", "runs"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")
