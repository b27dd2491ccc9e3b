"""Files and folders: written all at once, locked, and read only if they are regular files.

    with atomic_folder(out) as work:            # a hidden folder beside `out`
        atomic_write(work / "a.json", b"{}")    # the old file or the new one, never a part
        commit_folder(work, out)                # fsync, then rename

`~` in paths, and how paths are shown, is here too.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from glassgpt.errors import UserError

MAX_SMALL_FILE_BYTES = 1 << 26  # of JSON or TOML; the largest tokenizer.json files have half of it
_PACKAGE_ROOT = Path(__file__).resolve().parents[1]


# --- paths ---


def expand_user_path(text: str) -> Path:
    """Expands ~. os.path's expanduser leaves an unknown ~user as it is; pathlib's raises."""
    return Path(os.path.expanduser(text))


def abbreviate_home(text: str) -> str:
    """Replaces the home folder with ~ in all paths of a text: shared output should not name the user."""
    home = os.path.expanduser("~")
    if len(home) < 2 or home not in text:
        return text
    return re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", text)


def child_pythonpath() -> str:
    """PYTHONPATH with which a child process imports this very package, also where it is not installed."""
    # An installed package needs no entry, and its entry would come before Python's own modules.
    installed = _PACKAGE_ROOT.name in ("site-packages", "dist-packages")
    paths = ["" if installed else str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)


def nearest_existing_folder(path: Path) -> Path:
    """The folder, or the first of its parents that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def writable_problem(out: Path, flag: str = "--out_dir") -> str | None:
    """Why no folder can be created at `out`, or None."""
    nearest = next(parent for parent in out.absolute().parents if parent.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return None
    return f"{out} cannot be written, because of {nearest}: choose another {flag}"


# --- regular files only ---


def regular_file_opener(path: str, flags: int) -> int:
    """For `open(path, opener=regular_file_opener)`: refuses pipes and devices, which may block or never end.

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
        if error.errno != errno.ENXIO:  # a socket, or a pipe opened for writing that has no reader
            raise
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.ENOTSUP, "it is a pipe or a device, not a regular file", path)


def regular_file_opener_nofollow(path: str, flags: int) -> int:
    """Like `regular_file_opener`, but refuses symbolic links: for the files that a run appends to."""
    try:
        return regular_file_opener(path, flags | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", path) from None


def read_small_file(path: Path, max_bytes: int = MAX_SMALL_FILE_BYTES) -> bytes:
    """The whole content of a regular file of at most `max_bytes`."""
    with open(path, "rb", opener=regular_file_opener) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(
                errno.EFBIG, f"it has {size:,} bytes, and at most {max_bytes:,} are read", str(path)
            )
        return file.read(size)


def read_text_or_empty(path: Path) -> str:
    """The file's text, or nothing if this system has no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- atomic writes ---


def fsync_path(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no fsync for folders
    # Windows syncs only what is open for writing.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: Path, content: bytes) -> None:
    """Writes a file so that its name always holds the whole old content or the whole new one."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(content)
        fsync_path(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(out: Path, flag: str = "--out_dir") -> Iterator[Path]:
    """A hidden work folder beside `out`, removed on exit; `commit_folder` renames it before that.

    `flag`: the flag with which the user named `out`.
    """
    work = out.parent / f".{out.name}.{secrets.token_hex(4)}.tmp"
    try:
        with _temporary_parents(work):
            try:
                work.mkdir()
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        failed = Path(error.filename or work)
        if not (failed.is_relative_to(work) or failed.is_relative_to(out) or failed in work.parents):
            raise  # an input failed, not the output
        raise UserError(f"{out} could not be written ({error}): choose another {flag}") from error


def remove_stale_folders(out: Path) -> None:
    """Removes work folders that a killed `atomic_folder` left. The caller holds `exclusive_lock(out)`.

    A folder with a manifest is complete and stays: its process was killed between the two renames.
    """
    for path in out.parent.glob(f".{glob.escape(out.name)}.{'[0-9a-f]' * 8}.tmp"):
        if path.is_dir() and not (path / "manifest.json").exists():
            shutil.rmtree(path, ignore_errors=True)


def commit_folder(work: Path, out: Path) -> None:
    """Renames the finished folder to its final name; a folder that it replaces is removed last.

    The only gap is between two renames: a process killed there leaves both folders, complete, under
    hidden names.
    """
    for path in (*work.iterdir(), work):
        fsync_path(path)
    old = out.parent / f".{out.name}.{secrets.token_hex(4)}.old"  # random: an earlier one may still exist
    if out.exists():
        out.rename(old)
    try:
        work.rename(out)
    except BaseException:
        if old.exists():
            old.rename(out)
        raise
    fsync_path(out.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _temporary_parents(path: Path) -> Iterator[None]:
    """Creates the folders above `path`; on exit removes those it created, unless they hold something."""
    created = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for parent in created:  # innermost first; stops at the first that holds something
            with contextlib.suppress(OSError):
                parent.rmdir()


# --- locks ---


@contextlib.contextmanager
def exclusive_lock(out: Path) -> Iterator[None]:
    """No other process prepares `out` meanwhile. The lock file lies beside `out`, so a rename keeps it."""
    path = out.parent / f".{out.name}.lock"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_temporary_parents(path))
            while True:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
                if not try_lock(descriptor):
                    os.close(descriptor)
                    raise UserError(f"another process is preparing {out} right now: let it end first")
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), path.stat()):
                        break
                os.close(descriptor)  # its owner removed the file between our open and our lock
        except OSError as error:
            raise UserError(f"{out} could not be written ({error}): choose another --out_dir") from error
        try:
            yield
        finally:
            with contextlib.suppress(PermissionError):  # Windows removes no open file
                path.unlink(missing_ok=True)  # while still locked: a waiting process sees that it is gone
            os.close(descriptor)


def try_lock(descriptor: int, shared: bool = False) -> bool:
    """Takes a lock on an open file without waiting. Shared locks exclude only exclusive ones. The lock ends
    with the process."""
    try:
        import fcntl
    except ImportError:  # Windows has no flock
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, such as some network drives
        return True
    return True
