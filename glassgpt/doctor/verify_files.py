"""glass verify: every file that has a recorded digest is read through and compared with it.

    run        checkpoints (state.json has the digests), tokenizer (manifest.json)
    export     every file (glassgpt.json)
    dataset    every file (manifest.json)

A file without a digest is looked at as far as it can be read. Nothing is changed, and torch is not imported.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from glassgpt import format
from glassgpt.data.dataset import BUILT_IN
from glassgpt.data.digests import MARKER, SAMPLED, file_sha256, has_fingerprint, recorded_digests
from glassgpt.data.manifest import MANIFEST, TOKENIZER_FILES, Manifest, stored_manifest
from glassgpt.errors import UserError
from glassgpt.paths import read_document, regular_unlinked, user_path
from glassgpt.recipe import read_recipe
from glassgpt.record import journal
from glassgpt.record.run_dir import CONFIG, RUNS, TOKENIZER, is_run, is_whole_config
from glassgpt.training.checkpoint.checkpoints import DIGESTS, FOLDER, committed, describe, misnamed

Kind = Literal["run", "export", "dataset"]
Advance = Callable[[int], object]  # is told of bytes as they are read
_REPORT = "report.html"


@dataclass(frozen=True)
class Part:
    """A file, or a folder of files that belong together."""

    name: str
    verdict: Literal["good", "damaged", "no digest"]
    says: str


@dataclass(frozen=True)
class Step:
    """A way to continue in spite of the damage."""

    says: str
    command: str


@dataclass(frozen=True)
class Verified:
    path: Path
    kind: Kind
    parts: tuple[Part, ...]
    next: tuple[Step, ...]

    def of(self, verdict: str) -> list[Part]:
        return [part for part in self.parts if part.verdict == verdict]

    def as_dict(self) -> dict[str, Any]:
        return {"path": str(self.path), "good": not self.of("damaged")} | {
            name: value for name, value in asdict(self).items() if name != "path"
        }


def find(text: str) -> tuple[Kind, Path]:
    """By path, or by name in runs/, data/ or exports/."""
    path = user_path(text)
    for folder in (path,) if path.exists() else (RUNS / text, Path("data", text), Path("exports", text)):
        if is_run(folder):
            return "run", folder
        if (folder / MARKER).is_file():
            return "export", folder
        if (folder / MANIFEST).is_file():
            return "dataset", folder
    if any((path / name).is_file() for name in ("train.bin", "ckpt.pt")):
        raise UserError(f"{text} is nanoGPT's, which records no digests: there is nothing to compare with")
    raise UserError(
        f"{text} is neither a run, nor an export (no {MARKER}), nor a dataset (no {MANIFEST}); `glass runs` "
        "lists the runs there are"
    )


def verify(kind: Kind, folder: Path, advance: Advance) -> Verified:
    checks = {"run": _run, "export": _export, "dataset": _dataset}
    parts, steps = checks[kind](folder, advance)
    damaged = any(part.verdict == "damaged" for part in parts)
    return Verified(folder, kind, tuple(parts), tuple(steps) if damaged else ())


def _compared(
    folder: Path,
    recorded: Mapping[str, str],
    advance: Advance,
    digest_of: Callable[[Path, Advance], str] = file_sha256,
) -> list[Part]:
    """Each file against its digest."""
    parts = []
    for name, expected in sorted(recorded.items()):
        path = folder / name
        try:
            if not path.is_file():
                problem = "missing"
            elif expected.startswith(SAMPLED):
                problem = (
                    "" if has_fingerprint(path, expected) else "its sampled SHA-256 is not the recorded one"
                )
            else:
                differs = digest_of(path, advance) != expected
                problem = "its SHA-256 is not the recorded one" if differs else ""
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        size = "" if problem else format.size(path.stat().st_size)
        parts.append(Part(name, "damaged" if problem else "good", problem or size))
    return parts


def _together(name: str, parts: list[Part], good: str) -> Part:
    """Files that are of use only together, as one."""
    damaged = [f"{part.name}: {part.says}" for part in parts if part.verdict == "damaged"]
    return Part(name, "damaged" if damaged else "good", "; ".join(damaged) or good)


# --- runs ---


def _run(folder: Path, advance: Advance) -> tuple[list[Part], list[Step]]:
    checked = [(path, _checkpoint(path, advance)) for path in committed(folder)]
    # A run that is training removes old ones meanwhile.
    points = [part for path, part in checked if part.verdict == "good" or path.exists()]
    config = _config(folder / CONFIG)
    copies = [(point, _checkpoint(point.path, advance)) for point in misnamed(folder)]
    others = [replace(part, says=f"a copy that the run does not use: {part.says}") for _, part in copies]
    if not points and any(old["kind"] == "checkpoint" for old in _records(folder)):
        others.append(Part(FOLDER, "damaged", "missing: the journal has checkpoints"))
    parts = [*points, *others, config, _journal(folder / journal.NAME, advance)]
    parts.append(_tokenizer(folder / TOKENIZER, advance))
    if (folder / _REPORT).is_file():
        parts.append(Part(_REPORT, "no digest", "`glass report` writes it again"))
    good = [part.name for part in points if part.verdict == "good"]
    quoted = shlex.quote(str(folder))
    if good and good[-1] == points[-1].name:
        step = Step(f"the newest checkpoint, {good[-1]}, is good", f"glass sample {quoted}@last")
    elif good:
        says = (
            f"the newest good checkpoint is {good[-1]}: resuming takes it, and sets damaged newer ones aside"
        )
        step = Step(says, f"glass train --init_from=resume --out_dir={quoted}")
    elif whole := [point for point, part in copies if part.verdict == "good"]:
        place = folder / FOLDER / f"{whole[-1].iter:08d}"
        says = f"a copy is good: move {place} away if it is there, give the copy that name, and resume"
        step = Step(says, f"mv {shlex.quote(str(whole[-1].path))} {shlex.quote(str(place))}")
    elif config.verdict != "damaged":
        settings = shlex.quote(str(folder / CONFIG))
        step = Step("no checkpoint is good: train again with the same settings", f"glass train {settings}")
    else:
        step = Step("neither a checkpoint nor the settings are good: train again", "glass train PRESET")
    return parts, [step]


def _records(folder: Path) -> Iterator[journal.Record]:
    with suppress(OSError, UserError):  # the journal's own part says what is wrong with it
        yield from journal.read(folder / journal.NAME)


def _checkpoint(path: Path, advance: Advance) -> Part:
    name = f"{FOLDER}/{path.name}"
    try:
        point = describe(path)
    except UserError as error:
        return Part(name, "damaged", str(error).removeprefix(f"{path} is damaged: "))
    except OSError as error:
        return Part(name, "damaged", f"cannot be read: {error.strerror}")
    digests = point.state["sha256"]
    loss = "" if point.val_loss is None else f", validation loss {point.val_loss:.4f}"
    good = f"iter {point.iter:,}{loss}, {format.plural(len(digests) + 1, 'file')}"
    return _together(name, _compared(path, digests, advance, DIGESTS[point.state["version"]]), good)


def _config(path: Path) -> Part:
    try:
        read_recipe(path)
    except UserError as error:
        return Part(CONFIG, "damaged", f"{error}; each checkpoint has the settings too")
    if not is_whole_config(path):
        return Part(CONFIG, "damaged", "it is cut off; each checkpoint has the settings too")
    return Part(CONFIG, "no digest", "complete")


def _journal(path: Path, advance: Advance) -> Part:
    """A torn line is what a crash leaves, and is passed over by whoever reads."""
    if not path.is_file():
        return Part(
            journal.NAME, "damaged", "missing: what happened in the run is lost, its checkpoints are not"
        )
    records = torn = 0
    try:
        with open(path, "rb", opener=regular_unlinked) as file:
            for line in iter(lambda: file.readline(journal.LONGEST_LINE), b""):
                whole = len(list(journal.read_stream([line])))
                records, torn = records + whole, torn + (not whole and bool(line.strip()))
                advance(len(line))
    except OSError as error:
        return Part(journal.NAME, "damaged", f"cannot be read: {error.strerror}")
    says = f"{format.plural(records, 'record')}, {format.plural(torn, 'torn line')}"
    return Part(journal.NAME, "no digest", says)


def _tokenizer(folder: Path, advance: Advance) -> Part:
    try:
        manifest = stored_manifest(folder)
    except UserError as error:
        return Part(TOKENIZER, "damaged", f"{error}; resuming writes it again")
    if manifest is None:
        return Part(TOKENIZER, "no digest", "missing: `glass sample` needs --data_dir")
    digests = {name: digest for name, digest in manifest.sha256.items() if name in TOKENIZER_FILES}
    return _together(TOKENIZER, _compared(folder, digests, advance), manifest.tokenizer)


# --- exports and datasets ---


def _export(folder: Path, advance: Advance) -> tuple[list[Part], list[Step]]:
    quoted = shlex.quote(str(folder))
    try:
        recorded = recorded_digests(folder) or {}
    except UserError:
        again = Step(
            f"nothing can be compared: remove {folder}, and export again", f"glass export RUN --out={quoted}"
        )
        return [Part(MARKER, "damaged", "it is not as it was written")], [again]
    parts = [Part(MARKER, "good", "names the others"), *_compared(folder, recorded, advance)]
    others = {path.name for path in folder.iterdir()} - recorded.keys() - {MARKER}
    parts += [Part(name, "no digest", "not written by `glass export`") for name in sorted(others)]
    content = journal.loads(read_document(folder / MARKER))
    model, to = str(content.get("model")), str(content["written_by"]).partition("--to=")[2]
    is_here = is_run(RUNS / (model.rpartition("@")[0] or model))
    source = shlex.quote(str(RUNS / model)) if is_here else "RUN"
    says = f"it was made of {model}: remove {folder}, and export that again"
    return parts, [Step(says, f"glass export {source} --to={to} --out={quoted}")]


def _dataset(folder: Path, advance: Advance) -> tuple[list[Part], list[Step]]:
    try:
        manifest = stored_manifest(folder)
    except UserError as error:
        return [Part(MANIFEST, "damaged", problem) for problem in error.problems], [_prepare(folder, None)]
    assert manifest is not None
    about = Part(MANIFEST, "good", f"{manifest.name}, {manifest.tokenizer}")
    return [about, *_compared(folder, manifest.sha256, advance)], [_prepare(folder, manifest)]


def _prepare(folder: Path, manifest: Manifest | None) -> Step:
    out = shlex.quote(str(folder))
    if manifest is None:
        return Step("prepare it again", f"glass prepare TEXT --out_dir={out} --overwrite")
    text = manifest.name if manifest.name in BUILT_IN else "TEXT"
    command = f"glass prepare {text} --tokenizer={manifest.tokenizer} --out_dir={out} --overwrite"
    return Step(f"prepare it again; its text was {manifest.source}", command)
