"""What lies in a folder and below it, and what is passed over."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from glassgpt.errors import UserError
from glassgpt.figures import plural


@dataclass(frozen=True)
class Folder:
    """The plain files of a folder, sorted, and how many names were passed over."""

    files: tuple[Path, ...]
    hidden: int
    # Folders elsewhere that a link leads to. They are not followed: a link may lead in a circle.
    linked: int


def read_folder(root: Path) -> Folder:
    files: list[Path] = []
    hidden = linked = 0
    for name, subfolders, names in os.walk(root, onerror=_refuse):
        hidden += sum(entry.startswith(".") for entry in subfolders + names)
        subfolders[:] = [entry for entry in subfolders if not entry.startswith(".")]
        linked += sum(Path(name, entry).is_symlink() for entry in subfolders)
        files += (Path(name, entry) for entry in names if not entry.startswith("."))
    return Folder(tuple(sorted(path for path in files if path.is_file())), hidden, linked)


def _refuse(error: OSError) -> None:
    """What is in there would be missing from the text, and nobody would know."""
    raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error


def skipped(number: int, what: str) -> tuple[str, ...]:
    return (f"skipped {plural(number, what)}",) if number else ()


def skipped_links(linked: int) -> tuple[str, ...]:
    """For whoever meant what a link leads to."""
    return tuple(
        f"{note}; a pattern in quotes, 'FOLDER/**/*', follows links"
        for note in skipped(linked, "linked folder")
    )
