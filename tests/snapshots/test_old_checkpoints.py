"""Checkpoints of earlier formats still load, sample and resume.

    checkpoints/format-1        written by commit ecc2fab: AdamW, dropout; SHA-256 of whole files
    checkpoints/format-2        written by commit cfcbda3: the same run; SHA-256 of pieces
    checkpoints/format-2-muon   written by commit cfcbda3: Muon, arch=modern

Each folder holds the dataset, a run that stopped after 10 updates, and the losses of the uninterrupted
20 updates as that commit computed them. Only the command line, the Python API and the run's files are used.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from make import run_command

import glassgpt

FOLDER = Path(__file__).parent / "checkpoints"
NAMES = sorted(path.name for path in FOLDER.iterdir())


@pytest.fixture(params=NAMES)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(FOLDER / request.param, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")  # the run names its dataset relative to here
    return tmp_path / "old"


def test_every_format_is_here() -> None:
    states = [json.loads(path.read_text())["state"] for path in FOLDER.glob("*/run/checkpoints/*/state.json")]
    assert {state["version"] for state in states} == {1, 2}


def test_resuming_gives_the_losses_of_the_uninterrupted_run(old: Path) -> None:
    expected = json.loads((old / "expected.json").read_text())
    run = glassgpt.resume("run", max_iters=20)
    assert (run.reason, run.iter) == ("finished", 20)
    records = [json.loads(line) for line in (old / "run/journal.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "step" and record["iter"] > 10]
    # Exact on the machine that wrote them. Other CPUs sum in another order; another batch, learning rate or
    # optimizer state would differ in the second digit.
    assert losses == pytest.approx(expected["losses_after_10"], abs=1e-5)
    assert run.best_val_loss == pytest.approx(expected["best_val_loss"], abs=1e-5)


def test_they_verify_and_sample(old: Path) -> None:
    (verified,) = json.loads(run_command(["verify", "run", "--json"]).out)["verified"]
    verdicts = {part["name"]: part["verdict"] for part in verified["parts"]}
    assert verdicts["checkpoints/00000010"] == "good"
    assert "damaged" not in verdicts.values()
    sampled = run_command(
        ["sample", "run", "--num_samples=1", "--max_new_tokens=8", "--device=cpu", "--dtype=float32"]
    )
    assert sampled.code == 0, sampled.err
    assert "run/checkpoints/00000010" in sampled.err
