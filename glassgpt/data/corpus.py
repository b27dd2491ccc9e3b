"""Documents in bulk: which files a corpus is made of, wherever they are.

    glass prepare crawl.parquet                     one file of documents, or several: 'crawl/*.jsonl.zst'
    glass prepare crawl                             a folder of such files
    glass prepare 'books/**/*.txt'                  text files, a document each
    glass prepare fineweb_edu                       from Hugging Face, see hub.py

What is small enough to be read several times (a text, a folder of texts) goes another way, see sources.py.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassgpt.data import hub
from glassgpt.data.dataset import BUILT_IN
from glassgpt.data.document_batches import (
    DocumentBatch,
    DocumentReader,
    JsonLinesReader,
    TextFilesReader,
    is_binary,
    is_document_file,
    is_parquet,
)
from glassgpt.data.folder_listing import list_folder, skipped_link_notes, skipped_notes
from glassgpt.data.parquet import ParquetReader, text_column_problem
from glassgpt.errors import UserError, user_error_for_files
from glassgpt.files import abbreviate_home, expand_user_path
from glassgpt.format import pluralize

# A folder of texts above this is not read three times over by one process.
LARGE_FOLDER_BYTES = 2**30


@dataclass(frozen=True)
class Corpus:
    """Files of documents in a fixed order, and what to say about them."""

    description: str
    readers: tuple[DocumentReader, ...]
    notes: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """On disk."""
        return sum(piece.size_bytes for piece in self.readers)

    def read_batches(self, piece: int = 0, skip: int = 0) -> Iterator[tuple[int, DocumentBatch]]:
        """All documents after the first `skip` of a piece, with the piece's number."""
        for number in range(piece, len(self.readers)):
            for parcel in self.readers[number].read_batches(skip if number == piece else 0):
                yield number, parcel

    def fingerprint(self) -> str:
        """Of the files' names, sizes and times: another one means that something was changed."""
        files = [
            path
            for piece in self.readers
            for path in (piece.files if isinstance(piece, TextFilesReader) else (piece.path,))
        ]
        known = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def is_corpus(dataset: str, in_bulk: bool = False) -> bool:
    """Whether this is to be read as documents in bulk. `in_bulk`: a folder of texts is, however small."""
    if dataset in BUILT_IN or not dataset:
        return dataset in hub.NAMED_HUB_DATASETS
    path = expand_user_path(dataset)
    if path.is_dir():
        return _is_corpus_folder(path, in_bulk)
    if path.exists():
        return is_document_file(path.name)
    return is_pattern(dataset) or could_be_on_hub(dataset)


def is_pattern(dataset: str) -> bool:
    return glob.has_magic(dataset)


def could_be_on_hub(dataset: str) -> bool:
    """`owner/name`, unless it rather looks like a path that is not there."""
    if dataset in BUILT_IN or hub.parse_hub_dataset(dataset) is None:
        return False
    owner, rest = dataset.split("/", 1)
    is_file = is_document_file(rest) or re.search(r"\.(txt|md|py|csv|html?|json)$", rest)
    return not is_file and not expand_user_path(owner).exists()


def open_corpus(dataset: str, source: str, column: str, download: bool = True) -> Corpus:
    """Find the files, downloading them if need be. Every parquet file is checked for the column.

    `download=False`: only see whether they could be had.
    """
    name = (
        hub.parse_hub_dataset(dataset)
        if dataset in hub.NAMED_HUB_DATASETS or not expand_user_path(dataset).exists()
        else None
    )
    if name is not None and source and expand_user_path(source).is_dir():
        return _open_downloaded_folder(expand_user_path(source), name, column)
    if source or is_pattern(dataset) or name is None:
        return _open_local_corpus(source or dataset, column)
    paths, about = hub.fetch_training_files(name, download)
    return _corpus_of_files(paths, column, f"{name} on Hugging Face, {about}")


def _open_downloaded_folder(folder: Path, name: hub.HubDataset, column: str) -> Corpus:
    """A dataset of Hugging Face in a folder: the files that would have been downloaded."""
    there = [path for path in list_folder(folder).files if is_document_file(path.name)]
    if not there:
        return _open_local_corpus(str(folder), column)
    paths = hub.training_files_in(folder, name)
    if not paths:
        raise UserError(
            f"none of the {pluralize(len(there), 'file')} of documents in {folder} is for training, going by "
            f"their names and the dataset's card: give the files themselves, --source '{folder}/*'"
        )
    corpus = _corpus_of_files(paths, column, f"folder {abbreviate_home(str(folder))}")
    return dataclasses.replace(corpus, notes=skipped_notes(len(there) - len(paths), "file of documents"))


def _open_local_corpus(where: str, column: str) -> Corpus:
    """A file, a folder or a pattern."""
    path = expand_user_path(where)
    notes: tuple[str, ...] = ()
    paths: Sequence[Path]
    if path.is_dir():
        folder = list_folder(path)
        paths, description, notes = (
            folder.files,
            f"folder {abbreviate_home(str(path))}",
            skipped_link_notes(folder),
        )
    elif path.exists():
        paths, description = [path], f"file {abbreviate_home(str(path))}"
    else:
        paths, copies = _matching(path)
        description, notes = f"pattern {abbreviate_home(where)}", skipped_notes(copies, "repeated file")
    if not paths:
        raise UserError(f"{where} has no file in it: give files, a folder or a pattern in quotes")
    if _is_mostly_documents(paths):
        return _corpus_of_files(paths, column, description, notes)
    texts = [file for file in paths if not is_binary(file)]
    notes += skipped_notes(len(paths) - len(texts), "binary file")
    if not texts:
        raise UserError(
            f"{where} has no text files ({', '.join(notes)}): give files of text, parquet or JSON lines"
        )
    size = sum(file.stat().st_size for file in texts)
    description = f"{description}, {pluralize(len(texts), 'text')}"
    return Corpus(description, (TextFilesReader(path, tuple(texts), size),), notes)


def _matching(pattern: Path) -> tuple[list[Path], int]:
    """The files of a pattern, and how many names more they have: a link to a folder may lead in a circle."""
    found = sorted((Path(name) for name in glob.glob(str(pattern), recursive=True)), key=_by_depth)
    files = {os.path.realpath(path): path for path in reversed(found) if path.is_file()}
    return sorted(files.values()), sum(path.is_file() for path in found) - len(files)


def _by_depth(path: Path) -> tuple[int, Path]:
    return len(path.parts), path


def _corpus_of_files(
    paths: Sequence[Path], column: str, description: str, notes: tuple[str, ...] = ()
) -> Corpus:
    files = [path for path in paths if is_document_file(path.name)]
    problems = [
        problem for path in files if is_parquet(path) and (problem := text_column_problem(path, column))
    ]
    if problems:
        raise user_error_for_files(problems)
    sizes = [path.stat().st_size for path in files]
    pieces = [
        ParquetReader(path, size, column) if is_parquet(path) else JsonLinesReader(path, size)
        for path, size in zip(files, sizes, strict=True)
    ]
    notes += skipped_notes(len(paths) - len(files), "other file")
    return Corpus(f"{description}, {pluralize(len(files), 'file')} of documents", tuple(pieces), notes)


def _is_corpus_folder(root: Path, in_bulk: bool) -> bool:
    """It has files of documents, mostly; or texts, and more than one likes to read three times."""
    paths = list_folder(root).files
    size = sum(path.stat().st_size for path in paths)
    return in_bulk or size > LARGE_FOLDER_BYTES or _is_mostly_documents(paths)


def _is_mostly_documents(paths: Sequence[Path]) -> bool:
    """By their size: a README beside parquet files, or a table among texts, is not what is meant."""
    sizes = [(path.stat().st_size, is_document_file(path.name)) for path in paths]
    in_documents = [size for size, holds in sizes if holds]
    return bool(in_documents) and 2 * sum(in_documents) >= sum(size for size, _ in sizes)
