"""A corpus: many documents in parquet, JSON lines or text files, local or on Hugging Face.

    glass prepare crawl.parquet                     one file of documents, or several: 'crawl/*.jsonl.zst'
    glass prepare crawl                             a folder of such files
    glass prepare 'books/**/*.txt'                  text files, a document each
    glass prepare fineweb_edu                       from Hugging Face, see hub.py

A text or a folder of texts that is small enough to be read several times is a Source, see sources.py.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassgpt.data import hub
from glassgpt.data.dataset import BUILT_IN
from glassgpt.data.digests import json_sha256
from glassgpt.data.document_readers import (
    DocumentBatch,
    DocumentReader,
    JsonLinesReader,
    ParquetReader,
    TextFilesReader,
    is_binary_file,
    is_document_file,
    is_parquet,
    text_column_problem,
)
from glassgpt.data.sources import list_source_files, skipped_link_notes, skipped_notes
from glassgpt.errors import UserError, user_error_for_files
from glassgpt.files import abbreviate_home, expand_user_path
from glassgpt.format import pluralize

# A larger folder of texts is a corpus: it is read once, not three times by one process.
LARGE_FOLDER_BYTES = 2**30


@dataclass(frozen=True)
class Corpus:
    """Files of documents in a fixed order, with a description and notes for the user."""

    description: str
    readers: tuple[DocumentReader, ...]
    notes: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """On disk."""
        return sum(reader.size_bytes for reader in self.readers)

    def read_batches(self, first_reader: int = 0, skip: int = 0) -> Iterator[tuple[int, DocumentBatch]]:
        """Batches with their reader's number, from `first_reader` on, without its first `skip` documents."""
        for number in range(first_reader, len(self.readers)):
            for batch in self.readers[number].read_batches(skip if number == first_reader else 0):
                yield number, batch

    def fingerprint(self) -> str:
        """A digest of the names, sizes and times of the files: it changes when a file does."""
        files = [
            path
            for reader in self.readers
            for path in (reader.files if isinstance(reader, TextFilesReader) else (reader.path,))
        ]
        stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        return json_sha256(stats)


def is_corpus(dataset: str, any_folder: bool = False) -> bool:
    """Whether `dataset` is read as a corpus. `any_folder`: every folder is, also a small one of texts."""
    if dataset in BUILT_IN or not dataset:
        return dataset in hub.NAMED_HUB_DATASETS
    path = expand_user_path(dataset)
    if path.is_dir():
        paths = list_source_files(path).files
        size = sum(file.stat().st_size for file in paths)
        return any_folder or size > LARGE_FOLDER_BYTES or _is_mostly_documents(paths)
    if path.exists():
        return is_document_file(path.name)
    return is_pattern(dataset) or could_be_on_hub(dataset)


def is_pattern(dataset: str) -> bool:
    return glob.has_magic(dataset)


def could_be_on_hub(dataset: str) -> bool:
    """`owner/name`, unless it looks like a missing path."""
    if dataset in BUILT_IN or hub.parse_hub_dataset(dataset) is None:
        return False
    owner, rest = dataset.split("/", 1)
    is_file = is_document_file(rest) or re.search(r"\.(txt|md|py|csv|html?|json)$", rest)
    return not is_file and not expand_user_path(owner).exists()


def open_corpus(dataset: str, source: str, column: str, download: bool = True) -> Corpus:
    """Finds the files, and downloads them if needed. Every parquet file is checked for the column.

    `download=False`: only check that they are available.
    """
    is_on_hub = dataset in hub.NAMED_HUB_DATASETS or not expand_user_path(dataset).exists()
    name = hub.parse_hub_dataset(dataset) if is_on_hub else None
    if name is not None and source and expand_user_path(source).is_dir():
        return _open_downloaded_folder(expand_user_path(source), name, column)
    if source or is_pattern(dataset) or name is None:
        return _open_local_corpus(source or dataset, column)
    paths, revision = hub.fetch_training_files(name, download)
    return _corpus_of_files(paths, column, f"{name} on Hugging Face, {revision}")


def _open_downloaded_folder(folder: Path, name: hub.HubDataset, column: str) -> Corpus:
    """A Hugging Face dataset in a local folder: the files that `fetch_training_files` would download."""
    document_files = [path for path in list_source_files(folder).files if is_document_file(path.name)]
    if not document_files:
        return _open_local_corpus(str(folder), column)
    paths = hub.training_files_in(folder, name)
    if not paths:
        raise UserError(
            f"none of the {pluralize(len(document_files), 'file')} of documents in {folder} is for training, "
            f"going by their names and the dataset's card: give the files themselves, --source '{folder}/*'"
        )
    corpus = _corpus_of_files(paths, column, f"folder {abbreviate_home(str(folder))}")
    skipped = len(document_files) - len(paths)
    return dataclasses.replace(corpus, notes=skipped_notes(skipped, "file of documents"))


def _open_local_corpus(where: str, column: str) -> Corpus:
    """A file, a folder or a pattern."""
    path = expand_user_path(where)
    notes: tuple[str, ...] = ()
    paths: Sequence[Path]
    if path.is_dir():
        listing = list_source_files(path)
        paths, notes = listing.files, skipped_link_notes(listing)
        description = f"folder {abbreviate_home(str(path))}"
    elif path.exists():
        paths, description = [path], f"file {abbreviate_home(str(path))}"
    else:
        matches = [Path(name) for name in glob.glob(str(path), recursive=True)]
        matches = sorted(
            (match for match in matches if match.is_file()), key=lambda match: (len(match.parts), match)
        )
        # Each file once, by its shortest name: a link to a folder may lead in a circle.
        by_real_path = {os.path.realpath(match): match for match in reversed(matches)}
        paths = sorted(by_real_path.values())
        description = f"pattern {abbreviate_home(where)}"
        notes = skipped_notes(len(matches) - len(paths), "repeated file")
    if not paths:
        raise UserError(f"{where} has no file in it: give files, a folder or a pattern in quotes")
    if _is_mostly_documents(paths):
        return _corpus_of_files(paths, column, description, notes)
    texts = [file for file in paths if not is_binary_file(file)]
    notes += skipped_notes(len(paths) - len(texts), "binary file")
    if not texts:
        raise UserError(
            f"{where} has no text files ({', '.join(notes)}): give files of text, parquet or JSON lines"
        )
    size = sum(file.stat().st_size for file in texts)
    description = f"{description}, {pluralize(len(texts), 'text')}"
    return Corpus(description, (TextFilesReader(path, tuple(texts), size),), notes)


def _corpus_of_files(
    paths: Sequence[Path], column: str, description: str, notes: tuple[str, ...] = ()
) -> Corpus:
    files = [path for path in paths if is_document_file(path.name)]
    problems = [
        problem for path in files if is_parquet(path) and (problem := text_column_problem(path, column))
    ]
    if problems:
        raise user_error_for_files(problems)
    readers: list[DocumentReader] = []
    for path in files:
        size = path.stat().st_size
        readers.append(ParquetReader(path, size, column) if is_parquet(path) else JsonLinesReader(path, size))
    notes += skipped_notes(len(paths) - len(files), "other file")
    return Corpus(f"{description}, {pluralize(len(files), 'file')} of documents", tuple(readers), notes)


def _is_mostly_documents(paths: Sequence[Path]) -> bool:
    """By their size: a README beside parquet files, or a table among texts, does not count."""
    sizes = [path.stat().st_size for path in paths]
    document_sizes = [size for path, size in zip(paths, sizes, strict=True) if is_document_file(path.name)]
    return bool(document_sizes) and 2 * sum(document_sizes) >= sum(sizes)
