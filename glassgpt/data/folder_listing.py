"""What lies in a folder and below it, and what is passed over."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from glassgpt.errors import UserError
from glassgpt.format import pluralize


@dataclass(frozen=True)
class FolderListing:
    """The plain files of a folder, sorted, and how many names were passed over."""

    files: tuple[Path, ...]
    hidden_count: int
    # Folders elsewhere that a link leads to. They are not followed: a link may lead in a circle.
    linked_folder_count: int
    # Links that lead nowhere, pipes, devices: what they would have given is missing from the text.
    unreadable_count: int = 0


def list_folder(root: Path) -> FolderListing:
    files: list[Path] = []
    hidden = linked = 0
    for name, subfolders, names in os.walk(root, onerror=_refuse):
        hidden += sum(entry.startswith(".") for entry in subfolders + names)
        subfolders[:] = [entry for entry in subfolders if not entry.startswith(".")]
        linked += sum(Path(name, entry).is_symlink() for entry in subfolders)
        files += (Path(name, entry) for entry in names if not entry.startswith("."))
    plain = sorted(path for path in files if path.is_file())
    return FolderListing(tuple(plain), hidden, linked, len(files) - len(plain))


def _refuse(error: OSError) -> None:
    """What is in there would be missing from the text, and nobody would know."""
    raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error


def skipped_notes(number: int, what: str) -> tuple[str, ...]:
    return (f"skipped {pluralize(number, what)}",) if number else ()


def skipped_link_notes(folder: FolderListing) -> tuple[str, ...]:
    """For whoever meant what a link leads to."""
    follow = "a pattern in quotes, 'FOLDER/**/*', follows links"
    return (
        *(f"{note}; {follow}" for note in skipped_notes(folder.linked_folder_count, "linked folder")),
        *(
            f"{note}: links that lead nowhere, or pipes"
            for note in skipped_notes(folder.unreadable_count, "name")
        ),
    )
