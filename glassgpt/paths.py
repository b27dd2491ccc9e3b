"""Paths as people write them, and folders that may not be there yet."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGES = Path(__file__).resolve().parents[1]


def user_path(text: str) -> Path:
    """With ~ spelled out. os.path's expanduser leaves an unknown ~user alone, pathlib's raises."""
    return Path(os.path.expanduser(text))


def python_path() -> str:
    """PYTHONPATH for a Python process that shall find this very package, also where it is not installed."""
    installed = _PACKAGES.name in (
        "site-packages",
        "dist-packages",
    )  # needless, and it would precede Python's own
    paths = ["" if installed else str(_PACKAGES), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)


def nearest_folder(path: Path) -> Path:
    """The folder, or the first of its parents that is there."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
