"""A run of nanoGPT's becomes one of ours: what its log and its checkpoint say, and nothing else."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassgpt.cli import main
from glassgpt.errors import UserError
from glassgpt.exchange.exchange_options import ImportOptions
from glassgpt.exchange.import_nanogpt import import_run
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.reading import DEMO_LOGS, read_run_log
from glassgpt.training.checkpoint.checkpoints import committed_paths, load_latest_intact
from glassgpt.training.checkpoint.nanogpt_ckpt import read_nanogpt_ckpt

CHARACTERS = "\n abcdefgh"
SHAPE: dict[str, Any] = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 16,
    "block_size": 8,
    "bias": False,
    "dropout": 0.0,
}
# As the log's run had them, but for the model.
CONFIG: dict[str, Any] = {
    "out_dir": "out-tiny", "eval_interval": 250, "log_interval": 1, "eval_iters": 20, "eval_only": False,
    "always_save_checkpoint": False, "init_from": "scratch", "wandb_log": False, "dataset": "theirs",
    "gradient_accumulation_steps": 1, "batch_size": 12, "learning_rate": 1e-3, "max_iters": 2000,
    "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99, "grad_clip": 1.0, "decay_lr": True,
    "warmup_iters": 100, "lr_decay_iters": 2000, "min_lr": 1e-4, "backend": "nccl", "device": "cuda",
    "dtype": "float16", "compile": True, **{name: SHAPE[name] for name in SHAPE},
}  # fmt: skip


def write_out_dir(root: Path, iteration: int = 2000, loss: float = 1.8857, **changes: Any) -> Path:
    """nanoGPT's out_dir, beside its data folder, with an optimizer that has done some updates."""
    torch.manual_seed(5)
    model = GPT(GPTConfig(vocab_size=len(CHARACTERS), **SHAPE))
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    for _ in range(2):
        tokens = torch.randint(len(CHARACTERS), (4, 9))
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    content: dict[str, Any] = {
        "model": {f"_orig_mod.{name}": tensor for name, tensor in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "model_args": SHAPE | {"vocab_size": len(CHARACTERS)},
        "iter_num": iteration,
        "best_val_loss": torch.tensor(loss),
        "config": CONFIG,
    }
    (root / "out-tiny").mkdir(parents=True)
    torch.save(content | changes, root / "out-tiny" / "ckpt.pt")
    return root / "out-tiny"


def write_data(folder: Path) -> Path:
    folder.mkdir(parents=True)
    draw = np.random.default_rng(1)
    for split, size in (("train", 900), ("val", 100)):
        draw.integers(len(CHARACTERS), size=size, dtype=np.uint16).tofile(folder / f"{split}.bin")
    itos = dict(enumerate(CHARACTERS))
    stoi = {char: id for id, char in itos.items()}
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(itos), "itos": itos, "stoi": stoi}))
    return folder


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """nanoGPT's folder with a run, its data, and a log of a real run; we are elsewhere."""
    out = write_out_dir(tmp_path / "nanoGPT")
    write_data(tmp_path / "nanoGPT" / "data" / "theirs")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return out


LOG = DEMO_LOGS["demo:cpu"]


def imported(theirs: Path, **options: Any) -> Path:
    return import_run(str(theirs), ImportOptions(**options)).run.run_dir


def records(run: Path, kind: str | None = None) -> list[Record]:
    return [record for record in journal.read(run / journal.FILE_NAME) if kind in (None, record["kind"])]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_facts_are_those_of_the_log(theirs: Path) -> None:
    before = contents(theirs.parent)
    run = imported(theirs, log=str(LOG))
    assert run == Path("runs/out-tiny")
    theirs_told, ours = Analysis(read_run_log(str(LOG))).facts, Analysis(read_run_log(str(run))).facts
    # fmt: off
    same = (
        "iterations_logged", "log_interval", "steady_ms", "steady_p95_ms", "eval_steps", "checkpoint_steps",
        "best_val_loss", "best_val_step", "final_val_loss", "final_train_loss", "loss_first", "loss_last",
        "nan_step", "segments", "ended", "val_metric",
    )
    # fmt: on
    for name in same:
        assert getattr(ours, name) == getattr(theirs_told, name), name
    for name in ("estimated_total_s", "overhead_share"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs_told, name), rel=1e-9), name
    # Ours count updates that are done, nanoGPT's the one that is being done.
    assert ours.first_iteration == (theirs_told.first_iteration or 0) + 1
    assert ours.tokens_per_iteration == 12 * 8
    assert contents(theirs.parent) == before


def test_every_record_says_that_it_was_imported_and_none_says_more_than_the_log(theirs: Path) -> None:
    run = imported(theirs, log=str(LOG))
    assert {record["imported"] for record in records(run)} == {"nanogpt"}
    assert [record["time"] for record in records(run)] == sorted(record["time"] for record in records(run))
    assert records(run)[-1]["time"] == pytest.approx(LOG.stat().st_mtime, abs=1e-3)
    step = records(run, "step")[100]
    assert (step["grad_norm"], step["mfu"], step["memory"]) == (None, None, {})
    ledger = records(run, "end")[0]["ledger"]
    assert sum(ledger.values()) == pytest.approx(records(run, "end")[0]["wall_s"])
    steps = records(run, "step")
    for phase, seconds in ledger.items():
        assert sum(step["phases"][phase] for step in steps) / 1000 == pytest.approx(seconds), phase
    evals = [record["ms"] for record in records(run, "eval") if record["split"] == "val"]
    assert all(ms > 0 for ms in evals)
    assert sum(evals) / 1000 == pytest.approx(ledger["eval"])


def nanogpt_rate(iteration: int) -> float:
    """As its get_lr has it."""
    if iteration < 100:
        return 1e-3 * (iteration + 1) / 101
    done = (iteration - 100) / (2000 - 100)
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * done)) * (1e-3 - 1e-4)


def test_the_learning_rate_is_the_one_it_had(theirs: Path) -> None:
    run = imported(theirs, log=str(LOG))
    for step in records(run, "step")[::97]:
        assert step["lr"] == pytest.approx(nanogpt_rate(step["iter"] - 1))


def test_weights_and_optimizer_are_the_checkpoints(theirs: Path) -> None:
    run = imported(theirs)
    ckpt = read_nanogpt_ckpt(theirs / "ckpt.pt")
    point, tensors, damaged, _ = load_latest_intact(run)
    assert (point.iter, damaged) == (2000, [])
    assert point.val_loss == pytest.approx(1.8857)
    for name, tensor in tensors["model"].items():
        assert torch.equal(tensor, ckpt.weights[name])
    assert tensors["model"].keys() == ckpt.weights.keys() - {"lm_head.weight"}
    assert tensors["optimizer"].keys() == ckpt.optimizer.keys()
    assert all(torch.equal(tensor, ckpt.optimizer[name]) for name, tensor in tensors["optimizer"].items())


@pytest.mark.parametrize("log", ["", str(LOG)])
def test_every_command_works_on_it(theirs: Path, capsys: pytest.CaptureFixture[str], log: str) -> None:
    words = [f"--log={log}"] if log else []
    assert main(["import", "nanogpt", str(theirs), *words]) == 0
    said = capsys.readouterr().out
    assert "after 2,000 updates" in said
    assert ("iterations, 9 evaluations" in said) == bool(log)
    run = "runs/out-tiny"
    for command in (
        ["show", run], ["runs"], ["explain", run], ["explain", run, "--json"], ["compare", run, str(LOG)],
        ["sample", run, "--num_samples=1", "--max_new_tokens=5", "--device=cpu"],
        ["export", run, "--to=glass"],
    ):  # fmt: skip
        assert main(command) == 0, command
        said = capsys.readouterr().out
        assert "Traceback" not in said
        if command[0] == "show":
            assert "eval   2000" in said
            assert "runs/out-tiny   (imported)" in said
        if command == ["explain", run]:
            assert "A nanoGPT run" in said


def test_the_report_is_written(theirs: Path) -> None:
    imported(theirs, log=str(LOG))
    assert main(["report", "runs/out-tiny"]) == 0
    assert Path("runs/out-tiny/report.html").stat().st_size > 10_000


@pytest.mark.parametrize(("planned", "more"), [(2000, " --max_iters=4000"), (5000, "")])
def test_the_command_that_goes_on_is_one_that_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    planned: int,
    more: str,
) -> None:
    """A run that has done its updates goes on only where it is told how far."""
    monkeypatch.chdir(tmp_path)
    folder = write_out_dir(tmp_path / "nanoGPT", config=CONFIG | {"max_iters": planned})
    write_data(tmp_path / "nanoGPT" / "data" / "theirs")
    assert main(["import", "nanogpt", str(folder)]) == 0
    last = capsys.readouterr().out.splitlines()[-1].strip()
    assert last == f"glass train --init_from=resume --out_dir=runs/out-tiny{more}"


def test_it_goes_on_where_it_was(theirs: Path) -> None:
    """Exactly as nanoGPT's folder itself would have gone on here."""
    data = str(theirs.parent / "data" / "theirs")
    flags = ["--max_iters=2003", "--device=cpu", "--dtype=float32", "--compile=off", "--probe_seconds=0"]
    run = imported(theirs, log=str(LOG))
    assert main(["train", "--init_from=resume", f"--out_dir={run}", *flags]) == 0
    words = [
        "train",
        f"--init_from={theirs}",
        "--init_state=all",
        "--out_dir=other",
        f"--data_dir={data}",
        *flags,
    ]
    assert main(words) == 0
    ours = [
        r["loss"] for r in journal.effective_records(records(run)) if r["kind"] == "step" and r["iter"] > 2000
    ]
    other = [record["loss"] for record in records(Path("other"), "step")]
    assert len(ours) == 3
    assert ours == other
    resume = records(run, "resume")[-1]
    assert resume["from_iter"] == 2000
    assert resume["complaints"] == [
        "evaluations use other tokens than before: the best loss so far is not comparable"
    ]


def test_without_its_data_it_can_be_read_and_later_go_on(
    theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = theirs.parent / "data"
    data.rename(data.with_name("elsewhere"))
    run = imported(theirs, log=str(LOG))
    assert main(["show", str(run)]) == 0
    said = capsys.readouterr().out
    assert "theirs, which is not on this machine" in said
    assert "prepare it or give its folder with --data_dir" in said
    assert main(["sample", str(run)]) == 2
    assert "--data_dir=FOLDER names the dataset" in capsys.readouterr().err
    flags = [f"--data_dir={data.with_name('elsewhere') / 'theirs'}", "--max_iters=2001", "--device=cpu"]
    assert main(["train", "--init_from=resume", f"--out_dir={run}", "--probe_seconds=0", *flags]) == 0
    assert records(run)[-1]["reason"] == "finished"


def test_data_can_be_named(theirs: Path, tmp_path: Path) -> None:
    run = imported(theirs, data_dir=str(write_data(tmp_path / "mine")))
    assert f'data_dir = "{tmp_path / "mine"}"' in (run / "config.toml").read_text()
    (tmp_path / "mine" / "meta.pkl").unlink()  # then its tokens are GPT-2's
    with pytest.raises(UserError, match=r"has a vocabulary of 50257, .* of 10"):
        imported(theirs, data_dir=str(tmp_path / "mine"))


def test_a_log_with_a_resume_has_two_processes(theirs: Path, tmp_path: Path) -> None:
    log = tmp_path / "two.log"
    first = [f"iter {n}: loss {4 - n / 100:.4f}, time 50.00ms, mfu 1.00%" for n in range(30)]
    second = [f"iter {n}: loss {3.9 - n / 100:.4f}, time 50.00ms, mfu 1.00%" for n in range(20, 45)]
    again = ["Resuming training from out-tiny", "number of parameters: 0.01M"]
    log.write_text("\n".join(["number of parameters: 0.01M", *first, *again, *second]) + "\n")
    run = imported(theirs, log=str(log))
    assert [record["from_iter"] for record in records(run, "resume")] == [20]
    assert [record["process"] for record in records(run, "run")] == [0, 1]
    losses = {r["iter"]: r["loss"] for r in journal.effective_records(records(run)) if r["kind"] == "step"}
    assert losses[20] == pytest.approx(4 - 0.19)
    assert losses[21] == pytest.approx(3.9 - 0.20)
    assert sorted(losses) == list(range(1, 46))


# --- mistakes ---


def refused(theirs: Path, match: str, **options: Any) -> None:
    before = contents(Path())
    with pytest.raises(UserError, match=match):
        imported(theirs, **options)
    assert contents(Path()) == before
    assert not [path for path in Path().rglob("*") if path.name.endswith(".tmp")]


def test_mistakes_are_named_and_nothing_is_made(theirs: Path, tmp_path: Path) -> None:
    refused(tmp_path / "here", r"is not an out_dir of nanoGPT: there is no ckpt\.pt in it")
    refused(theirs, "there is no file or folder nothing.log", log="nothing.log")
    (tmp_path / "other.log").write_text(
        "step 2000: train loss 1.0000, val loss 1.7000\n" + LOG.read_text()[:20]
    )
    refused(
        theirs,
        r"is of another run: after 2000 updates it has a validation loss of 1\.7000",
        log=str(tmp_path / "other.log"),
    )
    nanochat = "step 00001/00100 (1.00%) | loss: 3.9 | lrm: 1.00 | dt: 100.00ms | tok/sec: 5,000 | mfu: 1.00"
    (tmp_path / "chat.log").write_text(f"{nanochat} | total time: 0.10m\n")
    refused(theirs, "is a log of nanochat, not of nanoGPT", log=str(tmp_path / "chat.log"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    refused(theirs, "is not empty: choose another --out", out=str(tmp_path / "full"))
    imported(theirs, out=str(tmp_path / "run"))
    refused(theirs, "holds a run already, and runs are never overwritten", out=str(tmp_path / "run"))
    refused(theirs, "choose another --out", out=str(tmp_path / "full" / "mine.txt" / "run"))


def test_all_mistakes_at_once(theirs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        imported(theirs, log="nothing.log", data_dir="nowhere", out=str(theirs))
    assert len(caught.value.problems) == 3


def test_a_pickle_that_wants_something_executed_is_refused(theirs: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path("executed").touch, ())

    torch.save({"model": {}, "model_args": {}, "evil": Evil()}, theirs / "ckpt.pt")
    refused(theirs, "so it is refused")
    assert not Path("executed").exists()


def test_runs_are_numbered(theirs: Path) -> None:
    assert [imported(theirs) for _ in range(2)] == [Path("runs/out-tiny"), Path("runs/out-tiny-2")]
    assert committed_paths(Path("runs/out-tiny-2"))


@pytest.mark.parametrize("words", [[], ["nanogpt"], ["llama", "x"], ["nanogpt", "a", "b"]])
def test_the_command_says_how_it_is_called(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", *words]) == 2
    assert "glass import nanogpt OUT_DIR" in capsys.readouterr().err


def test_a_checkpoint_of_old_without_settings(theirs: Path) -> None:
    content = torch.load(theirs / "ckpt.pt", weights_only=True)
    torch.save({name: content[name] for name in ("model", "model_args")}, theirs / "ckpt.pt")
    run = imported(theirs)
    chosen = {choice["name"]: choice["value"] for choice in records(run, "run")[0]["choices"]}
    assert chosen["config"] == "defaults"
    assert json.loads((run / "journal.jsonl").read_text().splitlines()[-1])["reason"] == "not finished"


# --- the journal's page ---


def test_the_journals_page_has_every_field(theirs: Path) -> None:
    """A field is in the table of its kind, or the section about imported runs names it."""
    page = (Path(__file__).parents[2] / "docs" / "journal.md").read_text(encoding="utf-8")
    sections = {part.split("\n")[0]: part for part in page.split("\n## ")}
    own = set(re.findall(r"`(\w+)`", sections["Imported runs"]))
    common = set(re.findall(r"^\| `([\w.*]+)` \|", sections["Every record"], re.M))
    for options in ({}, {"log": str(LOG)}):
        for record in records(imported(theirs, **options)):
            told = set(re.findall(r"^\| `(\w+)` \|", sections[record["kind"]], re.M))
            assert record.keys() <= told | common | own, record["kind"]
