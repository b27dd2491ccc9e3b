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
FOLDERS = ("runs", "explain", "compare", "show")
IMPORTS_RUNS = re.compile(r"^\s*(?:from|import) glassgpt\.runs\b", re.MULTILINE)
# Modules that are about a project's files, not about the logs of its trainer.
ALLOWED = {
    "cli/exchange_commands.py": "imports nanoGPT's runs",
    "exchange/import_nanogpt.py": "imports nanoGPT's runs",
    "exchange/nanogpt_journal.py": "imports nanoGPT's runs",
    "runs/file_kinds.py": "what to do with nanoGPT's checkpoint",
    "runs/reading.py": "the names of the demo logs' files",
    "show/terminal/exchange_view.py": "what to do in nanoGPT's folder with an export",
    "show/terminal/nanogpt_console.py": "--console=nanogpt",
}


def modules() -> Iterator[tuple[str, Path]]:
    """All that handle logs: four folders, and whatever imports from runs/; without the trainers' files."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        handles_logs = name.split("/")[0] in FOLDERS or IMPORTS_RUNS.search(path.read_text(encoding="utf-8"))
        if handles_logs and not path.is_relative_to(FILES):
            yield name, path


def trainers_named_in(path: Path) -> list[str]:
    """Strings and identifiers of a module that name a trainer. Docstrings, like comments, may."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    named = []
    for node in ast.walk(tree):
        for attribute in ("id", "attr", "name", "arg", "asname", "value"):
            text = getattr(node, attribute, None)
            if isinstance(text, str) and NAMES.search(text) and id(node) not in docstrings:
                named.append(f"line {getattr(node, 'lineno', '?')}: {text[:80]!r}")
    return named


def test_the_modules_that_are_checked() -> None:
    names = {name for name, _ in modules()}
    assert {
        "runs/header.py",
        "explain/registry.py",
        "compare/comparison.py",
        "cli/explain_commands.py",
    } <= names
    assert len(names) > 80
    assert not any(name.startswith("runs/trainers/") for name in names)


def test_no_other_module_names_a_trainer() -> None:
    naming = {name: named for name, path in modules() if (named := trainers_named_in(path))}
    assert {name: named for name, named in naming.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) - set(naming) == set(), "allowances that are not needed"


def test_nothing_asks_for_the_name() -> None:
    """`trainer.id` is for the JSON; code that compares it with a name should use a trait."""
    compares = re.compile(r"trainer\.(?:id|name)\b\s*(?:==|!=|in\b|not in\b)")
    offenders = {name for name, path in modules() if compares.search(path.read_text(encoding="utf-8"))}
    assert offenders == {"exchange/import_nanogpt.py"}  # what an import was asked to import


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
        # These are of a variant only, which a trainer's file switches to while it reads.
        assert trait.name in (
            "eval_timed_in_later_step",
            "loss_measures_learning",
            "iterations_are_epochs",
        ) or any(value != getattr(plain, trait.name) for value in values), trait.name


def test_advice_comes_with_its_cause() -> None:
    for trainer in TRAINERS:
        assert trainer.restarts_data_on_resume == (trainer.data_restart_cause is not None)
        assert trainer.restarts_data_on_resume == (trainer.data_restart_advice is not None)
        assert not (trainer.resume_command and trainer.cannot_resume_advice)
