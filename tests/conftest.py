"""Shared by all rooms: one thread, a tiny dataset, the settings of a run that takes a fifth of a second."""

from __future__ import annotations

import importlib.util
import multiprocessing.process
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from glassgpt.config import TrainConfig
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions

# One thread: sums have one order, in this process and in those the tests start, and each core has one to do.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# float32, whatever this CPU has: most tests compare to the last digit. (Other processes decide freely.)
torch.cpu._is_avx512_bf16_supported = lambda: False
torch.cpu._is_amx_tile_supported = lambda: False

# The history of this machine's own runs is neither read nor written: no file can be in this folder.
os.environ["GLASSGPT_CACHE_DIR"] = os.devnull

# No power is cut here, and waiting for the disk takes longer than the tests; processes they start do wait.
# What has to be on the disk, and when, is watched by faults/test_power.py.
os.fsync = os.fstat  # type: ignore[assignment]

# Under nohup, or in the background of a script, signals are ignored, and that is inherited; here they count.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes depends on the machine: speed is measured in bench/.
# CI draws the same examples each time: whether a change lands must not depend on luck. Elsewhere they vary.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "random")

MakeConfig = Callable[..., TrainConfig]

_WORDS = ("glass", "house", "room", "door", "a", "sees", "the", "light", "through", "wall")


# A file's tests go to one process, and these take long: begun last, they would be waited for alone.
_LONG = ("test_readme.py", "test_processes.py", "test_distributed.py", "test_lost_ranks.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the marker `gpu` means, and what comes first."""
    items.sort(key=lambda item: item.path.name not in _LONG)
    for item in items:
        marker = item.get_closest_marker("gpu")
        if marker and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))
        elif marker and marker.kwargs.get("float8") and torch.cuda.get_device_capability() < (8, 9):
            item.add_marker(pytest.mark.skip(reason="no CUDA device with 8-bit floats here"))


_SLOW_PROGRAMS = ("python", "bash", "zsh", "fish", "nohup", "chromium")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="skip each test that starts a process")


@pytest.fixture(scope="session", autouse=True)
def _fast(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --fast, a test is skipped once it starts a process that takes long: there is no list to keep."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--fast"):
            start: Callable[..., None] = subprocess.Popen.__init__

            def start_or_skip(self: object, args: Any, *more: Any, **options: Any) -> None:
                program = Path(str(args if isinstance(args, str | os.PathLike) else args[0])).name
                if options.get("shell") or program.startswith(_SLOW_PROGRAMS):
                    skip()
                start(self, args, *more, **options)

            def skip(*arguments: object) -> None:
                pytest.skip("starts a process")

            patch.setattr(subprocess.Popen, "__init__", start_or_skip)
            patch.setattr(multiprocessing.process.BaseProcess, "start", skip)
            patch.setattr(os, "fork", skip)
            patch.setattr(os, "forkpty", skip)
        yield


@pytest.fixture
def exact_float32() -> Iterator[None]:
    """TF32 has ten bits of precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 3000 characters of some twenty kinds: small enough to overfit, and never random by accident."""
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(7)
    lines = (" ".join(draw.choices(_WORDS, k=6)) for _ in range(100))
    (folder / "tiny.txt").write_text("\n".join(lines) + "\n")
    out = folder / "tiny"
    prepare(
        PrepareOptions(str(folder / "tiny.txt"), out_dir=str(out)),
        print_line=lambda line: None,
        progress=False,
    )
    return out


@pytest.fixture
def tiny(tiny_data: Path, tmp_path: Path) -> MakeConfig:
    """`tiny("name", max_iters=5)`: settings of a run in tmp_path/name."""

    def make(name: str = "run", **changes: Any) -> TrainConfig:
        settings: dict[str, Any] = {
            "out_dir": str(tmp_path / name),
            "data_dir": str(tiny_data),
            "n_layer": 2,
            "n_head": 2,
            "n_embd": 16,
            "block_size": 8,
            "dtype": "float32",
            "batch_size": 4,
            "gradient_accumulation_steps": 1,
            "learning_rate": 1e-2,
            "warmup_iters": 3,
            "max_iters": 20,
            "eval_interval": 10,
            "device": "cpu",
            "compile": "off",
            "probe_seconds": 0.0,
        }
        return TrainConfig(**settings | changes)

    return make


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that there are `count` cards of a compute capability."""

    def pretend(major: int, minor: int, count: int = 1) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Card {major}.{minor}")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")

    return pretend
