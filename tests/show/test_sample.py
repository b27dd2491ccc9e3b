"""`glass sample` as a person or a pipe meets it: text and nothing else on stdout, the rest on stderr."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassgpt.cli import main
from glassgpt.config import TrainConfig
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.data.tokenizers import load_tokenizer
from glassgpt.model.generate import generate_samples
from glassgpt.record import journal
from glassgpt.record.run_dir import CHECKPOINTS_DIR
from glassgpt.sample import sampler as writers
from glassgpt.sample.sample_options import SampleOptions
from glassgpt.show.terminal.sample_view import SEPARATOR, describe_checkpoint
from glassgpt.training.checkpoint.checkpoints import committed_paths, list_checkpoints
from glassgpt.training.session import train

MakeConfig = Callable[..., TrainConfig]
Capture = pytest.CaptureFixture[str]
Start = Callable[..., subprocess.Popen[bytes]]

FEW = ["--num_samples=2", "--max_new_tokens=20", "--device=cpu"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mine(here: Path, tiny: MakeConfig) -> TrainConfig:
    """A run at runs/mine, with checkpoints @4, @8 and @12."""
    config = replace(tiny(max_iters=12, eval_interval=4, keep_checkpoints=9), out_dir="runs/mine")
    train(config)
    return config


def sampled(capsys: Capture, *arguments: str) -> tuple[list[str], str]:
    """The samples, and the output about them."""
    capsys.readouterr()
    assert main(["sample", *few(*arguments)]) == 0
    captured = capsys.readouterr()
    return split(captured.out), captured.err


def few(*arguments: str) -> list[str]:
    given = {argument.partition("=")[0] for argument in arguments}
    return [*arguments, *(flag for flag in FEW if flag.partition("=")[0] not in given)]


def split(out: str) -> list[str]:
    assert out.endswith(f"\n{SEPARATOR}\n")
    return out.removesuffix(f"\n{SEPARATOR}\n").split(f"\n{SEPARATOR}\n")


def refused(capsys: Capture, *arguments: str) -> str:
    capsys.readouterr()
    assert main(["sample", *few(*arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("error: ").rstrip("\n")


def written(run: str, text: str, options: SampleOptions) -> list[str]:
    """The samples, without what shows them."""
    writer = writers.load_sampler(run, options)
    columns: list[list[str]] = []
    for pieces in writer.sample(writer.encode(text), options):
        columns += [pieces] if pieces else []
    return [text + "".join(sample) for sample in zip(*columns, strict=True)]


def val_losses(run_dir: str) -> dict[int, float]:
    records = journal.read(Path(run_dir, journal.FILE_NAME))
    return {record["iter"]: record["loss"] for record in records if record.get("split") == "val"}


# --- what is where ---


def test_stdout_has_the_text_and_stderr_what_there_is_to_know(mine: TrainConfig, capsys: Capture) -> None:
    samples, err = sampled(capsys, "mine", "--start=the ")
    options = SampleOptions(num_samples=2, max_new_tokens=20, device="cpu")
    assert samples == written("mine", "the ", options)
    assert [len(sample) for sample in samples] == [24, 24]
    losses = val_losses("runs/mine")
    lowest = min(losses, key=losses.__getitem__)
    where = f"runs/mine/{CHECKPOINTS_DIR}/{lowest:08d}"
    where += f", after {lowest} updates, validation loss {losses[lowest]:.4f}"
    parameters = 16 * (16 + 8) + 2 * (12 * 16 * 16 + 2 * 16) + 16
    lines = err.splitlines()
    assert lines[0] == f"model         {where}, {parameters / 1000:.3g}k parameters"
    assert lines[1].startswith("device        cpu   (asked for")
    assert lines[2].startswith("dtype         float32   (")
    assert lines[3] == "tokenizer     char   (16 tokens)"
    assert re.fullmatch(r"40 tokens in \S+ m?s: \S+ tok/s", lines[4])
    assert len(lines) == 5


def test_text_arrives_as_it_is_written(
    mine: TrainConfig, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[str] = []

    def watched(*arguments: Any, **options: Any) -> Iterator[list[int]]:
        for tokens in generate_samples(*arguments, **options):
            arrived.append(capsys.readouterr().out)  # what had come when this token was drawn
            yield tokens

    monkeypatch.setattr(writers, "generate_samples", watched)
    assert main(["sample", *few("mine", "--start=the ")]) == 0
    arrived.append(capsys.readouterr().out)
    first, second = written("mine", "the ", SampleOptions(num_samples=2, max_new_tokens=20, device="cpu"))
    assert arrived[:20] == ["the ", *first[4:-1]]
    assert arrived[20] == f"{first[-1]}\n{SEPARATOR}\n{second}\n{SEPARATOR}\n"


def test_each_option_reaches_the_model(mine: TrainConfig, capsys: Capture) -> None:
    plain, _ = sampled(capsys, "mine")
    assert sampled(capsys, "mine", "--seed=1337")[0] == plain
    assert sampled(capsys, "mine", "--num_samples=5")[0][:2] == plain
    longer, _ = sampled(capsys, "mine", "--max_new_tokens=30")
    assert [(text[:20], len(text)) for text in longer] == [(text, 30) for text in plain]
    for change in ("--seed=5", "--temperature=3", "--top_k=2", "--top_p=0.3", "--start=the"):
        assert sampled(capsys, "mine", change)[0] != plain
    _, err = sampled(capsys, "mine", "--dtype=bfloat16")
    assert re.search(r"^dtype +bfloat16   \(asked for\)$", err, re.MULTILINE)
    for nothing in ("--compile=True", "--compile=False", "--top_k=none", "--top_p=1"):
        assert sampled(capsys, "mine", nothing)[0] == plain


def test_samples_in_several_groups_look_the_same(
    mine: TrainConfig, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, _ = sampled(capsys, "mine", "--num_samples=5", "--start=the ")
    one = 2 * 4 * mine.n_layer * mine.n_embd * mine.block_size
    for rows in (1, 2):
        monkeypatch.setattr(writers, "_MAX_KV_CACHE_BYTES", rows * one)
        assert sampled(capsys, "mine", "--num_samples=5", "--start=the ")[0] == together


# --- the prompt ---


def test_a_prompt_from_a_flag_a_file_and_a_pipe_is_the_same(
    mine: TrainConfig, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "the glass\nhouse "
    Path("prompt.txt").write_text(text)
    plain, _ = sampled(capsys, f"--start={text}")
    assert all(sample.startswith(text) for sample in plain)
    assert sampled(capsys, "--start=FILE:prompt.txt")[0] == plain
    assert sampled(capsys, "--start", text)[0] == plain
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert sampled(capsys, "--start=-")[0] == plain


def test_unknown_characters_are_shown_and_nothing_is_written(mine: TrainConfig, capsys: Capture) -> None:
    problem = refused(capsys, "--start=the 🦊 QUEEN")
    assert re.search("'E', 'N', 'Q', 'U', '🦊': .* 16 characters", problem)


def test_a_truncated_prompt_is_reported(mine: TrainConfig, capsys: Capture) -> None:
    text = "the light sees a house"
    samples, err = sampled(capsys, f"--start={text}", "--temperature=0")
    (line,) = (line for line in err.splitlines() if line.startswith("prompt "))
    assert re.findall(r"\d+", line) == ["22", "8"]
    # What it does not see does not matter.
    for other in (f"a door {text}", text[-8:]):
        ends = [
            sample.removeprefix(other) for sample in sampled(capsys, f"--start={other}", "--temperature=0")[0]
        ]
        assert ends == [sample.removeprefix(text) for sample in samples]
    assert "prompt " not in sampled(capsys, "--start=the")[1]


# --- which run ---


def model_line(err: str) -> str:
    (line,) = (line for line in err.splitlines() if line.startswith("model "))
    return line.removeprefix("model").strip()


def test_every_way_to_name_a_run(mine: TrainConfig, capsys: Capture) -> None:
    lowest = list_checkpoints(Path("runs/mine")).best
    assert lowest is not None
    at = lowest.iter
    for words, expected in (
        ([], at),
        (["mine"], at),
        (["runs/mine"], at),
        ([str(Path.cwd() / "runs/mine")], at),
        (["mine@best"], at),
        (["mine@last"], 12),
        (["runs/mine@4"], 4),
        (["--out_dir=runs/mine"], at),
    ):
        _, err = sampled(capsys, *words)
        assert f"runs/mine/{CHECKPOINTS_DIR}/{expected:08d}, after {expected} updates" in model_line(err)
    kept = ", ".join(f"@{int(path.name)}" for path in committed_paths(Path("runs/mine")))
    assert re.search(f"runs/mine .*@5: .*@last, @best, {kept}", refused(capsys, "mine@5"))
    assert refused(capsys, "nothing").startswith("nothing is neither ")


def test_out_dir_means_the_newest_of_its_row(here: Path, tiny: MakeConfig, capsys: Capture) -> None:
    assert "no run in runs/" in refused(capsys)
    for number, name in enumerate(("out-mine", "out-mine-2"), start=1):
        train(replace(tiny(max_iters=number), out_dir=name))
        for words in (["--out_dir=out-mine"], []):
            assert model_line(sampled(capsys, *words)[1]).startswith(
                f"{name}/{CHECKPOINTS_DIR}/{number:08d}, "
            )


def test_a_damaged_best_checkpoint_is_warned_of(mine: TrainConfig, capsys: Capture) -> None:
    lowest = list_checkpoints(Path("runs/mine")).best
    assert lowest is not None
    whole, _ = sampled(capsys, f"mine@{next(at for at in (12, 8) if at != lowest.iter)}")
    path = lowest.path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\1\2\3")
    samples, err = sampled(capsys, "mine")
    assert re.match(rf"warning       {re.escape(str(path))} is damaged: .*SHA-256.*\nmodel ", err)
    assert samples == whole
    assert lowest.path.exists()


def test_settings_that_are_lost_do_not_keep_it_from_writing(mine: TrainConfig, capsys: Capture) -> None:
    plain, _ = sampled(capsys, "mine")
    Path("runs/mine/config.toml").write_text("[")
    samples, err = sampled(capsys, "mine")
    assert samples == plain
    assert re.match(r"warning       runs/mine/config\.toml .*TOML", err)


def test_a_loss_that_was_not_measured_is_not_made_up(mine: TrainConfig, capsys: Capture) -> None:
    writer = writers.load_sampler("mine@4", SampleOptions(device="cpu"))
    unmeasured = replace(writer, checkpoint=replace(writer.checkpoint, val_loss=None))
    assert re.search("after 4 updates, .*not measured", describe_checkpoint(unmeasured.checkpoint, 1000))
    assert "nan" not in describe_checkpoint(replace(writer.checkpoint, val_loss=float("nan")), 1000)
    not_a_run = replace(
        writer, checkpoint=replace(writer.checkpoint, description="gpt2", val_loss=None, iter=None)
    )
    assert re.fullmatch(r"gpt2, \S+k parameters", describe_checkpoint(not_a_run.checkpoint, 1000))


# --- two side by side ---


def columns(out: str) -> tuple[list[str], list[list[list[str]]]]:
    """The heads of a table, and for each column its cells, each as lines without blanks at their ends."""
    rows: list[list[list[str]]] = [[]]
    for line in out.splitlines():
        if line[:1] in "┏┡├└":
            rows.append([])
        else:
            rows[-1].append([cell[1:].rstrip() for cell in re.split("[┃│]", line)[1:-1]])
    head, *body = (list(zip(*row, strict=True)) for row in rows if row)
    heads = [" ".join(part for part in cell if part) for cell in head]
    return heads, [[list(cell) for cell in column] for column in zip(*body, strict=True)]


def test_compare_shows_the_samples_of_each_run_alone(
    mine: TrainConfig, tiny: MakeConfig, capsys: Capture
) -> None:
    train(replace(tiny(max_iters=3, arch="modern", seed=8), out_dir="runs/other"))
    Path("prompt.txt").write_text("the glass\nhouse")
    for extra in ([], ["--start=FILE:prompt.txt", "--seed=9", "--temperature=1.5", "--num_samples=3"]):
        alone = [sampled(capsys, run, *extra) for run in ("mine@8", "other")]
        assert alone[0][0] != alone[1][0]
        assert main(["sample", *few("mine@8", "--compare=other", *extra)]) == 0
        captured = capsys.readouterr()
        heads, cells = columns(captured.out)
        assert heads == [model_line(err) for _, err in alone]
        expected = [[[line.rstrip() for line in text.split("\n")] for text in texts] for texts, _ in alone]
        filled = [
            [
                lines + [""] * (max(len(lines), len(beside)) - len(lines))
                for lines, beside in zip(*pair, strict=True)
            ]
            for pair in ((expected[0], expected[1]), (expected[1], expected[0]))
        ]
        assert cells == filled
        for head in heads:
            assert f"model         {head}\n" in captured.err


def test_compare_names_what_is_wrong_with_the_other_run(mine: TrainConfig, capsys: Capture) -> None:
    assert refused(capsys, "mine", "--compare=nothing").startswith("nothing is neither ")
    Path("letters.txt").write_text("abcdefgh\n" * 50)
    prepare(PrepareOptions("letters.txt", out_dir="letters"), print_line=lambda line: None)
    train(replace(mine, out_dir="runs/letters", data_dir="letters", max_iters=1))
    # 'the' can be written in both, 'house' in one of them only.
    assert "has no 'o', 's', 'u'" in refused(capsys, "mine", "--compare=letters", "--start=house")


# --- what may not come through ---

EVIL = "\x1b[31mred\x1b]0;title\x07 \x9b2J \x0b over \x08\x7f \u202ereversed\u2066 \ue000 \ufffe"


@pytest.fixture
def evil(here: Path, tiny: MakeConfig) -> Path:
    """A run that knows characters which move the cursor, ring bells and turn text around."""
    Path("evil.txt").write_text(f"{EVIL}\tgood\n" * 40, encoding="utf-8", newline="")
    prepare(PrepareOptions("evil.txt", tokenizer="char", out_dir="evil"), print_line=lambda line: None)
    return train(replace(tiny(max_iters=1), data_dir="evil", out_dir="runs/evil")).out_dir


def test_control_characters_never_reach_a_terminal(
    evil: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = load_tokenizer(Path("evil")).encode(f"{EVIL}\tgood\n").tolist()

    def dictated(*arguments: Any, samples: range, **options: Any) -> Iterator[list[int]]:
        return ([token] * len(samples) for token in tokens)

    monkeypatch.setattr(writers, "generate_samples", dictated)
    harmless = re.sub(r"[\x00-\x1f\x7f\x9b\u202e\u2066\ue000\ufffe]", "\N{REPLACEMENT CHARACTER}", EVIL)
    assert harmless.count("\N{REPLACEMENT CHARACTER}") == 11
    samples, err = sampled(capsys, "evil", f"--start={EVIL}")
    assert samples == [f"{harmless}{harmless}\tgood\n"] * 2
    assert main(["sample", *few("evil", "--compare=evil", f"--start={EVIL}")]) == 0
    shown = capsys.readouterr()
    for text in (err, shown.out, shown.err):
        assert [
            char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Co") and char != "\n"
        ] == []
    assert "red" in shown.out


# --- in a process of its own ---


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def popen(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "glassgpt", "sample", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | environment,
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_ctrl_c_ends_it_with_130_and_leaves_the_text_so_far(mine: TrainConfig, start: Start) -> None:
    process = start("mine", "--num_samples=1", "--max_new_tokens=10000000", "--start=the ")
    assert process.stdout is not None
    first = process.stdout.read(30)  # waits until so much is there
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    (expected,) = written("mine", "the ", SampleOptions(num_samples=1, max_new_tokens=26, device="cpu"))
    assert first.decode() == expected
    assert len(rest) < 1_000_000
    assert b"Traceback" not in err
    assert b"stopped at once" in err


def test_a_reader_that_has_enough_is_no_error(mine: TrainConfig, start: Start) -> None:
    process = start("mine", "--num_samples=1", "--max_new_tokens=10000000")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 0
    assert b"Traceback" not in err
    assert err.startswith(b"model ")


def test_weights_that_are_not_here_and_cannot_be_had(here: Path, start: Start) -> None:
    process = start("--init_from=gpt2", HF_HOME=str(here / "hf"), HF_HUB_OFFLINE="1", HF_HUB_CACHE="")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert err.startswith(b"error: the weights of gpt2 are not on this machine and could not be downloaded")
    assert b"openai-community/gpt2:" in err
    assert b"--init_from=FOLDER" in err
    assert err.count(b"\n") == 1
