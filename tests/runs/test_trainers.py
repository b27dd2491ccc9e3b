"""Trainers are files: what is particular to one is in its file, and nowhere else in the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib import resources
from pathlib import Path

from glassgpt.runs.recognise import KNOWN
from glassgpt.runs.trainer import Trainer
from glassgpt.runs.trainers import BY_ID, TRAINERS

PACKAGE = Path(str(resources.files("glassgpt")))
FILES = PACKAGE / "runs" / "trainers"

# Our own name is everywhere, and "unknown" is a word.
NAMES = re.compile(
    r"nano_?gpt|llm\.?c\b|nano_?chat|modded|lit_?gpt|hugging_?\s?face|hf-trainer|minimind", re.IGNORECASE
)

# Modules that are about a project's files, formats and flags, not about the logs of its trainer.
ALLOWED = {
    "account": "whose conventions our arithmetic follows, and whose measured speeds it is checked against",
    "cli": "commands that import from, or export to, nanoGPT and Hugging Face",
    "config.py": "settings that keep nanoGPT's names and meaning",
    "data": "nanoGPT's data folders, and datasets on Hugging Face",
    "exchange": "nanoGPT's checkpoints and runs, and Hugging Face's model folders",
    "plan/dataset_size.py": "nanoGPT's data folders",
    "tune/setting.py": "nanoGPT's eval_iters, which the config takes",
    "doctor/verify_files.py": "nanoGPT's files, which have no digests",
    "model": "weights as nanoGPT, nanochat and Hugging Face keep them",
    "pyconfig.py": "nanoGPT's config files",
    "recipe.py": "nanoGPT's config files, and its defaults",
    "sample": "nanoGPT's ckpt.pt, and models on Hugging Face",
    "show/terminal/exchange_view.py": "what to do in nanoGPT's folder with an export",
    "show/terminal/nanogpt_console.py": "--console=nanogpt",
    "show/terminal/next_steps.py": "nanoGPT's config files, which name another folder",
    "train": "nanoGPT's ckpt.pt and data folders, Hugging Face's weights, --console=nanogpt",
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not path.is_relative_to(FILES):
            yield name, path


def allowance(name: str) -> str | None:
    return next((part for part in ALLOWED if name == part or name.startswith(f"{part}/")), None)


def named(path: Path) -> list[str]:
    """Strings, docstrings included, and identifiers of a module that name a trainer."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for attribute in ("id", "attr", "name", "arg", "module", "asname", "value"):
            text = getattr(node, attribute, None)
            if isinstance(text, str) and NAMES.search(text):
                found.append(f"line {getattr(node, 'lineno', '?')}: {text[:80]!r}")
    return found


def test_no_other_module_names_a_trainer() -> None:
    offenders = {name: found for name, path in modules() if not allowance(name) if (found := named(path))}
    assert offenders == {}


def test_no_allowance_is_idle() -> None:
    used = {allowance(name) for name, path in modules() if named(path)}
    assert set(ALLOWED) - used == set()


def test_nothing_asks_for_the_name() -> None:
    """`trainer.id` is for the JSON; whoever compares it with a name wants a trait."""
    compares = re.compile(r"trainer\.(?:id|name)\b\s*(?:==|!=|in\b|not in\b)(?! but\.id)")
    found = {name for name, path in modules() if compares.search(path.read_text(encoding="utf-8"))}
    # What an import was told to import; whether a page has to name another brand than ours.
    assert found == {"exchange/import_nanogpt.py", "show/report/page.py"}


def test_every_file_is_registered_once() -> None:
    stems = {path.stem for path in FILES.glob("*.py")} - {"__init__"}
    assert len(TRAINERS) == len(stems)
    assert len(BY_ID) == len(TRAINERS)
    assert len({trainer.name for trainer in TRAINERS}) == len(TRAINERS)


def test_the_one_that_reads_anything_is_asked_last() -> None:
    assert [trainer.reads_any_log for trainer in TRAINERS] == [False] * (len(TRAINERS) - 1) + [True]
    assert TRAINERS[-1].name not in KNOWN


def test_every_trait_is_explained_and_true_of_some_trainer() -> None:
    lines = (PACKAGE / "runs/trainer.py").read_text(encoding="utf-8").splitlines()
    obvious = {"uses_torch", "saves_only_after_eval", "resume_command", "cannot_resume_advice"}
    for trait in fields(Trainer):
        line = next(line for line in lines if line.startswith(f"    {trait.name}: "))
        assert "  # " in line or trait.name in obvious | {"data_restart_cause"}, trait.name
    plain = Trainer("new", "New")
    for trait in fields(Trainer):
        values = [getattr(trainer, trait.name) for trainer in TRAINERS]
        # One trait is of a variant only, which its file switches to while it reads.
        assert trait.name == "eval_timed_in_later_step" or any(
            value != getattr(plain, trait.name) for value in values
        ), trait.name


def test_advice_comes_with_its_cause() -> None:
    for trainer in TRAINERS:
        assert trainer.restarts_data_on_resume == (trainer.data_restart_cause is not None)
        assert trainer.restarts_data_on_resume == (trainer.data_restart_advice is not None)
        assert not (trainer.resume_command and trainer.cannot_resume_advice)
