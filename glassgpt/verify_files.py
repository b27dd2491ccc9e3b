"""glass verify: compares every file that has a recorded digest with it.

    run        checkpoints (state.json has the digests), tokenizer (manifest.json)
    export     every file (glassgpt.json)
    dataset    every file (manifest.json)

A file without a digest is only parsed, if it can be. Nothing is changed, and torch is not imported.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from glassgpt.data.dataset import BUILT_IN
from glassgpt.data.digests import EXPORT_RECORD_FILE, Progress, file_sha256, find_damage, read_recorded_sha256
from glassgpt.data.manifest import MANIFEST_FILE, TOKENIZER_FILES, Manifest, read_stored_manifest
from glassgpt.errors import UserError
from glassgpt.files import expand_user_path, read_small_file, regular_file_opener_nofollow
from glassgpt.format import format_bytes, pluralize
from glassgpt.recipe import read_recipe
from glassgpt.record import journal
from glassgpt.record.run_dir import (
    CHECKPOINTS_DIR,
    CONFIG_FILE,
    RUNS_DIR,
    TOKENIZER_DIR,
    is_complete_config,
    is_run_dir,
    resume_command,
)
from glassgpt.training.checkpoint.checkpoints import list_checkpoints, read_checkpoint

VerifiedKind = Literal["run", "export", "dataset"]
_REPORT = "report.html"


@dataclass(frozen=True)
class CheckedPart:
    """A file, or a folder of files that belong together."""

    name: str
    verdict: Literal["good", "damaged", "no digest"]
    message: str


@dataclass(frozen=True)
class RecoveryStep:
    """How to continue despite the damage."""

    message: str
    command: str


@dataclass(frozen=True)
class VerifyReport:
    path: Path
    kind: VerifiedKind
    parts: tuple[CheckedPart, ...]
    next: tuple[RecoveryStep, ...]

    def with_verdict(self, verdict: str) -> list[CheckedPart]:
        return [part for part in self.parts if part.verdict == verdict]

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "good": not self.with_verdict("damaged"),
            "kind": self.kind,
            "parts": [
                {"name": part.name, "verdict": part.verdict, "says": part.message} for part in self.parts
            ],
            "next": [{"says": step.message, "command": step.command} for step in self.next],
        }


def find_target(text: str) -> tuple[VerifiedKind, Path]:
    """The run, export or dataset at this path, or of this name in runs/, data/ or exports/."""
    path = expand_user_path(text)
    for folder in (path,) if path.exists() else (RUNS_DIR / text, Path("data", text), Path("exports", text)):
        if is_run_dir(folder):
            return "run", folder
        if (folder / EXPORT_RECORD_FILE).is_file():
            return "export", folder
        if (folder / MANIFEST_FILE).is_file():
            return "dataset", folder
    if any((path / name).is_file() for name in ("train.bin", "ckpt.pt")):
        raise UserError(f"{text} was written by nanoGPT, which records no digests to compare with")
    raise UserError(
        f"{text} is neither a run, nor an export (no {EXPORT_RECORD_FILE}), nor a dataset (no "
        f"{MANIFEST_FILE}); `glass runs` lists the runs"
    )


def verify(kind: VerifiedKind, folder: Path, advance: Progress) -> VerifyReport:
    checks = {"run": _verify_run, "export": _verify_export, "dataset": _verify_dataset}
    parts, steps = checks[kind](folder, advance)
    damaged = any(part.verdict == "damaged" for part in parts)
    return VerifyReport(folder, kind, tuple(parts), tuple(steps) if damaged else ())


def _check_digests(
    folder: Path,
    recorded: Mapping[str, str],
    advance: Progress,
    digest_of: Callable[[Path, Progress], str] = file_sha256,
) -> list[CheckedPart]:
    parts = []
    for name, expected in sorted(recorded.items()):
        path = folder / name
        try:
            problem = find_damage(path, expected, lambda path: digest_of(path, advance))
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        size = "" if problem else format_bytes(path.stat().st_size)
        parts.append(CheckedPart(name, "damaged" if problem else "good", problem or size))
    return parts


def _merge_parts(name: str, parts: list[CheckedPart], good: str) -> CheckedPart:
    """Several files that are only useful together, as one part."""
    damaged = [f"{part.name}: {part.message}" for part in parts if part.verdict == "damaged"]
    return CheckedPart(name, "damaged" if damaged else "good", "; ".join(damaged) or good)


# --- runs ---


def _verify_run(folder: Path, advance: Progress) -> tuple[list[CheckedPart], list[RecoveryStep]]:
    listing = list_checkpoints(folder)
    checked = [(path, _verify_checkpoint(path, advance)) for path in listing.committed]
    # A run that is still training may have removed old ones meanwhile.
    checkpoints = [part for path, part in checked if part.verdict == "good" or path.exists()]
    config = _verify_config(folder / CONFIG_FILE)
    copies = [(point, _verify_checkpoint(point.path, advance)) for point in listing.misnamed]
    others = [
        replace(part, message=f"a copy that the run does not use: {part.message}") for _, part in copies
    ]
    if not checkpoints and any(record["kind"] == "checkpoint" for record in _records(folder)):
        others.append(CheckedPart(CHECKPOINTS_DIR, "damaged", "missing; the journal lists checkpoints"))
    parts = [*checkpoints, *others, config, _verify_journal(folder / journal.FILE_NAME, advance)]
    parts.append(_verify_tokenizer(folder / TOKENIZER_DIR, advance))
    if (folder / _REPORT).is_file():
        parts.append(CheckedPart(_REPORT, "no digest", "`glass report` writes it again"))
    good = [part.name for part in checkpoints if part.verdict == "good"]
    quoted = shlex.quote(str(folder))
    if good and good[-1] == checkpoints[-1].name:
        step = RecoveryStep(f"the newest checkpoint, {good[-1]}, is good", f"glass sample {quoted}@last")
    elif good:
        message = f"the newest good checkpoint is {good[-1]}: resuming uses it, and sets newer ones aside"
        step = RecoveryStep(message, resume_command(folder))
    elif good_copies := [checkpoint for checkpoint, part in copies if part.verdict == "good"]:
        place = folder / CHECKPOINTS_DIR / f"{good_copies[-1].iter:08d}"
        message = f"a copy is good: move {place} away if it exists, rename the copy to it, and resume"
        step = RecoveryStep(message, f"mv {shlex.quote(str(good_copies[-1].path))} {shlex.quote(str(place))}")
    elif config.verdict != "damaged":
        settings = shlex.quote(str(folder / CONFIG_FILE))
        step = RecoveryStep(
            "all checkpoints are damaged: train again with the same settings", f"glass train {settings}"
        )
    else:
        step = RecoveryStep("all checkpoints and the settings are damaged: train again", "glass train PRESET")
    return parts, [step]


def _records(folder: Path) -> Iterator[journal.Record]:
    with suppress(OSError, UserError):  # _verify_journal reports it
        yield from journal.read(folder / journal.FILE_NAME)


def _verify_checkpoint(path: Path, advance: Progress) -> CheckedPart:
    name = f"{CHECKPOINTS_DIR}/{path.name}"
    try:
        checkpoint = read_checkpoint(path)
    except UserError as error:
        return CheckedPart(name, "damaged", str(error).removeprefix(f"{path} is damaged: "))
    except OSError as error:
        return CheckedPart(name, "damaged", f"cannot be read: {error.strerror}")
    digests = checkpoint.state["sha256"]
    loss = "" if checkpoint.val_loss is None else f", validation loss {checkpoint.val_loss:.4f}"
    good = f"iter {checkpoint.iter:,}{loss}, {pluralize(len(digests) + 1, 'file')}"
    return _merge_parts(name, _check_digests(path, digests, advance, checkpoint.file_digest), good)


def _verify_config(path: Path) -> CheckedPart:
    try:
        read_recipe(path)
    except UserError as error:
        return CheckedPart(CONFIG_FILE, "damaged", f"{error}; each checkpoint has the settings too")
    if not is_complete_config(path):
        return CheckedPart(CONFIG_FILE, "damaged", "truncated; each checkpoint has the settings too")
    return CheckedPart(CONFIG_FILE, "no digest", "complete")


def _verify_journal(path: Path, advance: Progress) -> CheckedPart:
    """A crash may leave a torn line, which readers skip."""
    if not path.is_file():
        return CheckedPart(
            journal.FILE_NAME, "damaged", "missing: the record of the run is lost, its checkpoints are not"
        )
    records = torn = 0
    try:
        with open(path, "rb", opener=regular_file_opener_nofollow) as file:
            for line in iter(lambda: file.readline(journal.MAX_LINE_BYTES), b""):
                parsed = len(list(journal.parse_records([line])))
                records, torn = records + parsed, torn + (not parsed and bool(line.strip()))
                advance(len(line))
    except OSError as error:
        return CheckedPart(journal.FILE_NAME, "damaged", f"cannot be read: {error.strerror}")
    message = f"{pluralize(records, 'record')}, {pluralize(torn, 'torn line')}"
    return CheckedPart(journal.FILE_NAME, "no digest", message)


def _verify_tokenizer(folder: Path, advance: Progress) -> CheckedPart:
    try:
        manifest = read_stored_manifest(folder)
    except UserError as error:
        return CheckedPart(TOKENIZER_DIR, "damaged", f"{error}; resuming writes it again")
    if manifest is None:
        return CheckedPart(TOKENIZER_DIR, "no digest", "missing: `glass sample` needs --data_dir")
    digests = {name: digest for name, digest in manifest.sha256.items() if name in TOKENIZER_FILES}
    return _merge_parts(TOKENIZER_DIR, _check_digests(folder, digests, advance), manifest.tokenizer)


# --- exports and datasets ---


def _verify_export(folder: Path, advance: Progress) -> tuple[list[CheckedPart], list[RecoveryStep]]:
    quoted = shlex.quote(str(folder))
    try:
        recorded = read_recorded_sha256(folder) or {}
    except UserError:
        again = RecoveryStep(
            f"its digests are lost: remove {folder} and export again", f"glass export RUN --out={quoted}"
        )
        return [CheckedPart(EXPORT_RECORD_FILE, "damaged", "changed since it was written")], [again]
    parts = [
        CheckedPart(EXPORT_RECORD_FILE, "good", "lists the other files"),
        *_check_digests(folder, recorded, advance),
    ]
    others = {path.name for path in folder.iterdir()} - recorded.keys() - {EXPORT_RECORD_FILE}
    parts += [CheckedPart(name, "no digest", "not written by `glass export`") for name in sorted(others)]
    content = journal.loads(read_small_file(folder / EXPORT_RECORD_FILE))
    model, to = str(content.get("model")), str(content["written_by"]).partition("--to=")[2]
    is_here = is_run_dir(RUNS_DIR / (model.rpartition("@")[0] or model))
    source = shlex.quote(str(RUNS_DIR / model)) if is_here else "RUN"
    message = f"it was exported from {model}: remove {folder} and export that again"
    return parts, [RecoveryStep(message, f"glass export {source} --to={to} --out={quoted}")]


def _verify_dataset(folder: Path, advance: Progress) -> tuple[list[CheckedPart], list[RecoveryStep]]:
    try:
        manifest = read_stored_manifest(folder)
    except UserError as error:
        return [CheckedPart(MANIFEST_FILE, "damaged", problem) for problem in error.problems], [
            _prepare_again_step(folder, None)
        ]
    assert manifest is not None
    about = CheckedPart(MANIFEST_FILE, "good", f"{manifest.name}, {manifest.tokenizer}")
    return [about, *_check_digests(folder, manifest.sha256, advance)], [_prepare_again_step(folder, manifest)]


def _prepare_again_step(folder: Path, manifest: Manifest | None) -> RecoveryStep:
    out = shlex.quote(str(folder))
    if manifest is None:
        return RecoveryStep("prepare it again", f"glass prepare TEXT --out_dir={out} --overwrite")
    text = manifest.name if manifest.name in BUILT_IN else "TEXT"
    command = f"glass prepare {text} --tokenizer={manifest.tokenizer} --out_dir={out} --overwrite"
    return RecoveryStep(f"prepare it again; its text was {manifest.source}", command)
