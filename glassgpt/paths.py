"""Paths as people write them, folders that may not be there yet, and files that come from anybody."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

MAX_SMALL_FILE_BYTES = 1 << 26  # bytes of JSON or TOML; the largest tokenizers have half
_PACKAGE_ROOT = Path(__file__).resolve().parents[1]


def expand_user_path(text: str) -> Path:
    """With ~ spelled out. os.path's expanduser leaves an unknown ~user alone, pathlib's raises."""
    return Path(os.path.expanduser(text))


def abbreviate_home(text: str) -> str:
    """The user's home folder as ~, wherever a path begins with it: what people share should not name them."""
    home = os.path.expanduser("~")
    if len(home) < 2 or home not in text:
        return text
    return re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", text)


def child_pythonpath() -> str:
    """PYTHONPATH for a Python process that shall find this very package, also where it is not installed."""
    # Where it is installed this is needless, and would precede Python's own modules.
    installed = _PACKAGE_ROOT.name in ("site-packages", "dist-packages")
    paths = ["" if installed else str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)


def nearest_existing_folder(path: Path) -> Path:
    """The folder, or the first of its parents that is there."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def regular_file_opener(path: str, flags: int) -> int:
    """For `open(path, opener=regular)`: refuses a pipe or a device, which may never answer or never end.

    Meant for files that somebody else may have put into a run, a dataset or an export.
    """
    mode = 0
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return descriptor
        os.close(descriptor)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a socket, or a pipe to write into that nobody reads
            raise
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.ENOTSUP, "it is a pipe or a device, not a regular file", path)


def regular_file_opener_nofollow(path: str, flags: int) -> int:
    """As `regular`, and no symbolic link: for the files that a run appends to."""
    try:
        return regular_file_opener(path, flags | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", path) from None


def read_small_file(path: Path, most: int = MAX_SMALL_FILE_BYTES) -> bytes:
    """A regular file of at most so many bytes, whole."""
    with open(path, "rb", opener=regular_file_opener) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} are read", str(path))
        return file.read(size)
