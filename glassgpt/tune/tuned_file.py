"""tuned.toml: the settings of the run with what was measured, ready for `glass train tuned.toml`."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.files import atomic_write, expand_user_path
from glassgpt.recipe import to_toml

FILE_NAME = "tuned.toml"


def check_output_path(out: str, force: bool) -> list[str]:
    """What is wrong with the file to write, before anything is measured for it."""
    path = expand_user_path(out or FILE_NAME)
    problems = []
    if not out:
        folder = path.absolute().parent
        if not os.access(folder, os.W_OK):
            problems.append(f"{folder} cannot be written to: choose another place with --out=FILE")
        return problems
    if path.is_dir():
        problems.append(f"--out={out} is a folder: name a file")
    elif not path.parent.is_dir():
        problems.append(f"--out={out}: there is no folder {path.parent}")
    elif not os.access(path.parent, os.W_OK):
        problems.append(f"--out={out}: {path.parent} cannot be written to")
    elif os.path.lexists(path) and not force:
        problems.append(f"--out={out} is there already: choose another name, or --force writes over it")
    if path.suffix != ".toml":
        problems.append(f"--out={out}: `glass train` takes it only if its name ends with .toml")
    return problems


def output_path(out: str, force: bool) -> Path:
    path = expand_user_path(out or FILE_NAME)
    number, free = 1, path
    while not out and not force and os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def write_tuned_file(text: str, out: str, force: bool) -> Path:
    """All of it or nothing."""
    problems = check_output_path(out, force)  # somebody may have been there meanwhile
    if problems:
        raise UserError(problems)
    path = output_path(out, force)
    try:
        atomic_write(path, text.encode())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another --out=FILE") from None
    return path


def tuned_file_text(
    tuned: TrainConfig, asked: TrainConfig, name: str, settled: Collection[str], notes: Sequence[str]
) -> str:
    """First what was `settled`, then all the rest. `notes`: about the measurement, a line each."""
    lines = dict(_lines(tuned))
    first = {field for field in lines if field in settled or getattr(tuned, field) != getattr(asked, field)}
    parts = [
        *(f"# {note}" for note in notes),
        f"about = {_quoted(f'{name}, tuned for this machine')}",
        "",
        "# --- measured ---",
        *(lines[field] + _remark(tuned, asked, field) for field in lines if field in first),
        "",
        f"# --- as {name} has it ---",
        *(line for field, line in lines.items() if field not in first),
    ]
    return "\n".join(parts) + "\n"


def _lines(config: TrainConfig) -> list[tuple[str, str]]:
    return [(line.partition(" = ")[0], line) for line in to_toml(config).splitlines()]


def _remark(tuned: TrainConfig, asked: TrainConfig, name: str) -> str:
    before = getattr(asked, name)
    if name == "eval_tokens" and asked.eval_iters is not None:
        return f"  # as eval_iters = {asked.eval_iters} was, which counts micro-batches"
    if before == getattr(tuned, name):
        return "  # as it was"
    return f"  # was {'open' if before is None else before}"


def _quoted(text: str) -> str:
    (line,) = (line for field, line in _lines(TrainConfig(out_dir=text)) if field == "out_dir")
    return line.partition(" = ")[2]
