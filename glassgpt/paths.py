"""Paths as people write them, and folders that may not be there yet."""

from __future__ import annotations

import os
import re
from pathlib import Path


def user_path(text: str) -> Path:
    """With ~ spelled out. os.path's expanduser leaves an unknown ~user alone, pathlib's raises."""
    return Path(os.path.expanduser(text))


def with_tilde(text: str) -> str:
    """The user's home folder as ~, wherever a path begins with it: what people share should not name them."""
    home = os.path.expanduser("~")
    if len(home) < 2 or home not in text:
        return text
    return re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", text)


def nearest_folder(path: Path) -> Path:
    """The folder, or the first of its parents that is there."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
