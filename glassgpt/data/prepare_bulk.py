"""Documents in bulk to a dataset in shards: one pass, all cores, in memory that does not grow.

    glass prepare fineweb_edu
    glass prepare 'crawl/*.jsonl.zst' --tokenizer bpe:32768 --dedup

Every document stands alone: its ids, its side of the split and whether it is a copy depend on its text. So
the result is the same for any number of workers, and for a preparation that was stopped and went on.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.corpus import Corpus, open_corpus
from glassgpt.data.dataset import read_manifest
from glassgpt.data.dedup import BYTES_PER_KEY, DedupKeys
from glassgpt.data.encoder import EncodedBatch, Encoder
from glassgpt.data.manifest import SPLITS, Manifest, dtype_for, write_manifest
from glassgpt.data.prepare_options import (
    PrepareOptions,
    check_out_dir,
    copy_nanogpt_scripts,
    corpus_val_fraction,
    dataset_name,
)
from glassgpt.data.prepare_resume import (
    DEDUP_KEYS_FILE,
    PrepareState,
    mark_prepare_complete,
    remove_prepare_state,
    resumable_folder,
    write_prepare_state,
)
from glassgpt.data.progress import show_byte_progress, show_token_progress
from glassgpt.data.shards import ShardWriter
from glassgpt.data.split import is_validation_mask
from glassgpt.data.tokenizer_json import load_requested_gpt2
from glassgpt.data.tokenizers import ByteLevelBpe
from glassgpt.data.train_tokenizer import (
    choose_corpus_tokenizer,
    evenly_spaced,
    load_previous_tokenizer,
    make_tokenizer,
)
from glassgpt.data.workers import encode_batches, usable_core_count
from glassgpt.errors import UserError
from glassgpt.files import commit_folder, nearest_existing_folder
from glassgpt.format import format_bytes, format_count, pluralize

# Below this, starting processes takes longer than they save.
_MIN_PARALLEL_BYTES = 4_000_000
# Pieces whose beginning is encoded to foresee how many tokens there will be.
_MAX_PROBED_FILES = 8
_MAX_SHARDS = 10_000  # more are a burden to every file system, and five digits number them


@dataclass(frozen=True)
class _PrepareRequest:
    """What is to be made of what."""

    options: PrepareOptions
    corpus: Corpus
    val_fraction: float

    @property
    def digest(self) -> str:
        """A digest of all that the result depends on."""
        options = self.options
        asked = (choose_corpus_tokenizer(options)[0], options.tokenizer_files, options.text_column)
        details = [self.corpus.fingerprint(), *asked, self.val_fraction, options.shard_tokens, options.dedup]
        return hashlib.sha256(json.dumps(details).encode()).hexdigest()


def prepare_corpus(
    options: PrepareOptions, out: Path, say: Callable[[str], None], progress: bool
) -> Manifest:
    """Write the dataset, or finish one that was begun, and return its manifest."""
    corpus, given = _find_inputs(options)
    order = _PrepareRequest(options, corpus, corpus_val_fraction(options, corpus.size_bytes))
    with resumable_folder(out, order.digest, options.overwrite, say) as (work, begun):
        if begun is None or not begun.complete:
            _write_all(order, given, work, out, begun, say, progress)
        else:
            say(f"{out}: all was written when it was stopped")
        manifest = read_manifest(work)
        check_out_dir(options, out)  # hours may have passed, and somebody may have put something there
        copy_nanogpt_scripts(out, work)
        commit_folder(work, out)
        remove_prepare_state(out)
    return manifest


def _write_all(
    order: _PrepareRequest,
    given: ByteLevelBpe | None,
    work: Path,
    out: Path,
    begun: PrepareState | None,
    say: Callable[[str], None],
    progress: bool,
) -> None:
    if begun is None:
        encoder, mark = _start_preparation(order, given, work, say, progress)
        _check_disk_space(order, encoder, out, say)
        write_prepare_state(work, mark)
    else:
        encoder, mark = (
            Encoder(load_previous_tokenizer(order.options, work), order.options.text_column),
            begun,
        )
        say(f"going on where it was stopped, after {pluralize(begun.full_shard_count(), 'shard')}")
    sha256 = _encode(order, encoder, work, mark, say, progress)
    write_manifest(work, _manifest(order, encoder, mark, sha256))
    mark_prepare_complete(work, mark)  # last: who is killed before goes on from the last shard


def _find_inputs(options: PrepareOptions) -> tuple[Corpus, ByteLevelBpe | None]:
    """The documents and, for gpt2, its table. Without a network both are asked for at once."""
    problems: list[str] = []
    given: ByteLevelBpe | None = None
    try:
        given = load_requested_gpt2(choose_corpus_tokenizer(options)[0], options.tokenizer_files)
    except UserError as error:
        problems += error.problems
    try:
        corpus = open_corpus(options.dataset, options.source, options.text_column, download=not problems)
    except UserError as error:
        raise UserError([*error.problems, *problems]) from error
    if problems:
        raise UserError(problems)
    return corpus, given


def _start_preparation(
    order: _PrepareRequest, given: ByteLevelBpe | None, work: Path, say: Callable[[str], None], progress: bool
) -> tuple[Encoder, PrepareState]:
    mark = PrepareState(order.digest)

    def note(line: str) -> None:
        mark.notes.append(line)
        say(line)

    show = partial(show_byte_progress, say=say, show=progress)
    for line in order.corpus.notes:
        note(line)
    share = f"{order.val_fraction:.4g} of the documents, chosen by a hash of their text"
    note(f"split: {share}, are for validation")
    tokenizer = make_tokenizer(order.options, order.corpus, given, order.val_fraction, note, show)
    for name, content in tokenizer.files.items():
        (work / name).write_bytes(content)
    return Encoder(tokenizer, order.options.text_column), mark


def _check_disk_space(
    order: _PrepareRequest, encoder: Encoder, out: Path, say: Callable[[str], None]
) -> None:
    """Foresees the tokens from the beginnings of a few files, and compares with the disk."""
    corpus, read_bytes, tokens = order.corpus, 0, 0
    for piece in evenly_spaced(corpus.readers, _MAX_PROBED_FILES):
        parcel = next(iter(piece.read_batches()), None)
        if parcel is not None:
            read_bytes += parcel.disk_bytes
            tokens += len(encoder(parcel).ids)
    expected = tokens * corpus.size_bytes / max(1, read_bytes)
    if expected / order.options.shard_tokens > _MAX_SHARDS:
        raise UserError(
            f"--shard_tokens {order.options.shard_tokens:,} would make about "
            f"{expected / order.options.shard_tokens:,.0f} files of about {format_count(expected)} tokens: "
            f"use at least {math.ceil(expected / _MAX_SHARDS):,}; as a rule it is left at 100,000,000"
        )
    needed = expected * encoder.dtype.itemsize
    nearest = nearest_existing_folder(out.absolute().parent)
    free = shutil.disk_usage(nearest).free
    if needed > free:
        raise UserError(
            f"about {format_count(expected)} tokens need {format_bytes(needed)}, and {nearest} has {format_bytes(free)} free: "
            "make room, or choose another --out_dir"
        )
    say(
        f"about {format_count(expected)} tokens to come, {format_bytes(needed)} of {format_bytes(free)} that are free"
    )


# --- encoding ---


def _encode(
    order: _PrepareRequest,
    encoder: Encoder,
    work: Path,
    mark: PrepareState,
    say: Callable[[str], None],
    progress: bool,
) -> dict[str, str]:
    """Name and SHA-256 of every shard. `mark` goes along, and has counted everything at the end."""
    options, corpus = order.options, order.corpus
    seen = DedupKeys(work / DEDUP_KEYS_FILE, mark.keys) if options.dedup else None
    left_bytes = sum(piece.size_bytes for piece in corpus.readers[mark.piece :])
    workers = options.workers or (1 if left_bytes < _MIN_PARALLEL_BYTES else usable_core_count())
    parcels = corpus.read_batches(mark.piece, mark.document)
    with ExitStack() as stack:
        writers = {}
        for split in SPLITS:
            before = (mark.closed[split], mark.tokens[split])
            writer = ShardWriter(work, split, options.shard_tokens, encoder.dtype, *before)
            writers[split] = stack.enter_context(closing(writer))
        advance = stack.enter_context(show_token_progress(left_bytes, say, progress))
        encoding = stack.enter_context(closing(encode_batches(parcels, encoder, workers)))
        for piece, parcel, encoded in encoding:
            new = seen.add_new(encoded.keys) if seen else np.ones(len(encoded.keys), dtype=np.bool_)
            is_val = is_validation_mask(encoded.keys, order.val_fraction)
            for split, chosen in (("train", new & ~is_val), ("val", new & is_val)):
                writers[split].append(_ids(encoded, chosen))
                mark.tokens[split] = writers[split].token_count
                mark.documents[split] += int(chosen.sum())
                mark.text_bytes[split] += int(encoded.text_bytes[chosen].sum())
            mark.duplicates += int((~new).sum())
            mark.empty += encoded.empty
            mark.repaired += encoded.repaired
            mark.converted += encoded.converted
            mark.piece, mark.document = piece, parcel.next_index
            if any(len(writers[split].sha256_by_full_shard) > len(mark.closed[split]) for split in SPLITS):
                _save(work, mark, writers, seen)
            advance(parcel.disk_bytes, len(encoded.ids))
        return {name: digest for split in SPLITS for name, digest in writers[split].finish().items()}


def _ids(encoded: EncodedBatch, chosen: NDArray[np.bool_]) -> NDArray[Any]:
    """Those of the chosen documents."""
    return encoded.ids if chosen.all() else encoded.ids[np.repeat(chosen, encoded.lengths)]


def _save(work: Path, mark: PrepareState, writers: Mapping[str, ShardWriter], seen: DedupKeys | None) -> None:
    """A shard is full: from here it can go on."""
    for split, writer in writers.items():
        writer.flush()
        mark.closed[split] = dict(writer.sha256_by_full_shard)
        mark.lengths |= writer.bytes_by_shard()
    if seen is not None:
        mark.keys = seen.save()
        mark.lengths[DEDUP_KEYS_FILE] = mark.keys * BYTES_PER_KEY
    write_prepare_state(work, mark)


# --- manifest ---


def _manifest(
    order: _PrepareRequest, encoder: Encoder, mark: PrepareState, sha256: Mapping[str, str]
) -> Manifest:
    documents, tokenizer = sum(mark.documents.values()), encoder.tokenizer
    if not documents:
        found = f" (left out {pluralize(mark.empty, 'empty document')})" if mark.empty else ""
        raise UserError(f"{order.corpus.description}: there is no text in it{found}: bring some")
    for split, what in (("train", "training"), ("val", "validation")):
        if not mark.documents[split]:
            found = f"{order.corpus.description}: of {pluralize(documents, 'document')} none is for {what}"
            raise UserError(f"{found}: bring more text, or change --val_fraction")
    files = {name: hashlib.sha256(content).hexdigest() for name, content in tokenizer.files.items()}
    return Manifest(
        name=dataset_name(order.options),
        source=order.corpus.description,
        tokenizer=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        dtype=dtype_for(tokenizer.vocab_size),
        tokens=mark.tokens,
        text_bytes=mark.text_bytes,
        sha256={**sha256, **files},
        characters=None,
        notes=(*mark.notes, *_count_notes(mark)),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _count_notes(mark: PrepareState) -> list[str]:
    lines = [f"{mark.documents['train']:,} training and {mark.documents['val']:,} validation documents"]
    if mark.empty:
        lines.append(f"left out {pluralize(mark.empty, 'empty document')}")
    if mark.duplicates:
        lines.append(f"left out {pluralize(mark.duplicates, 'document')} that had been there before")
    if mark.converted:
        files = pluralize(mark.converted, "file")
        lines.append(f"{files} with UTF-16, a byte order mark or \\r\\n line ends became plain UTF-8")
    if mark.repaired:
        lines.append(f"in {pluralize(mark.repaired, 'document')} half characters became question marks")
    return lines
