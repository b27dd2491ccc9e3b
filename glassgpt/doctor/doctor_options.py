"""The options of `glass doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glassgpt.config import has_invalid_characters
from glassgpt.files import expand_user_path


@dataclass(frozen=True)
class DoctorOptions:
    """Look at this machine: what it has, how fast it is, and whether training here does what it should.

    Every line has a verdict: ok, note, or problem with a fix. Exit code 0: no problem. 1: at least one.
    """

    # Print everything as one JSON document.
    json: bool = False
    # Leave out what takes longer than a second: matmuls, compiling, self-tests.
    quick: bool = False
    # The folder whose disk is looked at: where runs go. Default: runs/.
    out_dir: str = ""


def check_doctor_options(options: DoctorOptions) -> list[str]:
    if has_invalid_characters(options.out_dir) or "\0" in options.out_dir:
        return ["--out_dir is no name that a folder can have"]
    for path in (place := runs_dir(options), *place.parents):
        if path.exists() and not path.is_dir():
            return [f"--out_dir={options.out_dir} cannot be a folder: {path} is a file"]
    return []


def runs_dir(options: DoctorOptions) -> Path:
    return expand_user_path(options.out_dir or "runs")
