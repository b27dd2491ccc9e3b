"""`glass prepare`: reads text, splits it, chooses a tokenizer, and writes the ids as a dataset folder.

    glass prepare pylib
    glass prepare my.txt --tokenizer bpe:1024 --out_dir data/mine

Text is streamed, so its size does not matter. The dataset is written to a hidden folder and renamed at the
end, so it is either complete or absent. A corpus is prepared in prepare_bulk.py.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.bpe import (
    ByteLevelBpe,
    split_at_bpe_boundaries,
    split_for_bpe_training,
)
from glassgpt.data.corpus import is_corpus
from glassgpt.data.dataset import BUILT_IN
from glassgpt.data.digests import file_sha256
from glassgpt.data.manifest import (
    SPLITS,
    TOKEN_DTYPES,
    Manifest,
    dtype_for,
    read_stored_manifest,
    write_manifest,
)
from glassgpt.data.prepare_bulk import make_bpe_or_bytes, prepare_corpus
from glassgpt.data.prepare_options import (
    PrepareOptions,
    check_options,
    check_out_dir,
    copy_nanogpt_scripts,
    out_directory,
    requested_tokenizer,
    val_fraction,
)
from glassgpt.data.progress import Advance, PrepareLog
from glassgpt.data.sources import Document, Source, dataset_of_nanogpt_script, open_source
from glassgpt.data.split import DocumentScan, Span, Split, scan_documents, split_documents
from glassgpt.data.tokenizer_json import load_requested_gpt2
from glassgpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from glassgpt.errors import UserError, collect_problems
from glassgpt.files import atomic_folder, commit_folder, exclusive_lock, remove_stale_folders
from glassgpt.format import pluralize

if TYPE_CHECKING:
    from hashlib import _Hash as Digest

__all__ = ["PrepareOptions", "prepare"]

# With more distinct characters than this, most of the embedding table is for rare ones.
MAX_CHAR_VOCAB_SIZE = 512


def prepare(
    options: PrepareOptions, print_line: Callable[[str], None] = print, progress: bool = True
) -> Manifest:
    """Writes the dataset that `options` describes and returns its manifest."""
    log = PrepareLog(print_line, progress)
    if (name := dataset_of_nanogpt_script(options.dataset)) in BUILT_IN:
        log.note(f"{options.dataset} is nanoGPT's script for {name}, so this is  glass prepare {name}")
        options = dataclasses.replace(options, dataset=name)
    out = out_directory(options)
    check_options(options, out)
    with exclusive_lock(out):
        if is_corpus(options.dataset, options.dedup):
            manifest = prepare_corpus(options, out, log)
        else:
            manifest = _prepare_text(options, out, log)
    bytes_per_token = manifest.text_bytes["train"] / manifest.tokens["train"]
    print_line(
        f"{out}: {manifest.tokens['train']:,} training and {manifest.tokens['val']:,} validation tokens, "
        f"vocabulary {manifest.vocab_size:,}, {bytes_per_token:.2f} bytes per token"
    )
    return manifest


def prepare_if_missing(text: str, print_line: Callable[[str], None], progress: bool = True) -> None:
    """Prepares a text file or folder at its default place, unless that was done: `glass train my.txt`."""
    options = PrepareOptions(text)
    out = out_directory(options)
    manifest = read_stored_manifest(out)
    if manifest is None:
        print_line(f"preparing {text}")
        prepare(options, print_line, progress)
        return
    documents = open_source(text, "", download_to=out, cached_in=out).documents
    scan = scan_documents(documents, _text_encoding(manifest.tokenizer), lambda done: None)
    if _text_note(scan) not in manifest.notes:
        name, word = shlex.quote(out.name), shlex.quote(text)
        raise UserError(
            f"{out} holds a dataset that was made of something else ({manifest.source}) or before {text} was "
            f"changed: --dataset={name} trains on that one; `glass prepare {word} --overwrite` replaces "
            f"it, and `glass prepare {word} --out_dir=data/NAME` leaves it"
        )
    print_line(f"{out} was prepared from {text} before, and is used as it is")


def _text_note(scan: DocumentScan) -> str:
    """Identifies the text of a dataset: its documents in their order."""
    return f"SHA-256 of the text: {hashlib.sha256(b''.join(scan.digests)).hexdigest()}"


def _prepare_text(options: PrepareOptions, out: Path, log: PrepareLog) -> Manifest:
    """For text that is small enough to be read several times."""
    remove_stale_folders(out)
    with atomic_folder(out) as work:
        source, gpt2 = _open_inputs(options, work, out)
        for line in source.notes:
            log.note(line)
        total_bytes = sum(document.size_bytes for document in source.documents)
        with log.progress("reading", total_bytes) as advance:
            scan = scan_documents(source.documents, _text_encoding(options.tokenizer), advance)
        for change, files in scan.changes.items():
            log.note(f"{change} ({pluralize(files, 'file')})")
        if "\0" in scan.characters and options.tokenizer != "byte":
            log.note(
                "the text has NUL characters, as binary files have, and UTF-16 without a byte order mark: "
                "see whether it is UTF-8 text"
            )
        if options.dataset not in BUILT_IN:
            log.notes.append(_text_note(scan))
        split = split_documents(scan, val_fraction(options))
        log.note(f"split: {split.reason}")

        name, reason = _choose_tokenizer(options, scan)
        log.note(f"tokenizer {name}: {reason}")
        tokenizer: Tokenizer
        if name == "char":
            # A newline separates documents, even if none of them has one.
            separator = "\n" if len(scan.documents) > 1 else ""
            tokenizer = CharTokenizer("".join(sorted(set(scan.characters + separator))))
        else:
            with log.progress(f"making {name}", total_bytes) as advance:
                texts = _bpe_training_texts(split, advance)
                tokenizer = make_bpe_or_bytes(name, options, gpt2, texts, log)
        with log.progress("encoding", total_bytes) as advance:
            manifest = _write_dataset(work, source, scan, split, tokenizer, tuple(log.notes), advance)
        check_out_dir(options, out)  # another process may have written there meanwhile
        copy_nanogpt_scripts(out, work)
        commit_folder(work, out)
    return manifest


def _text_encoding(tokenizer_name: str) -> str:
    """latin-1 maps bytes to characters one to one: raw bytes are handled like text."""
    return "latin-1" if tokenizer_name == "byte" else "utf-8"


def _open_inputs(options: PrepareOptions, work: Path, out: Path) -> tuple[Source, ByteLevelBpe | None]:
    """The text and, for gpt2, its table: both may need a network, so both problems are reported."""
    problems: list[str] = []
    source: Source | None = None
    gpt2: ByteLevelBpe | None = None
    with collect_problems(problems):
        source = open_source(options.dataset, options.source, download_to=work, cached_in=out)
    with collect_problems(problems):
        gpt2 = load_requested_gpt2(requested_tokenizer(options)[0], options.tokenizer_files)
    if source is None or problems:
        raise UserError(problems)
    return source, gpt2


def _choose_tokenizer(options: PrepareOptions, scan: DocumentScan) -> tuple[str, str]:
    """The name of the tokenizer, and the reason."""
    name, reason = requested_tokenizer(options)
    if name != "auto":
        return name, reason
    distinct = f"the text has {pluralize(len(scan.characters), 'different character')}"
    if len(scan.characters) <= MAX_CHAR_VOCAB_SIZE:
        return "char", f"{distinct}, and up to {MAX_CHAR_VOCAB_SIZE} each can have an id"
    return "bpe:8192", f"{distinct}, over {MAX_CHAR_VOCAB_SIZE}, too many for an id each"


def _bpe_training_texts(split: Split, advance: Advance) -> Iterator[str]:
    """Of the training split alone: a vocabulary trained on the validation split would lower its loss."""
    for span in split.train:
        for chunk in split_for_bpe_training(span.text("utf-8")):
            advance(len(chunk.encode()))
            yield chunk


def _write_dataset(
    work: Path,
    source: Source,
    scan: DocumentScan,
    split: Split,
    tokenizer: Tokenizer,
    notes: tuple[str, ...],
    advance: Advance,
) -> Manifest:
    dtype = dtype_for(tokenizer.vocab_size)
    # Digests of what is encoded: a document with a training and a validation span is hashed in that order.
    digests = {document: hashlib.sha256() for document in scan.documents}
    tokens, text_bytes = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
    for name, spans in (("train", split.train), ("val", split.val)):
        with (work / f"{name}.bin").open("wb") as file:
            for ids, size in _encode_spans(spans, tokenizer, digests):
                file.write(ids.astype(TOKEN_DTYPES[dtype]).tobytes())
                tokens[name] += len(ids)
                text_bytes[name] += size
                advance(size)
    for document, digest in zip(scan.documents, scan.digests, strict=True):
        if digests[document].digest() != digest:
            raise _changed_while_read(document)
    if min(tokens.values()) < 2:
        raise UserError(
            f"{source.description}: {pluralize(tokens['train'], 'training token')} and "
            f"{pluralize(tokens['val'], 'validation token')} are too few; each split needs at least 2, so "
            "that one predicts the other: bring more text, or change --val_fraction"
        )
    for file_name, content in tokenizer.files.items():
        (work / file_name).write_bytes(content)
    written = ("train.bin", "val.bin", *tokenizer.files)
    manifest = Manifest(
        name=source.name,
        source=source.description,
        tokenizer=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        dtype=dtype,
        tokens=tokens,
        text_bytes=text_bytes,
        sha256={name: file_sha256(work / name) for name in written},
        characters=tokenizer.characters if isinstance(tokenizer, CharTokenizer) else None,
        notes=notes,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    write_manifest(work, manifest)
    return manifest


def _encode_spans(
    spans: tuple[Span, ...], tokenizer: Tokenizer, digests: Mapping[Document, Digest]
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """The ids of the spans, with a separator between documents, and the bytes of text they stand for.

    The digests of the documents are updated with the text.
    """
    encoding = _text_encoding(tokenizer.name)

    def read_chunks(span: Span) -> Iterator[str]:
        for chunk in span.text(encoding):
            digests[span.document].update(chunk.encode(encoding))
            yield chunk

    for index, span in enumerate(spans):
        if index and tokenizer.eot is not None:
            yield np.array([tokenizer.eot]), 0
        elif index:
            yield tokenizer.encode("\n"), 1
        chunks = read_chunks(span)
        if isinstance(tokenizer, ByteTokenizer):
            for raw in (chunk.encode("latin-1") for chunk in chunks):
                yield tokenizer.encode_bytes(raw), len(raw)
            continue
        # A character is a token wherever the stream is cut; a word is not.
        for chunk in chunks if tokenizer.name == "char" else split_at_bpe_boundaries(chunks):
            try:
                ids = tokenizer.encode(chunk)
            except UserError as error:  # a character without an id was not in the text before
                raise _changed_while_read(span.document) from error
            yield ids, len(chunk.encode())


def _changed_while_read(document: Document) -> UserError:
    """The text that was split is not the text that was encoded. (Text appended meanwhile is not an error.)"""
    return UserError(f"{document.path} was changed while it was read: run the command again")
