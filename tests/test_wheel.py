"""The wheel with its core dependencies alone, in a virtual environment where nothing else can be imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
LOG = "demo:gpu"
NOT_SHIPPED = {".po", ".pyc"}
BUILD = "import setuptools.build_meta as b; b.build_wheel('dist')"
GLASS = (
    "import sys; from importlib.metadata import entry_points; sys.argv[0] = 'glass';"
    "(glass,) = entry_points(group='console_scripts', name='glass'); sys.exit(glass.load()())"
)

Glass = Callable[..., str]


def required(found: Distribution, extra: str = "") -> set[str]:
    lines = map(Requirement, found.requires or ())
    return {one.name for one in lines if one.marker is None or one.marker.evaluate({"extra": extra})}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "glassgpt", source / "glassgpt", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-c", BUILD], cwd=source, check=True, capture_output=True)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a virtual environment with the wheel, what it requires, and what that requires, by links."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    (metadata,) = site.glob("glassgpt-*.dist-info")
    wanted, linked = required(PathDistribution(metadata)), set[str]()
    while wanted - linked:
        name = (wanted - linked).pop()
        linked.add(name)
        found = distribution(name)
        wanted |= required(found)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return folder / "bin" / "python"


@pytest.fixture
def glass(python: Path, tmp_path: Path) -> Glass:
    """Runs the command in an empty folder, with nothing of this process's surroundings."""

    def run(*arguments: str, language: str = "C.UTF-8") -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": language}
        command = [str(python), "-c", GLASS, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_every_data_file_is_in_it(wheel: Path) -> None:
    package = ROOT / "glassgpt"
    wanted = {path.relative_to(ROOT).as_posix() for path in package.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if Path(name).suffix not in NOT_SHIPPED}
    with zipfile.ZipFile(wheel) as file:
        assert wanted - set(file.namelist()) == set()


def test_what_only_developers_have_is_not_there(python: Path) -> None:
    """Else the tests below would show nothing."""
    names = [
        "pytest",
        "hypothesis",
        "babel",
        "playwright",
        "pyarrow",
        "transformers",
        "tensorboard",
        "trackio",
    ]
    code = "import importlib.util, sys; print([n for n in sys.argv[1:] if importlib.util.find_spec(n)])"
    found = subprocess.run([python, "-I", "-c", code, *names], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_quickstart_trains_and_is_explained(glass: Glass) -> None:
    brief = ("--closing_eval=False", "--eval_tokens=512", "--sample_tokens=20", "--probe_seconds=0")
    glass("train", "quickstart", "--max_iters=3", "--out_dir=run", "--device=cpu", *brief)
    explained = json.loads(glass("explain", "run", "--json"))
    assert explained["facts"]["last_iteration"] == 3
    assert explained["facts"]["ended"] == "finished"


def test_a_log_is_explained_in_hindi(glass: Glass) -> None:
    text = glass("explain", LOG, language="hi_IN.UTF-8")
    assert sum("\N{DEVANAGARI LETTER A}" <= letter <= "\N{DEVANAGARI LETTER HA}" for letter in text) > 500


def test_plan_knows_presets_and_cards(glass: Glass) -> None:
    plan = json.loads(glass("plan", "gpt2_124m", "--gpu=rtx4090", "--json"))
    assert plan["target"]["name"] == "RTX 4090"


def test_the_shells_get_their_completion(glass: Glass) -> None:
    assert all("glass" in glass("completion", shell) for shell in ("bash", "zsh", "fish"))
