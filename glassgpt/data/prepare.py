"""Turn text into a dataset: read it, split it, choose a tokenizer, write the ids, all or nothing.

    glass prepare pylib
    glass prepare my.txt --tokenizer bpe:1024 --out_dir data/mine

Everything streams, so the size of the text does not matter; and the dataset is written beside its place
and renamed at the end, so that it is either complete or not there. Documents in bulk go another way: bulk.py.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.bpe_chunks import split_at_bpe_boundaries, split_for_bpe_training
from glassgpt.data.corpus import is_corpus
from glassgpt.data.dataset import BUILT_IN
from glassgpt.data.manifest import DTYPES, Manifest, dtype_for, read_stored_manifest, write_manifest
from glassgpt.data.prepare_bulk import prepare_corpus
from glassgpt.data.prepare_options import (
    PrepareOptions,
    check_options,
    check_out_dir,
    copy_nanogpt_scripts,
    out_directory,
    requested_tokenizer,
    val_fraction,
)
from glassgpt.data.progress import show_byte_progress
from glassgpt.data.sources import Document, Source, dataset_of_nanogpt_script, open_source
from glassgpt.data.split import DocumentScan, Span, Split, scan_documents, split_documents
from glassgpt.data.tokenizer_json import load_requested_gpt2
from glassgpt.data.tokenizers import (
    ByteLevelBpe,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    bpe_vocab_size,
    train_bpe,
)
from glassgpt.errors import UserError
from glassgpt.files import atomic_folder, commit_folder, exclusive_lock, remove_stale_folders
from glassgpt.format import pluralize

if TYPE_CHECKING:
    from hashlib import _Hash as Digest

__all__ = ["PrepareOptions", "prepare"]

# A text with more different characters than this spends its embedding table on rare ones.
MAX_CHAR_VOCAB_SIZE = 512


def prepare(options: PrepareOptions, say: Callable[[str], None] = print, progress: bool = True) -> Manifest:
    """Write the dataset that `options` describes and return its manifest."""
    notes: list[str] = []
    if (name := dataset_of_nanogpt_script(options.dataset)) in BUILT_IN:
        notes.append(f"{options.dataset} is nanoGPT's script for {name}, so this is  glass prepare {name}")
        say(notes[0])
        options = dataclasses.replace(options, dataset=name)
    out = out_directory(options)
    check_options(options, out)
    with exclusive_lock(out):
        if is_corpus(options.dataset, options.dedup):
            manifest = prepare_corpus(options, out, say, progress)
        else:
            manifest = _prepare_text(options, out, notes, say, progress)
    say(
        f"{out}: {manifest.tokens['train']:,} training and {manifest.tokens['val']:,} validation tokens, "
        f"vocabulary {manifest.vocab_size:,}, {manifest.bytes_per_token('train'):.2f} bytes per token"
    )
    return manifest


def prepare_if_missing(text: str, say: Callable[[str], None], progress: bool = True) -> None:
    """Prepare a text file or folder at its usual place, unless that was done: `glass train my.txt`."""
    options = PrepareOptions(text)
    out = out_directory(options)
    manifest = read_stored_manifest(out)
    if manifest is None:
        say(f"preparing {text}")
        prepare(options, say, progress)
        return
    documents = open_source(text, "", keep_in=out, kept_in=out).documents
    survey = scan_documents(documents, _text_encoding(manifest.tokenizer), lambda done: None)
    if _text_note(survey) not in manifest.notes:
        name, word = shlex.quote(out.name), shlex.quote(text)
        raise UserError(
            f"{out} holds a dataset that was made of something else ({manifest.source}) or before {text} was "
            f"changed: --dataset={name} trains on that one; `glass prepare {word} --overwrite` replaces "
            f"it, and `glass prepare {word} --out_dir=data/NAME` leaves it"
        )
    say(f"{out} was prepared from {text} before, and is used as it is")


def _text_note(survey: DocumentScan) -> str:
    """Identifies the text of a dataset, in the order of its documents."""
    return f"SHA-256 of the text: {hashlib.sha256(b''.join(survey.digests)).hexdigest()}"


def _prepare_text(
    options: PrepareOptions, out: Path, notes: list[str], say: Callable[[str], None], progress: bool
) -> Manifest:
    """Text that is small enough to be read several times."""

    def note(line: str) -> None:
        notes.append(line)
        say(line)

    remove_stale_folders(out)
    with atomic_folder(out) as work:
        source, given = _find_inputs(options, work, out)
        for line in source.notes:
            note(line)
        total_bytes = sum(document.size_bytes for document in source.documents)
        show = functools.partial(show_byte_progress, total_bytes=total_bytes, say=say, show=progress)

        with show("reading") as advance:
            survey = scan_documents(source.documents, _text_encoding(options.tokenizer), advance)
        for change, files in survey.changes.items():
            note(f"{change} ({pluralize(files, 'file')})")
        if "\0" in survey.characters and options.tokenizer != "byte":
            note(
                "the text has NUL characters, as binary files have, and UTF-16 without a byte order mark: "
                "see whether it is UTF-8 text"
            )
        if options.dataset not in BUILT_IN:
            notes.append(_text_note(survey))
        split = split_documents(survey, val_fraction(options))
        note(f"split: {split.reason}")

        name, reason = _choose_tokenizer(options, survey)
        note(f"tokenizer {name}: {reason}")
        with show(f"making {name}") as advance:
            tokenizer = _make_tokenizer(name, survey, split, given, advance)
        if (asked := bpe_vocab_size(name)) is not None and tokenizer.vocab_size < asked:
            note(f"the text is too small for {asked} tokens, it yields {tokenizer.vocab_size}")
        if tokenizer.name != name:
            note(f"{options.tokenizer_files} has a BPE of another kind than GPT-2's: it is {tokenizer.name}")

        with show("encoding") as advance:
            manifest = _write_dataset(work, source, survey, split, tokenizer, tuple(notes), advance)
        check_out_dir(options, out)  # somebody may have put something there meanwhile
        copy_nanogpt_scripts(out, work)
        commit_folder(work, out)
    return manifest


def _text_encoding(tokenizer_name: str) -> str:
    """latin-1 maps bytes to characters one to one: raw bytes take the same road as text."""
    return "latin-1" if tokenizer_name == "byte" else "utf-8"


def _find_inputs(options: PrepareOptions, work: Path, out: Path) -> tuple[Source, ByteLevelBpe | None]:
    """The text and, for gpt2, its table: both may need a network, so both are reported when it is down."""
    problems: list[str] = []
    source: Source | None = None
    given: ByteLevelBpe | None = None
    try:
        source = open_source(options.dataset, options.source, keep_in=work, kept_in=out)
    except UserError as error:
        problems += error.problems
    try:
        given = load_requested_gpt2(requested_tokenizer(options), options.tokenizer_files)
    except UserError as error:
        problems += error.problems
    if source is None or problems:
        raise UserError(problems)
    return source, given


def _choose_tokenizer(options: PrepareOptions, survey: DocumentScan) -> tuple[str, str]:
    """A tokenizer's name, and why it."""
    if options.tokenizer != "auto":
        return options.tokenizer, "as asked"
    if options.dataset in BUILT_IN:
        return BUILT_IN[options.dataset], f"the usual one for {options.dataset}"
    distinct = f"the text has {pluralize(len(survey.characters), 'different character')}"
    if len(survey.characters) <= MAX_CHAR_VOCAB_SIZE:
        return "char", f"{distinct}, and up to {MAX_CHAR_VOCAB_SIZE} each can have an id"
    return "bpe:8192", f"{distinct}, over {MAX_CHAR_VOCAB_SIZE}, too many for an id each"


def _make_tokenizer(
    name: str, survey: DocumentScan, split: Split, given: ByteLevelBpe | None, advance: Callable[[int], None]
) -> Tokenizer:
    if name == "byte":
        return ByteTokenizer()
    if name == "char":
        # A newline goes between documents, whether or not one of them has any.
        separator = "\n" if len(survey.documents) > 1 else ""
        return CharTokenizer("".join(sorted(set(survey.characters + separator))))
    if given is not None:
        return given
    size = bpe_vocab_size(name)
    assert size is not None, name
    # Learned from the training text alone: a vocabulary that has seen the validation text flatters it.
    return train_bpe(_learning_text(split.train, advance), size)


def _learning_text(spans: tuple[Span, ...], advance: Callable[[int], None]) -> Iterator[str]:
    for span in spans:
        for text in split_for_bpe_training(span.text("utf-8")):
            advance(len(text.encode()))
            yield text


def _write_dataset(
    work: Path,
    source: Source,
    survey: DocumentScan,
    split: Split,
    tokenizer: Tokenizer,
    notes: tuple[str, ...],
    advance: Callable[[int], None],
) -> Manifest:
    dtype = dtype_for(tokenizer.vocab_size)
    read = {document: hashlib.sha256() for document in survey.documents}
    train = _write_split(work / "train.bin", split.train, tokenizer, dtype, read, advance)
    val = _write_split(work / "val.bin", split.val, tokenizer, dtype, read, advance)
    for document, digest in zip(survey.documents, survey.digests, strict=True):
        if read[document].digest() != digest:  # of the two spans of one text, training's comes first
            raise _changed_while_read(document)
    if min(train.tokens, val.tokens) < 2:
        raise UserError(
            f"{source.description}: {pluralize(train.tokens, 'training token')} and "
            f"{pluralize(val.tokens, 'validation token')} are too few; each split needs at least 2, so that one "
            "predicts the other: bring more text, or change --val_fraction"
        )
    sha256 = {"train.bin": train.sha256, "val.bin": val.sha256}
    for name, content in tokenizer.files.items():
        (work / name).write_bytes(content)
        sha256[name] = hashlib.sha256(content).hexdigest()
    manifest = Manifest(
        name=source.name,
        source=source.description,
        tokenizer=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        dtype=dtype,
        tokens={"train": train.tokens, "val": val.tokens},
        text_bytes={"train": train.text_bytes, "val": val.text_bytes},
        sha256=sha256,
        characters=tokenizer.characters if isinstance(tokenizer, CharTokenizer) else None,
        notes=notes,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    write_manifest(work, manifest)
    return manifest


@dataclass(frozen=True)
class _WrittenSplit:
    tokens: int
    text_bytes: int
    sha256: str


def _write_split(
    path: Path,
    spans: tuple[Span, ...],
    tokenizer: Tokenizer,
    dtype: str,
    read: Mapping[Document, Digest],
    advance: Callable[[int], None],
) -> _WrittenSplit:
    tokens = text_bytes = 0
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for ids, size in _encode_spans(spans, tokenizer, read):
            content = ids.astype(DTYPES[dtype]).tobytes()
            file.write(content)
            digest.update(content)
            tokens += len(ids)
            text_bytes += size
            advance(size)
    return _WrittenSplit(tokens, text_bytes, digest.hexdigest())


def _encode_spans(
    spans: tuple[Span, ...], tokenizer: Tokenizer, read: Mapping[Document, Digest]
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """The ids of the spans, a separator between documents, and how many bytes of text they stand for."""
    for index, span in enumerate(spans):
        if index and tokenizer.eot is not None:
            yield np.array([tokenizer.eot]), 0
        elif index:
            yield tokenizer.encode("\n"), 1
        chunks = _digested(span, _text_encoding(tokenizer.name), read[span.document])
        if isinstance(tokenizer, ByteTokenizer):
            for raw in (text.encode("latin-1") for text in chunks):
                yield tokenizer.encode_bytes(raw), len(raw)
        else:
            # A character is a token wherever the stream is cut; a word is not.
            for text in chunks if tokenizer.name == "char" else split_at_bpe_boundaries(chunks):
                yield _ids(tokenizer, text, span.document), len(text.encode())


def _ids(tokenizer: Tokenizer, text: str, document: Document) -> NDArray[np.int64]:
    try:
        return tokenizer.encode(text)
    except UserError as error:  # a character without an id, though all that were there at first have one
        raise _changed_while_read(document) from error


def _digested(span: Span, encoding: str, digest: Digest) -> Iterator[str]:
    """The span's text, on its way taken into the digest of its document."""
    for text in span.text(encoding):
        digest.update(text.encode(encoding))
        yield text


def _changed_while_read(document: Document) -> UserError:
    """What was split and what would be written are not one text; one that only grew still begins with it."""
    return UserError(f"{document.path} was changed while it was read: run the command again")
