"""Checkpoints cut short or flipped at any byte: noticed, told, and the one before is used instead."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.config import TrainConfig
from glassgpt.record import journal
from glassgpt.training.checkpoint.checkpoints import committed_paths, load_latest_intact
from glassgpt.training.session import resume, train

MakeConfig = Callable[..., TrainConfig]


@pytest.fixture(scope="module")
def run_dir(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that kept the checkpoints of updates 4, 8 and 12."""
    config = TrainConfig(
        out_dir=str(tmp_path_factory.mktemp("damage") / "run"), data_dir=str(tiny_data), n_layer=1, n_head=1,
        n_embd=8, block_size=8, batch_size=4, max_iters=12, eval_interval=4, keep_checkpoints=3, patience=9,
        device="cpu", compile="off", probe_seconds=0.0,
    )  # fmt: skip
    return train(config).out_dir


def damaged_copy(run_dir: Path, folder: str, change: Callable[[bytes], bytes], which: int, at: Path) -> str:
    """A copy of the run with one file of its last checkpoint changed; which file that is."""
    shutil.copytree(run_dir, at)
    files = sorted(committed_paths(at)[-1].iterdir())
    file = files[which % len(files)]
    file.write_bytes(change(file.read_bytes()))
    return file.name


@settings(max_examples=150, deadline=None)
@given(which=st.integers(0, 3), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere(run_dir: Path, which: int, where: float, bit: int) -> None:
    def flip(content: bytes) -> bytes:
        position = int(where * len(content))
        return content[:position] + bytes([content[position] ^ (1 << bit)]) + content[position + 1 :]

    check(run_dir, flip, which)


@settings(max_examples=80, deadline=None)
@given(which=st.integers(0, 3), where=st.floats(0, 1, exclude_max=True))
def test_cut_short_anywhere(run_dir: Path, which: int, where: float) -> None:
    check(run_dir, lambda content: content[: int(where * len(content))], which)


def check(run_dir: Path, change: Callable[[bytes], bytes], which: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "run"
        file = damaged_copy(run_dir, name, change, which, copy)
        original = (committed_paths(run_dir)[-1] / file).read_bytes()
        now = (committed_paths(copy)[-1] / file).read_bytes()
        point, _, damaged, complaints = load_latest_intact(copy)
        if file == "state.json" and _same_meaning(original, now):
            assert (point.iter, damaged) == (12, [])
        else:
            assert point.iter == 8
            assert len(damaged) == len(complaints) == 1
            assert "00000012" in complaints[0]


def _same_meaning(one: bytes, other: bytes) -> bool:
    """A blank that became another blank changes nothing."""
    try:
        return bool(journal.loads(one) == journal.loads(other))
    except ValueError:
        return False


@pytest.mark.parametrize("which", range(4))
def test_the_run_goes_on_from_the_one_before_and_says_so(run_dir: Path, tmp_path: Path, which: int) -> None:
    copy = tmp_path / "run"
    damaged_copy(run_dir, "", lambda content: content[:-10], which, copy)
    assert resume(str(copy), max_iters=14).iter == 14
    (record,) = [r for r in journal.read(copy / journal.FILE_NAME) if r["kind"] == "resume"]
    assert record["from_iter"] == 8
    assert "00000012" in record["complaints"][0]
    assert (copy / "checkpoints/damaged-00000012").is_dir(), "set aside, not deleted"
