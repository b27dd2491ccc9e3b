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
from glassgpt.data.dedup import BYTES_PER_KEY, Seen
from glassgpt.data.encoder import Encoded, Encoder
from glassgpt.data.manifest import SPLITS, Manifest, dtype_for, write_manifest
from glassgpt.data.prepare_options import (
    PrepareOptions,
    check_place,
    corpus_val_fraction,
    dataset_name,
    keep_scripts,
)
from glassgpt.data.prepare_resume import KEYS, Mark, forget_mark, mark_complete, unfinished, write_mark
from glassgpt.data.progress import passing, tokenizing
from glassgpt.data.shards import ShardWriter
from glassgpt.data.split import are_validation
from glassgpt.data.tokenizer_json import given_tokenizer
from glassgpt.data.tokenizers import ByteLevelBpe
from glassgpt.data.train_tokenizer import corpus_tokenizer_name, make_tokenizer, spread, tokenizer_made_before
from glassgpt.data.workers import cores, encode_all
from glassgpt.errors import UserError
from glassgpt.files import move_into_place
from glassgpt.format import count, plural, size
from glassgpt.paths import nearest_folder

# Below this, starting processes takes longer than they save.
_ALONE_BYTES = 4_000_000
# Pieces whose beginning is encoded to foresee how many tokens there will be.
_PROBED_PIECES = 8
_MOST_SHARDS = 10_000  # more are a burden to every file system, and five digits number them


@dataclass(frozen=True)
class _Order:
    """What is to be made of what."""

    options: PrepareOptions
    corpus: Corpus
    val_fraction: float

    @property
    def request(self) -> str:
        """A digest of all that the result depends on."""
        options = self.options
        asked = (corpus_tokenizer_name(options)[0], options.tokenizer_files, options.text_column)
        details = [self.corpus.fingerprint(), *asked, self.val_fraction, options.shard_tokens, options.dedup]
        return hashlib.sha256(json.dumps(details).encode()).hexdigest()


def prepare_corpus(
    options: PrepareOptions, out: Path, say: Callable[[str], None], progress: bool
) -> Manifest:
    """Write the dataset, or finish one that was begun, and return its manifest."""
    corpus, given = _find_inputs(options)
    order = _Order(options, corpus, corpus_val_fraction(options, corpus.size_bytes))
    with unfinished(out, order.request, options.overwrite, say) as (work, begun):
        if begun is None or not begun.complete:
            _write_all(order, given, work, out, begun, say, progress)
        else:
            say(f"{out}: all was written when it was stopped")
        manifest = read_manifest(work)
        check_place(options, out)  # hours may have passed, and somebody may have put something there
        keep_scripts(out, work)
        move_into_place(work, out)
        forget_mark(out)
    return manifest


def _write_all(
    order: _Order,
    given: ByteLevelBpe | None,
    work: Path,
    out: Path,
    begun: Mark | None,
    say: Callable[[str], None],
    progress: bool,
) -> None:
    if begun is None:
        encoder, mark = _begin(order, given, work, say, progress)
        _check_room(order, encoder, out, say)
        write_mark(work, mark)
    else:
        encoder, mark = Encoder(tokenizer_made_before(order.options, work), order.options.text_column), begun
        say(f"going on where it was stopped, after {plural(begun.shards(), 'shard')}")
    sha256 = _encode(order, encoder, work, mark, say, progress)
    write_manifest(work, _manifest(order, encoder, mark, sha256))
    mark_complete(work, mark)  # last: who is killed before goes on from the last shard


def _find_inputs(options: PrepareOptions) -> tuple[Corpus, ByteLevelBpe | None]:
    """The documents and, for gpt2, its table. Without a network both are asked for at once."""
    problems: list[str] = []
    given: ByteLevelBpe | None = None
    try:
        given = given_tokenizer(corpus_tokenizer_name(options)[0], options.tokenizer_files)
    except UserError as error:
        problems += error.problems
    try:
        corpus = open_corpus(options.dataset, options.source, options.text_column, download=not problems)
    except UserError as error:
        raise UserError([*error.problems, *problems]) from error
    if problems:
        raise UserError(problems)
    return corpus, given


def _begin(
    order: _Order, given: ByteLevelBpe | None, work: Path, say: Callable[[str], None], progress: bool
) -> tuple[Encoder, Mark]:
    mark = Mark(order.request)

    def note(line: str) -> None:
        mark.notes.append(line)
        say(line)

    show = partial(passing, say=say, show=progress)
    for line in order.corpus.notes:
        note(line)
    share = f"{order.val_fraction:.4g} of the documents, chosen by a hash of their text"
    note(f"split: {share}, are for validation")
    tokenizer = make_tokenizer(order.options, order.corpus, given, order.val_fraction, note, show)
    for name, content in tokenizer.files.items():
        (work / name).write_bytes(content)
    return Encoder(tokenizer, order.options.text_column), mark


def _check_room(order: _Order, encoder: Encoder, out: Path, say: Callable[[str], None]) -> None:
    """Foresees the tokens from the beginnings of a few files, and compares with the disk."""
    corpus, read_bytes, tokens = order.corpus, 0, 0
    for piece in spread(corpus.pieces, _PROBED_PIECES):
        parcel = next(iter(piece.parcels()), None)
        if parcel is not None:
            read_bytes += parcel.disk_bytes
            tokens += len(encoder(parcel).ids)
    expected = tokens * corpus.size_bytes / max(1, read_bytes)
    if expected / order.options.shard_tokens > _MOST_SHARDS:
        raise UserError(
            f"--shard_tokens {order.options.shard_tokens:,} would make about "
            f"{expected / order.options.shard_tokens:,.0f} files of about {count(expected)} tokens: "
            f"use at least {math.ceil(expected / _MOST_SHARDS):,}; as a rule it is left at 100,000,000"
        )
    needed = expected * encoder.dtype.itemsize
    nearest = nearest_folder(out.absolute().parent)
    free = shutil.disk_usage(nearest).free
    if needed > free:
        raise UserError(
            f"about {count(expected)} tokens need {size(needed)}, and {nearest} has {size(free)} free: "
            "make room, or choose another --out_dir"
        )
    say(f"about {count(expected)} tokens to come, {size(needed)} of {size(free)} that are free")


# --- encoding ---


def _encode(
    order: _Order, encoder: Encoder, work: Path, mark: Mark, say: Callable[[str], None], progress: bool
) -> dict[str, str]:
    """Name and SHA-256 of every shard. `mark` goes along, and has counted everything at the end."""
    options, corpus = order.options, order.corpus
    seen = Seen(work / KEYS, mark.keys) if options.dedup else None
    left_bytes = sum(piece.size_bytes for piece in corpus.pieces[mark.piece :])
    workers = options.workers or (1 if left_bytes < _ALONE_BYTES else cores())
    parcels = corpus.parcels(mark.piece, mark.document)
    with ExitStack() as stack:
        writers = {}
        for split in SPLITS:
            before = (mark.closed[split], mark.tokens[split])
            writer = ShardWriter(work, split, options.shard_tokens, encoder.dtype, *before)
            writers[split] = stack.enter_context(closing(writer))
        advance = stack.enter_context(tokenizing(left_bytes, say, progress))
        encoding = stack.enter_context(closing(encode_all(parcels, encoder, workers)))
        for piece, parcel, encoded in encoding:
            new = seen.are_new(encoded.keys) if seen else np.ones(len(encoded.keys), dtype=np.bool_)
            is_val = are_validation(encoded.keys, order.val_fraction)
            for split, chosen in (("train", new & ~is_val), ("val", new & is_val)):
                writers[split].append(_ids(encoded, chosen))
                mark.tokens[split] = writers[split].tokens
                mark.documents[split] += int(chosen.sum())
                mark.text_bytes[split] += int(encoded.text_bytes[chosen].sum())
            mark.duplicates += int((~new).sum())
            mark.empty += encoded.empty
            mark.repaired += encoded.repaired
            mark.converted += encoded.converted
            mark.piece, mark.document = piece, parcel.after
            if any(len(writers[split].closed) > len(mark.closed[split]) for split in SPLITS):
                _save(work, mark, writers, seen)
            advance(parcel.disk_bytes, len(encoded.ids))
        return {name: digest for split in SPLITS for name, digest in writers[split].finish().items()}


def _ids(encoded: Encoded, chosen: NDArray[np.bool_]) -> NDArray[Any]:
    """Those of the chosen documents."""
    return encoded.ids if chosen.all() else encoded.ids[np.repeat(chosen, encoded.lengths)]


def _save(work: Path, mark: Mark, writers: Mapping[str, ShardWriter], seen: Seen | None) -> None:
    """A shard is full: from here it can go on."""
    for split, writer in writers.items():
        writer.flush()
        mark.closed[split] = dict(writer.closed)
        mark.lengths |= writer.lengths()
    if seen is not None:
        mark.keys = seen.save()
        mark.lengths[KEYS] = mark.keys * BYTES_PER_KEY
    write_mark(work, mark)


# --- manifest ---


def _manifest(order: _Order, encoder: Encoder, mark: Mark, sha256: Mapping[str, str]) -> Manifest:
    documents, tokenizer = sum(mark.documents.values()), encoder.tokenizer
    if not documents:
        found = f" (left out {plural(mark.empty, 'empty document')})" if mark.empty else ""
        raise UserError(f"{order.corpus.description}: there is no text in it{found}: bring some")
    for split, what in (("train", "training"), ("val", "validation")):
        if not mark.documents[split]:
            found = f"{order.corpus.description}: of {plural(documents, 'document')} none is for {what}"
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
        notes=(*mark.notes, *_counted(mark)),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _counted(mark: Mark) -> list[str]:
    lines = [f"{mark.documents['train']:,} training and {mark.documents['val']:,} validation documents"]
    if mark.empty:
        lines.append(f"left out {plural(mark.empty, 'empty document')}")
    if mark.duplicates:
        lines.append(f"left out {plural(mark.duplicates, 'document')} that had been there before")
    if mark.converted:
        files = plural(mark.converted, "file")
        lines.append(f"{files} with UTF-16, a byte order mark or \\r\\n line ends became plain UTF-8")
    if mark.repaired:
        lines.append(f"in {plural(mark.repaired, 'document')} half characters became question marks")
    return lines
