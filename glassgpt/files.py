"""A folder that appears all at once: written beside its place, synced to the disk, then renamed."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from glassgpt.errors import UserError


@contextlib.contextmanager
def atomic_folder(out: Path, flag: str = "--out_dir") -> Iterator[Path]:
    """A hidden folder beside `out` to work in; gone afterwards, whatever happens. `flag` named `out`."""
    work = out.parent / f".{out.name}.{secrets.token_hex(4)}.tmp"
    try:
        with _parents(work):
            try:
                work.mkdir()
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        named = Path(error.filename or work)
        if not (named.is_relative_to(work) or named.is_relative_to(out) or named in work.parents):
            raise  # of what was read
        raise UserError(f"{out} could not be written ({error}): choose another {flag}") from error


def remove_stale_folders(out: Path) -> None:
    """What `staging` could not take away, because its process was killed. The caller is `alone` with `out`.

    A folder with a manifest is complete, and stays: it was killed between the two renames.
    """
    for path in out.parent.glob(f".{glob.escape(out.name)}.{'[0-9a-f]' * 8}.tmp"):
        if path.is_dir() and not (path / "manifest.json").exists():
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def exclusive_lock(out: Path) -> Iterator[None]:
    """Nobody else makes `out` meanwhile. The lock lies beside it, and so outlives what is renamed."""
    path = out.parent / f".{out.name}.lock"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_parents(path))
            descriptor = _locked(path)
        except OSError as error:
            raise UserError(f"{out} could not be written ({error}): choose another --out_dir") from error
        if descriptor is None:
            raise UserError(f"another process is preparing {out} right now: let it end first")
        try:
            yield
        finally:
            with contextlib.suppress(PermissionError):  # Windows removes nothing that is open
                path.unlink(missing_ok=True)  # while it is locked: who waits for it sees that it is gone
            os.close(descriptor)


@contextlib.contextmanager
def _parents(path: Path) -> Iterator[None]:
    """The folders above `path`; those that had to be made are gone afterwards, unless they hold something."""
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for parent in made:  # innermost first; stops at the first that holds something
            with contextlib.suppress(OSError):
                parent.rmdir()


def _locked(path: Path) -> int | None:
    """An open file that is locked and still has this name, or None if somebody else has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if not try_lock(descriptor):
            os.close(descriptor)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # its owner removed it between our opening and our locking


def commit_folder(work: Path, out: Path) -> None:
    """Rename the finished folder to its name; a folder it replaces is removed last.

    The only gap is between two renames: whoever is killed there finds both folders, complete, under
    their hidden names.
    """
    for path in (*work.iterdir(), work):
        fsync_path(path)
    old = out.parent / f".{out.name}.{secrets.token_hex(4)}.old"  # one from an earlier time may be there
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


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file so that there is always the old one or the new one under its name, whole."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(content)
        fsync_path(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def writable_problem(out: Path, flag: str = "--out_dir") -> str | None:
    """Why no folder can be made at `out`, or None."""
    nearest = next(parent for parent in out.absolute().parents if parent.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return None
    return f"{out} cannot be written, because of {nearest}: choose another {flag}"


def fsync_path(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no such call for folders
    # Windows syncs only what is open for writing.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Takes an exclusive lock on an open file, without waiting. It ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows goes without
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, such as some network drives
        return True
    return True
