"""A run's folder: where it is, that it is new, and that only one process at a time writes to it.

runs/quickstart/
    config.toml       the resolved settings; `glass train runs/quickstart/config.toml` repeats the run
    journal.jsonl     what happened: journal.py
    checkpoints/      training/checkpoint/checkpoints.py
    tokenizer/        to decode its tokens
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.files import (
    atomic_write,
    expand_user_path,
    fsync_path,
    read_small_file,
    regular_file_opener_nofollow,
    try_lock,
)
from glassgpt.recipe import to_toml
from glassgpt.record import journal
from glassgpt.record.journal import Record

RUNS_DIR = Path("runs")
OUTPUT_LOG_FILE = "output.log"  # of a foreign command, in place of a journal: output_log.py
CONFIG_FILE = "config.toml"
LOCK_FILE = "lock"
TOKENIZER_DIR = "tokenizer"
CHECKPOINTS_DIR = "checkpoints"
# The name of a committed checkpoint: its iteration. ".1": saved again at the same iteration.
COMMITTED_NAME_PATTERN = re.compile(r"(\d{8,})(?:\.(\d+))?")
NANOGPT_CKPT_FILE = "ckpt.pt"
_CONFIG_END_MARK = "# That was all."
_LOCK_TIMEOUT_S = 1.0  # before a trainer is refused: a reader holds its lock for microseconds only
_LOCK_RETRY_S = 0.01
_OTHER_DIR_FIX = "choose another --out_dir"


def resume_command(run_dir: Path, *flags: str) -> str:
    """`glass train --init_from=resume --out_dir=runs/quickstart`, to be pasted into a shell."""
    return " ".join(["glass train --init_from=resume", f"--out_dir={shlex.quote(str(run_dir))}", *flags])


def is_complete_config(path: Path) -> bool:
    """A file that lost its end can still be valid TOML. The missing settings would silently be defaults."""
    return path.is_file() and _CONFIG_END_MARK.encode() in read_small_file(path)


def is_run_dir(directory: Path) -> bool:
    """Also a folder with checkpoints only: they hold everything that is needed."""
    checkpoints = directory / CHECKPOINTS_DIR
    return (
        (directory / journal.FILE_NAME).exists()
        or (directory / CONFIG_FILE).exists()
        or (
            checkpoints.is_dir()
            and any(COMMITTED_NAME_PATTERN.fullmatch(entry.name) for entry in checkpoints.iterdir())
        )
    )


def no_run_problem(directory: Path) -> str:
    return f"{directory} holds no run: there is no {journal.FILE_NAME} in it; `glass runs` lists the runs"


def check_out_dir_is_free(out_dir: str) -> None:
    """Raises a UserError if --out_dir holds a run, or cannot be made. Makes nothing."""
    directory = expand_user_path(out_dir)
    if is_resumable(directory):
        raise UserError(
            f"--out_dir={out_dir} holds a run already, and runs are never overwritten; "
            "resume it by --init_from=resume, or choose another --out_dir"
        )
    for path in (directory, *directory.parents):
        if path.exists() and not path.is_dir():
            raise UserError(f"--out_dir={out_dir} cannot be made: {path} is a file; choose another --out_dir")


def make_run_dir(out_dir: str, name: str) -> Path:
    """Makes `out_dir`, which must not hold a run; if it is empty, the first free of runs/NAME, NAME-2, …"""
    if out_dir:
        check_out_dir_is_free(out_dir)
        _make_durably(expand_user_path(out_dir), exist_ok=True)
        return expand_user_path(out_dir)
    return make_numbered_dir(RUNS_DIR, name)


def make_numbered_dir(parent: Path, name: str, first: str = "", fix: str = _OTHER_DIR_FIX) -> Path:
    """Makes the first free of NAME (or `first`), NAME-2, NAME-3, … in `parent`. The UserError if it cannot
    ends with `fix`."""
    number = 1
    while True:
        directory = parent / (first or name if number == 1 else f"{name}-{number}")
        number += 1
        if not directory.exists():
            try:
                _make_durably(directory, exist_ok=False, fix=fix)
            except FileExistsError:  # another process was faster
                continue
            return directory


def _make_durably(directory: Path, exist_ok: bool, fix: str = _OTHER_DIR_FIX) -> None:
    """Makes a folder and its parents, and flushes them to the disk."""
    for parent in directory.parents:
        if parent.exists() and not parent.is_dir():
            raise UserError(f"{directory} cannot be made: {parent} is a file; {fix}")
    try:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(exist_ok=exist_ok)
        for path in missing:
            fsync_path(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise UserError(f"{directory} cannot be made: {error.strerror}; {fix}") from None


def existing_run_dir(out_dir: str, name: str) -> Path:
    """The folder to resume: `out_dir`; if it is empty, the latest of runs/NAME, runs/NAME-2, …"""
    if not out_dir:
        return latest_numbered_run(RUNS_DIR / name)
    if not is_resumable(expand_user_path(out_dir)):
        raise UserError(f"--out_dir={out_dir} holds no run to resume; `glass runs` lists all runs")
    return expand_user_path(out_dir)


def is_resumable(directory: Path) -> bool:
    """Whether it holds a run, ours or nanoGPT's."""
    return is_run_dir(directory) or (directory / NANOGPT_CKPT_FILE).is_file()


def numbered_runs(base: Path) -> list[Path]:
    """The runs called BASE, BASE-2, …, in this order."""
    pattern = re.compile(re.escape(base.name) + r"(?:-(\d+))?")
    numbered = [
        (int(match[1] or 1), path)
        for path in (base.parent.iterdir() if base.parent.is_dir() else ())
        if (match := pattern.fullmatch(path.name)) and is_resumable(path)
    ]
    return [path for _, path in sorted(numbered)]


def latest_numbered_run(base: Path) -> Path:
    runs = numbered_runs(base)
    if not runs:
        raise UserError(f"there is no run {base}; `glass runs` lists all runs")
    return runs[-1]


def first_free_run_dir(base: Path) -> Path:
    """BASE, or the first of BASE-2, BASE-3, … that holds no run."""
    number, directory = 1, base
    while is_resumable(directory):
        number += 1
        directory = base.with_name(f"{base.name}-{number}")
    return directory


@dataclass(frozen=True)
class RunDirInfo:
    """What the other ranks need to know of the folder that rank 0 has locked."""

    directory: Path
    process_number: int  # starts of the run before this one
    start_id: str  # a random id of this start
    was_finished: bool

    def close(self) -> None:
        """Nothing to release: rank 0 holds the lock."""


def _count_starts(path: Path) -> int:
    """How often the run was started, from the end of its journal."""
    starts = 0
    for record in journal.read_backwards(path) if path.exists() else ():
        if isinstance(record.get("process"), int):
            return starts + int(record["process"]) + 1
        starts += record["kind"] == "run"  # without `process`, as other programs may write it
    return starts


def training_end_record(path: Path) -> Record:
    """The `end` record of a run that has finished or stopped early; empty if it has not. Later processes that
    only evaluated it (--eval_only) do not count."""
    eval_process = None
    for record in journal.read_backwards(path) if path.exists() else ():
        if record.get("reason") == "evaluated":
            eval_process = record.get("process")
        elif eval_process is None or record.get("process") != eval_process:
            return record if record.get("reason") in ("finished", "stopped early") else {}
    return {}


def lock_run_dir(directory: Path, shared: bool = False) -> ExitStack | None:
    """Locks a run's folder until the result is closed, or the process ends; None if another process has it.

    Both the folder and a file in it are locked. Nobody can delete a locked folder and make a new one. Network
    drives lock only what is open for writing, and older versions check only the file. `shared`: for a reader
    that asks whether a process trains there. Readers do not exclude each other, and make no file.
    """
    with ExitStack() as lock:
        descriptors = []
        with suppress(PermissionError):  # Windows opens no folders
            descriptors.append(os.open(directory, os.O_RDONLY))
            lock.callback(os.close, descriptors[-1])
        if not shared or (directory / LOCK_FILE).exists():
            mode = "r" if shared else "a"
            file = lock.enter_context(open(directory / LOCK_FILE, mode, opener=regular_file_opener_nofollow))
            descriptors.append(file.fileno())
        is_locked = all(try_lock(descriptor, shared) for descriptor in descriptors)
        return lock.pop_all() if is_locked else None


class LockedRunDir:
    """A run's folder, locked while this process trains in it. The lock ends with the process."""

    def __init__(self, directory: Path) -> None:
        self.start_id = secrets.token_hex(4)
        self._lock_directory(directory)
        path, checkpoints = directory / journal.FILE_NAME, directory / CHECKPOINTS_DIR
        try:
            if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
                raise UserError(f"{path} is not a regular file: move it away")
            if os.path.lexists(checkpoints) and not checkpoints.is_dir():  # or the first save would fail
                raise UserError(f"{checkpoints} is not a folder: move it away")
            self.process_number = _count_starts(path)
            # If False, the last process died, maybe after its last checkpoint.
            self.was_finished = bool(training_end_record(path))
        except BaseException:
            self.close()
            raise

    def _lock_directory(self, directory: Path) -> None:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        try:
            while (lock := lock_run_dir(directory)) is None and time.monotonic() < deadline:
                time.sleep(_LOCK_RETRY_S)
        except OSError as error:
            path = error.filename or directory
            raise UserError(
                f"{path} cannot be written to: {error.strerror}; choose another --out_dir"
            ) from None
        if lock is None:
            raise UserError(f"another process is training in {directory} right now; let it end first")
        self.directory, self._lock = directory, lock

    def move_to_rescue_dir(self) -> None:
        """Continues in a new folder, because the old one is lost: next to it, or in the current folder if its
        drive is gone."""
        name, parent = f"{self.directory.name or 'run'}-rescued", self.directory.parent
        self._lock.close()
        try:
            self._lock_directory(make_numbered_dir(parent if parent.is_dir() else Path(), name))
        except UserError:
            self._lock_directory(make_numbered_dir(Path(), name))

    def write_config(self, config: TrainConfig) -> None:
        text = to_toml(config, "The settings of this run. Resuming reads them.") + f"{_CONFIG_END_MARK}\n"
        try:
            atomic_write(self.directory / CONFIG_FILE, text.encode())
            fsync_path(self.directory)
        except OSError as error:
            raise UserError(f"{self.directory / CONFIG_FILE} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        with suppress(OSError):  # nothing was written
            self._lock.close()
