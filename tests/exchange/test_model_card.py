"""The model card has the facts of the run that is exported, and nothing of where it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from exported_runs import own_logits, run_export, some_tokens, train_with_each
from small_runs import CONTEXT

from glassgpt.cli import main
from glassgpt.exchange.model_card import records_until_checkpoint
from glassgpt.record import journal


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, in a folder whose name must not be told to anybody."""
    folder = tmp_path_factory.mktemp("somebodys_home")
    train_with_each(("char", "bpe:300"), folder)
    return folder


def test_the_card_has_the_runs_facts_and_no_path(root: Path, tmp_path: Path) -> None:
    run = root / "runs" / "char"
    done = run_export(f"{run}@3", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    records = list(journal.read(run / journal.FILE_NAME))
    start = next(record for record in records if record["kind"] == "run")
    end = records[-1]
    val = next(
        record["loss"]
        for record in records
        if record["kind"] == "eval" and record["split"] == "val" and record["iter"] == 3
    )
    assert f"| val, sampled: nats per token | {val:.4f} |" in card
    assert f"| tokens seen | {3 * 4 * CONTEXT} |" in card
    assert f"| training tokens | {start['data']['tokens']['train']:,} |" in card
    assert start["data"]["hash"] in card
    assert f"| device | {start['machine']['device']['name']} |" in card
    assert f"| parameters | {start['model']['parameters']:,} |" in card
    shares = [float(part.split("%")[0]) for part in card.partition("time went")[2].split("(")[1:9]]
    assert shares == pytest.approx([100 * s / end["wall_s"] for s in end["ledger"].values()], abs=0.06)
    assert "glass train training.toml" in card
    for path in done.out_dir.iterdir():
        assert b"somebodys_home" not in path.read_bytes(), path.name


def test_the_time_of_killed_processes_is_in_the_card(root: Path, tmp_path: Path) -> None:
    """Two are killed, after 100 s and 150 s by their records; the third's ledger is all that the run has."""
    run = shutil.copytree(root / "runs" / "char", tmp_path / "run")
    path = run / journal.FILE_NAME
    last = [record | {"process": 2} for record in journal.read(path)]
    ledger = last[-1]["ledger"] = {"startup": 4.0, "train": 46.0}
    killed = [
        {"kind": kind, "iter": iter, "time": time, "process": process}
        for kind, iter, time, process in (
            ("run", 0, 1000.0, 0), ("step", 90, 1100.0, 0),
            ("run", 0, 2000.0, 1), ("resume", 0, 2001.0, 1), ("step", 140, 2150.0, 1),
        )
    ]  # fmt: skip
    last.insert(1, {"kind": "resume", "iter": 0, "from_iter": -1, "time": last[0]["time"], "process": 2})
    path.write_bytes(b"".join(map(journal.encode_line, killed + last)))
    card = (run_export(run, tmp_path / "out").out_dir / "README.md").read_text()
    assert f"| train | 46 s ({46 / 300:.1%}) |" in card
    assert (
        f"| 2 processes that left no ledger | 4m 10s ({250 / 300:.1%}), from first to last record |" in card
    )
    assert "| the whole run | at least 5m 00s |" in card
    path.write_bytes(b"".join(map(journal.encode_line, last)))
    card = (run_export(run, tmp_path / "other").out_dir / "README.md").read_text()
    assert f"| the whole run | {sum(ledger.values()):.0f} s |" in card
    path.write_bytes(b"".join(map(journal.encode_line, last[:-1])))
    assert (
        "| 1 process that left no ledger |"
        in (run_export(run, tmp_path / "third").out_dir / "README.md").read_text()
    )


def test_tokens_seen_are_those_of_each_process_and_nothing_after_the_checkpoint_is_told(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(root / "runs" / "char", tmp_path / "run")
    words = [f"--out_dir={run}", "--init_from=resume", "--max_iters=5", "--batch_size=8"]
    assert main(["train", *words]) == 0
    runs = [record for record in journal.read(run / journal.FILE_NAME) if record["kind"] == "run"]
    per_pass = runs[0]["data"]["tokens"]["train"]
    for update, seen, said in (
        (2, 2 * 4 * CONTEXT, "48"),
        (3, 3 * 4 * CONTEXT, "48"),  # where the second process began
        (5, (3 * 4 + 2 * 8) * CONTEXT, "48, then 96"),
    ):
        card = (run_export(f"{run}@{update}", tmp_path / str(update)).out_dir / "README.md").read_text()
        assert f"| tokens seen | {seen} |" in card
        assert f"| tokens per update | {said} |" in card
        assert f"| epochs | {seen / per_pass:.3g} |" in card


def test_an_abandoned_branch_is_told_as_it_was() -> None:
    """Process 1 goes on from update 10, but the checkpoint of update 20 is process 0's."""
    records = [
        {"kind": kind, "iter": iter, "process": process, "time": 0.0}
        for kind, iter, process in (
            ("run", 0, 0), ("eval", 20, 0), ("step", 21, 0), ("checkpoint", 20, 0), ("step", 25, 0),
            ("run", 10, 1), ("resume", 10, 1), ("eval", 20, 1), ("checkpoint", 30, 1),
        )
    ]  # fmt: skip
    assert records_until_checkpoint(records, 20) == [records[0], records[1], records[3]]
    assert records_until_checkpoint(records, 30) == [records[0], *records[5:]]


def test_an_export_can_be_exported_and_tells_no_path_either(root: Path, tmp_path: Path) -> None:
    run_export(root / "runs" / "bpe", root / "handed-over")
    done = run_export(root / "handed-over", tmp_path / "out", "glass")
    tokens = some_tokens(300)
    expected = own_logits(root / "runs" / "bpe", tokens)
    torch.testing.assert_close(own_logits(done.out_dir, tokens), expected, atol=1e-6, rtol=0)
    assert done.model.name == "handed-over"
    assert (tmp_path / "out" / "README.md").read_text().count("not recorded") > 5
    assert not (tmp_path / "out" / "training.toml").exists()  # nobody knows
    for path in done.out_dir.iterdir():
        assert b"somebodys_home" not in path.read_bytes(), path.name


def test_its_command_asks_for_the_same_run(root: Path, tmp_path: Path) -> None:
    from glassgpt.recipe import find_recipe

    run_export(root / "runs" / "char", tmp_path / "out")
    recipe = find_recipe(str(tmp_path / "out" / "training.toml"))
    assert recipe.settings["n_embd"] == 16
    assert recipe.settings["max_iters"] == 3
    assert recipe.settings["dataset"] == "char"
