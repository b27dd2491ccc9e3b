"""Paths as people write them, and folders that may not be there yet."""

from __future__ import annotations

import os
from pathlib import Path


def user_path(text: str) -> Path:
    """With ~ spelled out. os.path's expanduser leaves an unknown ~user alone, pathlib's raises."""
    return Path(os.path.expanduser(text))


def nearest_folder(path: Path) -> Path:
    """The folder, or the first of its parents that is there."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
