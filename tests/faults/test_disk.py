"""Disks that are full or read-only: real ones, made in memory for the purpose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glassgpt.cli import main
from glassgpt.config import TrainConfig
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.errors import UserError
from glassgpt.recipe import to_toml
from glassgpt.record import journal
from glassgpt.training.checkpoint.checkpoints import committed_paths, load_tensors, read_checkpoint
from glassgpt.training.session import train


def mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    if not sys.platform.startswith("linux") or not mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)):
        pytest.skip("mounting a small file system needs Linux and root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def settings(disk: Path, data: Path) -> TrainConfig:
    """A checkpoint of this model takes 300 kB, and three are kept: the fourth does not fit."""
    return TrainConfig(
        out_dir=str(disk / "run"),
        data_dir=str(data),
        n_layer=2,
        n_head=2,
        n_embd=32,
        block_size=8,
        dtype="float32",  # as in this process, which the end is compared with
        batch_size=4,
        warmup_iters=3,
        max_iters=20,
        eval_interval=5,
        keep_checkpoints=5,
        device="cpu",
        compile="off",
        probe_seconds=0.0,
    )


Glass = Callable[..., tuple[int, str]]


@pytest.fixture
def glass(capsys: pytest.CaptureFixture[str]) -> Glass:
    """The command's exit code, and what it says of errors."""

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        return main(words), capsys.readouterr().err

    return run


def test_a_disk_that_fills_up(small_disk: Path, tiny_data: Path, tmp_path: Path, glass: Glass) -> None:
    config = settings(small_disk, tiny_data)
    (tmp_path / "config.toml").write_text(to_toml(config))
    code, said = glass("train", str(tmp_path / "config.toml"))
    assert code == 2
    assert said.count("\n") == 1, "one line"
    assert "No space left on device" in said
    run_dir = Path(config.out_dir)
    points = committed_paths(run_dir)
    assert points
    assert points[-1].name in said, "it names the last whole checkpoint"
    for path in points:
        load_tensors(read_checkpoint(path))
    # With more room it goes on from there, as if nothing had happened.
    assert mount("-o", "remount,size=8m", str(small_disk))
    code, said = glass("train", "--init_from=resume", f"--out_dir={run_dir}")
    assert (code, said) == (0, "")
    whole = train(TrainConfig(**{**vars(config), "out_dir": str(tmp_path / "whole")}))
    ends = [
        read_checkpoint(committed_paths(Path(place))[-1]).state["sha256"]
        for place in (run_dir, whole.out_dir)
    ]
    assert ends[0] == ends[1]


def test_a_journal_that_does_not_fit(small_disk: Path, tiny_data: Path, tmp_path: Path, glass: Glass) -> None:
    config = settings(small_disk, tiny_data)
    (small_disk / "ballast").write_bytes(bytes(1000 * 1024))  # 24 kB are left: no checkpoint, little journal
    (tmp_path / "config.toml").write_text(to_toml(config))
    code, said = glass("train", str(tmp_path / "config.toml"))
    assert code == 2
    assert "No space left on device" in said
    assert "Traceback" not in said
    path = Path(config.out_dir) / journal.FILE_NAME
    if path.exists():
        list(journal.read(path))  # what is there can be read
    (small_disk / "ballast").unlink()
    assert mount("-o", "remount,size=8m", str(small_disk))
    resume = ("--init_from=resume", f"--out_dir={config.out_dir}")
    again = resume if (Path(config.out_dir) / "config.toml").exists() else (str(tmp_path / "config.toml"),)
    assert glass("train", *again)[0] == 0


def test_preparing_on_a_full_disk_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("It was a bright cold day in April.\n" * 40_000)
    options = PrepareOptions(str(text), out_dir=str(small_disk / "data"))
    with pytest.raises(UserError, match="No space left on device"):
        prepare(options, print_line=lambda line: None, progress=False)
    assert list(small_disk.iterdir()) == []


def test_a_read_only_disk(small_disk: Path, tiny_data: Path, tmp_path: Path, glass: Glass) -> None:
    config = settings(small_disk, tiny_data)
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert mount("-o", "remount,ro", str(small_disk))
    code, said = glass("train", str(tmp_path / "config.toml"))
    assert code == 2
    assert "Read-only file system" in said
    assert "--out_dir" in said
    assert said.count("\n") == 1


def test_a_run_on_a_disk_that_became_read_only_can_be_looked_at(
    small_disk: Path, tiny_data: Path, tmp_path: Path, glass: Glass
) -> None:
    config = settings(small_disk, tiny_data)
    train(TrainConfig(**{**vars(config), "keep_checkpoints": 1}))
    assert mount("-o", "remount,ro", str(small_disk))
    code, said = glass("train", "--init_from=resume", f"--out_dir={config.out_dir}", "--max_iters=30")
    assert code == 2
    assert "Read-only file system" in said
    assert glass("show", config.out_dir)[0] == 0
    assert glass("sample", config.out_dir, "--num_samples=1", "--max_new_tokens=5")[0] == 0
