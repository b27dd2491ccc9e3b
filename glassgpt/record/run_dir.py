"""A run's folder: where it is, that it is new, and that only one process at a time writes to it.

runs/quickstart/
    config.toml       the resolved settings; `glass train runs/quickstart/config.toml` asks for the same
    journal.jsonl     what happened
    checkpoints/      see checkpoint.py
    tokenizer/        what turns its tokens back into text
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
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
CONFIG_FILE = "config.toml"
LOCK_FILE = "lock"
TOKENIZER_DIR = "tokenizer"
CHECKPOINTS_DIR = "checkpoints"
COMMITTED_NAME_PATTERN = re.compile(
    r"(\d{8,})(?:\.(\d+))?"
)  # a checkpoint's name; ".1": again at the same iteration
NANOGPT_CKPT_FILE = "ckpt.pt"  # nanoGPT's
_CONFIG_END_MARK = "# That was all."


def resume_command(run_dir: Path, *flags: str) -> str:
    """`glass train --init_from=resume --out_dir=runs/quickstart`, to be pasted into a shell."""
    return " ".join(["glass train --init_from=resume", f"--out_dir={shlex.quote(str(run_dir))}", *flags])


def is_complete_config(path: Path) -> bool:
    """A file that lost its end can still be good TOML, and what is missing would fall back to defaults."""
    return path.is_file() and _CONFIG_END_MARK.encode() in read_small_file(path)


def is_run_dir(directory: Path) -> bool:
    """Also one that lost its other files: its checkpoints hold everything that is needed."""
    checkpoints = directory / CHECKPOINTS_DIR
    return (
        (directory / journal.FILE_NAME).exists()
        or (directory / CONFIG_FILE).exists()
        or (
            checkpoints.is_dir()
            and any(COMMITTED_NAME_PATTERN.fullmatch(entry.name) for entry in checkpoints.iterdir())
        )
    )


def check_out_dir_is_free(asked: str) -> None:
    """Complains if the folder asked for holds a run, or cannot be a folder. Makes nothing."""
    directory = expand_user_path(asked)
    if is_resumable(directory):
        raise UserError(
            f"--out_dir={asked} holds a run already, and runs are never overwritten; "
            "go on with it by --init_from=resume, or choose another --out_dir"
        )
    for path in (directory, *directory.parents):
        if path.exists() and not path.is_dir():
            raise UserError(f"--out_dir={asked} cannot be made: {path} is a file; choose another --out_dir")


def make_run_dir(asked: str, name: str) -> Path:
    """Makes the folder asked for, which must not hold a run; else the first free of runs/NAME, NAME-2, …"""
    if asked:
        check_out_dir_is_free(asked)
        _make_durably(expand_user_path(asked), exist_ok=True)
        return expand_user_path(asked)
    return _make_numbered(RUNS_DIR, name)


def _make_numbered(parent: Path, name: str) -> Path:
    number = 1
    while True:
        directory = parent / (name if number == 1 else f"{name}-{number}")
        number += 1
        if not directory.exists():
            try:
                _make_durably(directory, exist_ok=False)
            except FileExistsError:  # another process was faster
                continue
            return directory


def _make_durably(directory: Path, exist_ok: bool) -> None:
    try:
        made = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(exist_ok=exist_ok)
        for path in made:
            fsync_path(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise UserError(f"{directory} cannot be made: {error.strerror}; choose another --out_dir") from None


def existing_run_dir(asked: str, name: str) -> Path:
    """The folder to resume: the one asked for, or the latest of runs/NAME, runs/NAME-2, …"""
    if not asked:
        return latest_numbered_run(RUNS_DIR / name)
    if not is_resumable(expand_user_path(asked)):
        raise UserError(f"--out_dir={asked} holds no run to resume; `glass runs` lists the runs there are")
    return expand_user_path(asked)


def is_resumable(directory: Path) -> bool:
    """Whether it holds a run, of ours or nanoGPT's."""
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
        raise UserError(f"there is no run {base}; `glass runs` lists the runs there are")
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
    """What the processes of a team need to know of the folder that the first of them holds."""

    directory: Path
    process_number: int  # starts of the run before this one
    start_id: str  # a random name of this one
    was_finished: bool

    def close(self) -> None:
        """There is nothing to let go."""


def _starts_so_far(path: Path) -> int:
    """How often the run was started, from the journal's end."""
    starts = 0
    for record in journal.read_backwards(path) if path.exists() else ():
        if isinstance(record.get("process"), int):
            return starts + int(record["process"]) + 1
        starts += record["kind"] == "run"  # without a number, as other programs may write it
    return starts


def training_end_record(path: Path) -> Record:
    """The `end` record of a run that has finished or stopped early, from the journal's end; empty if it has
    not. What only evaluated it later (--eval_only) does not count."""
    evaluated = None
    for record in journal.read_backwards(path) if path.exists() else ():
        if record.get("reason") == "evaluated":
            evaluated = record.get("process")
        elif evaluated is None or record.get("process") != evaluated:
            return record if record.get("reason") in ("finished", "stopped early") else {}
    return {}


def lock_run_dir(directory: Path, write: bool = True) -> ExitStack | None:
    """Locks a run's folder until it is closed, or the process ends; None if another process holds it.

    The folder itself is locked, which nobody can delete from under a lock, and a file in it: network drives
    lock only what is open for writing, and older versions look at the file alone. `write`: make that file.
    """
    with ExitStack() as held:
        descriptors = []
        with suppress(PermissionError):  # Windows opens no folders
            descriptors.append(os.open(directory, os.O_RDONLY))
            held.callback(os.close, descriptors[-1])
        if write or (directory / LOCK_FILE).exists():
            mode = "a" if write else "r"
            file = held.enter_context(open(directory / LOCK_FILE, mode, opener=regular_file_opener_nofollow))
            descriptors.append(file.fileno())
        return held.pop_all() if all(map(try_lock, descriptors)) else None


class LockedRunDir:
    """A run's folder while a process trains in it. Nobody else does: it holds a lock that dies with it."""

    def __init__(self, directory: Path) -> None:
        self.start_id = secrets.token_hex(4)
        self._lock_directory(directory)
        path, checkpoints = directory / journal.FILE_NAME, directory / CHECKPOINTS_DIR
        try:
            if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
                raise UserError(f"{path} is no regular file to write into: move it away")
            if os.path.lexists(checkpoints) and not checkpoints.is_dir():  # or the first save would fail
                raise UserError(f"{checkpoints} is no folder to write checkpoints into: move it away")
            self.process_number = _starts_so_far(path)
            # Otherwise the last process died, maybe between its last checkpoint and its end.
            self.was_finished = bool(training_end_record(path))
        except BaseException:
            self.close()
            raise

    def _lock_directory(self, directory: Path) -> None:
        try:
            held = lock_run_dir(directory)
        except OSError as error:
            what = error.filename or directory
            raise UserError(
                f"{what} cannot be written to: {error.strerror}; choose another --out_dir"
            ) from None
        if held is None:
            raise UserError(f"another process is training in {directory} right now; let it end first")
        self.directory, self._lock = directory, held

    def move_to_rescue_dir(self) -> None:
        """Goes on in a new folder: the old one is not this run's any more. Beside it, or in the current
        folder if it was on a drive that is gone."""
        name, parent = f"{self.directory.name or 'run'}-rescued", self.directory.parent
        self._lock.close()
        try:
            self._lock_directory(_make_numbered(parent if parent.is_dir() else Path(), name))
        except UserError:
            self._lock_directory(_make_numbered(Path(), name))

    def write_config(self, config: TrainConfig) -> None:
        text = to_toml(config, "The settings of this run. Resuming reads them.") + f"{_CONFIG_END_MARK}\n"
        try:
            atomic_write(self.directory / CONFIG_FILE, text.encode())
            fsync_path(self.directory)
        except OSError as error:
            raise UserError(f"{self.directory / CONFIG_FILE} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        with suppress(OSError):  # nothing was written to it
            self._lock.close()
