"""Where text comes from: a known name, a file or a folder, always as documents read in a stream.

glass prepare pylib                               the source of the Python that is running: no network
glass prepare shakespeare_char                    tiny shakespeare, downloaded once
glass prepare shakespeare_char --source FILE      the same without a network
glass prepare my.txt                              any text file: UTF-8, or UTF-16 with a byte order mark
glass prepare my_folder                           every text file in a folder, one document each
"""

from __future__ import annotations

import codecs
import difflib
import io
import os
import platform
import sysconfig
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from glassgpt.data.dataset import BUILT_IN
from glassgpt.data.decompress import compression_suffix
from glassgpt.data.digests import file_sha256
from glassgpt.data.folder_listing import list_folder, skipped_link_notes, skipped_notes
from glassgpt.data.text_encoding import (
    MAX_BOM_BYTES,
    describe_conversions,
    detect_encoding,
    is_binary,
    newline_decoder,
)
from glassgpt.errors import UserError
from glassgpt.files import abbreviate_home, expand_user_path
from glassgpt.format import pluralize

CHUNK_BYTES = 2**20

# Text that somebody packed is not text. (Documents in bulk are unpacked: unpacked.py.)
_ARCHIVE_SUFFIXES = (".gz", ".xz", ".zst", ".bz2", ".lzma", ".zip", ".7z", ".rar", ".tar", ".tgz", ".txz")

# Nor is what a word processor keeps.
_WORD_PROCESSOR_SUFFIXES = (".pdf", ".doc", ".docx", ".odt", ".rtf", ".epub", ".xls", ".xlsx", ".pptx")
_SAVE_AS_TEXT_HINT = "save the text in it as a plain .txt file, and prepare that"

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_FILE = "input.txt"

# What is not code somebody wrote to be read: test suites, other people's packages, generated tables.
_PYLIB_SKIPPED_FOLDERS = (
    *("test", "tests", "*_test", "*_tests"),
    *("site-packages", "dist-packages", "_bundled"),
    *("__pycache__", "config-*", "pydoc_data"),
)
_PYLIB_SKIPPED_FILES = ("html/entities.py", "msilib/s*.py", "stringprep.py", "_sysconfigdata*")
# Every charmap in encodings/ is one of these tables, most of them written by gencodec.py.
_CHARMAP_MARKS = (b"decoding_table", b"decoding_map")


@dataclass(frozen=True)
class Document:
    """One file of text. It is never held in memory: each pass streams it from the disk."""

    name: str
    path: Path
    size_bytes: int

    def text(
        self, encoding: str, chunk_bytes: int = CHUNK_BYTES, changes: list[str] | None = None
    ) -> Generator[str, None, None]:
        """The text in chunks, see decoding.py; "latin-1" gives one character per raw byte.

        `changes` gets what was done to a text that was not plain UTF-8.
        """
        read_bytes = 0
        try:
            with self.path.open("rb") as file:
                if encoding == "utf-8":
                    encoding = detect_encoding(file.read(MAX_BOM_BYTES))
                    file.seek(0)
                is_raw = encoding == "latin-1"
                decoder = codecs.getincrementaldecoder(encoding)() if is_raw else newline_decoder(encoding)
                while chunk := file.read(chunk_bytes):
                    read_bytes += len(chunk)
                    yield decoder.decode(chunk)
                yield decoder.decode(b"", final=True)
                if changes is not None and isinstance(decoder, io.IncrementalNewlineDecoder):
                    changes += describe_conversions(decoder, encoding)
        except UnicodeDecodeError as error:
            # The decoder sees the bytes it kept back plus the chunk; the user wants a place in the file.
            offset = read_bytes - len(error.object) + error.start
            convert = "convert it to UTF-8, or use --tokenizer byte, which reads raw bytes"
            is_packed = self.path.suffix.lower() in _ARCHIVE_SUFFIXES or compression_suffix(error.object)
            is_laid_out = self.path.suffix.lower() in _WORD_PROCESSOR_SUFFIXES
            fix = "unpack it first" if is_packed else _SAVE_AS_TEXT_HINT if is_laid_out else convert
            raise UserError(f"{self.path} is not {encoding.upper()} at byte {offset:,}: {fix}") from error
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class Source:
    """The documents of a dataset, in a fixed order, and what to say about them."""

    name: str
    description: str
    documents: tuple[Document, ...]
    notes: tuple[str, ...] = ()


def dataset_of_nanogpt_script(dataset: str) -> str | None:
    """NAME for nanoGPT's data/NAME/prepare.py, there or not: who types it wants the text, not the script."""
    path = Path(dataset)
    return path.parent.name if path.name == "prepare.py" and path.parent.name not in ("", "..") else None


def dataset_problem(dataset: str) -> str | None:
    """Why `dataset` is neither a known name nor something to read, or None."""
    if not dataset:
        return f"no dataset named: give a file, a folder, or one of {', '.join(BUILT_IN)}"
    if is_special_file(expand_user_path(dataset)):
        return f"{dataset} is neither a file nor a folder: write the text to a file, and prepare that"
    name = dataset_of_nanogpt_script(dataset) or dataset
    is_script = name != dataset
    if name in BUILT_IN or (expand_user_path(dataset).exists() and not is_script):
        return None
    if is_script:
        return (
            f"{dataset} looks like nanoGPT's script for {name}, which GlassGPT does not have: "
            "run it with python, and train on the .bin files it writes, as they are"
        )
    near = difflib.get_close_matches(dataset, BUILT_IN, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known names: {', '.join(BUILT_IN)}"
    return f"{dataset!r} is no known dataset, and there is no file or folder of that name: {hint}"


def is_special_file(path: Path) -> bool:
    """A pipe or a device: text is read more than once, and they give it once."""
    return path.exists() and not (path.is_file() or path.is_dir())


def open_source(dataset: str, local_file: str, keep_in: Path, kept_in: Path) -> Source:
    """Find the documents of a dataset.

    A download is kept in the folder `keep_in`; one from an earlier time is taken from `kept_in`.
    """
    path = expand_user_path(local_file or dataset)
    if dataset == "pylib":
        source = _pylib()
    elif dataset in BUILT_IN:
        source = _shakespeare(dataset, local_file, keep_in, kept_in)
    else:
        source = _folder(path) if path.is_dir() else _file(path)
    if not source.documents:
        what = "has no text files" if path.is_dir() else "is empty"
        passed_over = f" ({', '.join(source.notes)})" if source.notes else ""
        fix = "there is nothing to learn from, bring some text"
        if (path / "train.bin").is_file():
            fix = f"but files of ids, which need no preparing: train with --data_dir={path}"
        raise UserError(f"{path} {what}{passed_over}: {fix}")
    return source


def _documents(paths: dict[str, Path]) -> tuple[Document, ...]:
    """Documents sorted by name; empty files carry no text and would only add separators."""
    documents = (Document(name, path, path.stat().st_size) for name, path in sorted(paths.items()))
    return tuple(document for document in documents if document.size_bytes)


def _file(path: Path) -> Source:
    return Source(path.stem, f"file {abbreviate_home(str(path))}", _documents({path.name: path}))


def _folder(root: Path) -> Source:
    """Every file under a folder but hidden ones and binaries; what was left out is said."""
    folder = list_folder(root)
    texts = {path.relative_to(root).as_posix(): path for path in folder.files if not _looks_binary(path)}
    documents = _documents(texts)
    notes = (
        *skipped_notes(len(folder.files) - len(texts), "binary file"),
        *skipped_notes(folder.hidden_count, "hidden file"),
        *skipped_notes(len(texts) - len(documents), "empty file"),
        *skipped_link_notes(folder),
    )
    description = f"folder {abbreviate_home(str(root))}, {pluralize(len(documents), 'file')}"
    return Source(root.resolve().name, description, documents, notes)


def _looks_binary(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return is_binary(file.read(8192))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _pylib() -> Source:
    """The standard library of the running Python: about ten megabytes of good prose that everyone has.

    ASCII files only, which keeps the char vocabulary under a hundred.
    """
    root = Path(sysconfig.get_path("stdlib"))
    documents = _documents({name: path for name, path in _pylib_files(root) if _is_prose(name, path)})
    description = f"Python {platform.python_version()} standard library, {len(documents)} files"
    return Source("pylib", description, documents)


def _pylib_files(root: Path) -> Iterator[tuple[str, Path]]:
    for folder, subfolders, names in os.walk(root):
        # Pruned here, because site-packages may hold a hundred times more files than the library.
        subfolders[:] = [name for name in subfolders if not _matches(name, _PYLIB_SKIPPED_FOLDERS)]
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            if path.is_file():  # distributions leave links here that may lead nowhere
                yield path.relative_to(root).as_posix(), path


def _is_prose(name: str, path: Path) -> bool:
    code = path.read_bytes()
    is_charmap = name.startswith("encodings/") and any(mark in code for mark in _CHARMAP_MARKS)
    return code.isascii() and not is_charmap and not _matches(name, _PYLIB_SKIPPED_FILES)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _shakespeare(dataset: str, local_file: str, keep_in: Path, kept_in: Path) -> Source:
    if local_file:
        path = expand_user_path(local_file)
        canonical = file_sha256(path) == SHAKESPEARE_SHA256
        notes = () if canonical else (f"{path} is not the canonical tiny shakespeare (its SHA-256 differs)",)
        return Source(dataset, f"file {abbreviate_home(str(path))}", _documents({path.name: path}), notes)
    kept = kept_in / SHAKESPEARE_FILE
    path = keep_in / SHAKESPEARE_FILE
    if is_cached_download(kept):
        path.write_bytes(kept.read_bytes())
    else:
        path.write_bytes(_download_shakespeare(dataset))
    return Source(dataset, f"tiny shakespeare, {SHAKESPEARE_URL}", _documents({path.name: path}))


def is_cached_download(path: Path) -> bool:
    """Whether a file is a download that can be had again, and not somebody's own text."""
    return path.name == SHAKESPEARE_FILE and path.is_file() and file_sha256(path) == SHAKESPEARE_SHA256


def _download_shakespeare(dataset: str) -> bytes:
    import hashlib
    import urllib.request

    fix = f"get the file another way and run  glass prepare {dataset} --source FILE"
    try:
        with urllib.request.urlopen(SHAKESPEARE_URL, timeout=30) as response:
            content: bytes = response.read()
    except OSError as error:
        raise UserError(f"{SHAKESPEARE_URL} could not be downloaded ({error}): {fix}") from error
    if hashlib.sha256(content).hexdigest() != SHAKESPEARE_SHA256:
        # A login page of a hotel network is the usual reason.
        raise UserError(f"what {SHAKESPEARE_URL} sent is not tiny shakespeare (its SHA-256 differs): {fix}")
    return content
