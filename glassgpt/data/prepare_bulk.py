"""A corpus to a dataset in shards: one pass, all cores, constant memory.

    glass prepare fineweb_edu
    glass prepare 'crawl/*.jsonl.zst' --tokenizer bpe:32768 --dedup

The ids of a document, its split and whether it is a duplicate depend on its text alone. So the result is the
same for any number of workers, and for a preparation that was stopped and resumed.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from glassgpt.data.bpe import ByteLevelBpe, bpe_vocab_size, split_for_bpe_training, train_bpe
from glassgpt.data.corpus import Corpus, open_corpus
from glassgpt.data.dataset import read_manifest
from glassgpt.data.digests import json_sha256
from glassgpt.data.encoder import Encoder, encode_batches, extract_texts, usable_core_count
from glassgpt.data.manifest import SPLITS, Manifest, dtype_for, write_manifest
from glassgpt.data.prepare_options import (
    PrepareOptions,
    check_out_dir,
    copy_nanogpt_scripts,
    corpus_val_fraction,
    dataset_name,
    requested_tokenizer,
)
from glassgpt.data.prepare_resume import (
    BYTES_PER_KEY,
    DEDUP_KEYS_FILE,
    DedupKeys,
    PrepareState,
    mark_prepare_complete,
    remove_prepare_state,
    resumable_folder,
    write_prepare_state,
)
from glassgpt.data.progress import Advance, PrepareLog
from glassgpt.data.shards import ShardWriter
from glassgpt.data.split import document_key, is_validation_mask
from glassgpt.data.tokenizer_json import load_requested_gpt2
from glassgpt.data.tokenizers import ByteTokenizer, load_folder_bpe
from glassgpt.errors import UserError, collect_problems, raise_if_any
from glassgpt.files import commit_folder, nearest_existing_folder
from glassgpt.format import format_bytes, format_count, pluralize

# For less text, starting worker processes takes longer than they save.
_MIN_PARALLEL_BYTES = 4_000_000
# Files whose beginning is encoded to estimate the number of tokens.
_MAX_PROBED_FILES = 8
_MAX_SHARDS = 10_000  # more are slow in every file system, and their numbers have five digits


@dataclass(frozen=True)
class _CorpusRequest:
    options: PrepareOptions
    corpus: Corpus
    val_fraction: float

    @property
    def digest(self) -> str:
        """A digest of all that the result depends on."""
        options = self.options
        tokenizer, _ = _choose_tokenizer(options)
        return json_sha256(
            [
                *(self.corpus.fingerprint(), tokenizer, options.tokenizer_files, options.text_column),
                *(self.val_fraction, options.shard_tokens, options.dedup),
            ]
        )


def prepare_corpus(options: PrepareOptions, out: Path, log: PrepareLog) -> Manifest:
    """Writes the dataset, or resumes one that was stopped, and returns its manifest."""
    # The documents and, for gpt2, its table: both may need a network, so both problems are reported.
    problems: list[str] = []
    gpt2: ByteLevelBpe | None = None
    with collect_problems(problems):
        gpt2 = load_requested_gpt2(_choose_tokenizer(options)[0], options.tokenizer_files)
    try:
        corpus = open_corpus(options.dataset, options.source, options.text_column, download=not problems)
    except UserError as error:
        raise UserError([*error.problems, *problems]) from error
    raise_if_any(problems)
    request = _CorpusRequest(options, corpus, corpus_val_fraction(options, corpus.size_bytes))
    with resumable_folder(out, request.digest, options.overwrite, log.print_line) as (work, state):
        if state is not None and state.complete:
            log.print_line(f"{out}: all was written when it was stopped")
        else:
            if state is not None:
                # The tokenizer of the earlier attempt: the shards that it wrote have its ids.
                name, _ = _choose_tokenizer(options)
                carried = name if bpe_vocab_size(name) else ""
                tokenizer = ByteTokenizer() if name == "byte" else load_folder_bpe(carried, work)
                encoder = Encoder(tokenizer, options.text_column)
                log.print_line(
                    f"resuming where it was stopped, after {pluralize(state.full_shard_count(), 'shard')}"
                )
            else:
                encoder, state = _start_preparation(request, gpt2, work, log)
                _check_disk_space(request, encoder, out, log.print_line)
                write_prepare_state(work, state)
            shard_sha256 = _encode_corpus(request, encoder, work, state, log)
            write_manifest(work, _build_manifest(request, encoder, state, shard_sha256))
            mark_prepare_complete(work, state)  # last: a process killed before resumes from the last shard
        manifest = read_manifest(work)
        check_out_dir(options, out)  # hours later: another process may have written there
        copy_nanogpt_scripts(out, work)
        commit_folder(work, out)
        remove_prepare_state(out)
    return manifest


def _start_preparation(
    request: _CorpusRequest, gpt2: ByteLevelBpe | None, work: Path, log: PrepareLog
) -> tuple[Encoder, PrepareState]:
    """Makes or trains the tokenizer."""
    for line in request.corpus.notes:
        log.note(line)
    share = f"{request.val_fraction:.4g} of the documents, chosen by a hash of their text"
    log.note(f"split: {share}, are for validation")
    sample = _BpeTrainingSample(request)
    name, reason = _choose_tokenizer(request.options)
    label = f"training {name}, on {MAX_BPE_SAMPLE_BYTES / 1e6:,.0f} MB at most"
    log.note(f"tokenizer {name}: {reason}")
    with log.progress(label, MAX_BPE_SAMPLE_BYTES) as advance:
        tokenizer = make_bpe_or_bytes(name, request.options, gpt2, sample.texts(advance), log)
    if sample.text_bytes:
        log.note(f"{name} was trained on {sample.describe()}")
    for name, content in tokenizer.files.items():
        (work / name).write_bytes(content)
    return Encoder(tokenizer, request.options.text_column), PrepareState(request.digest, notes=log.notes)


def _check_disk_space(
    request: _CorpusRequest, encoder: Encoder, out: Path, print_line: Callable[[str], None]
) -> None:
    """Estimates the tokens from the beginnings of a few files, and compares with the free disk space."""
    corpus, shard_tokens, read_bytes, tokens = request.corpus, request.options.shard_tokens, 0, 0
    for reader in _evenly_spaced(corpus.readers, _MAX_PROBED_FILES):
        batch = next(iter(reader.read_batches()), None)
        if batch is not None:
            read_bytes += batch.disk_bytes
            tokens += len(encoder(batch).ids)
    expected_tokens = tokens * corpus.size_bytes / max(1, read_bytes)
    if expected_tokens / shard_tokens > _MAX_SHARDS:
        raise UserError(
            f"--shard_tokens {shard_tokens:,} would make about {expected_tokens / shard_tokens:,.0f} files "
            f"of about {format_count(expected_tokens)} tokens: use at least "
            f"{math.ceil(expected_tokens / _MAX_SHARDS):,}; as a rule it is left at 100,000,000"
        )
    needed_bytes = expected_tokens * encoder.dtype.itemsize
    nearest = nearest_existing_folder(out.absolute().parent)
    free_bytes = shutil.disk_usage(nearest).free
    needed, free = format_bytes(needed_bytes), format_bytes(free_bytes)
    if needed_bytes > free_bytes:
        raise UserError(
            f"about {format_count(expected_tokens)} tokens need {needed}, and {nearest} has {free} free: "
            "make room, or choose another --out_dir"
        )
    print_line(f"about {format_count(expected_tokens)} tokens to come, {needed} of {free} that are free")


# --- encoding ---


def _encode_corpus(
    request: _CorpusRequest,
    encoder: Encoder,
    work: Path,
    state: PrepareState,
    log: PrepareLog,
) -> dict[str, str]:
    """Writes all shards; returns the name and SHA-256 of each. The counts of `state` are updated."""
    options, corpus = request.options, request.corpus
    dedup = DedupKeys(work / DEDUP_KEYS_FILE, state.keys) if options.dedup else None
    left_bytes = sum(reader.size_bytes for reader in corpus.readers[state.piece :])
    workers = options.workers or (1 if left_bytes < _MIN_PARALLEL_BYTES else usable_core_count())
    batches = corpus.read_batches(state.piece, state.document)
    with ExitStack() as stack:
        writers = {}
        for split in SPLITS:
            earlier = (state.closed[split], state.tokens[split])
            writer = ShardWriter(work, split, options.shard_tokens, encoder.dtype, *earlier)
            writers[split] = stack.enter_context(closing(writer))
        advance = stack.enter_context(log.progress("encoding", left_bytes))
        encoding = stack.enter_context(closing(encode_batches(batches, encoder, workers)))
        for reader_number, batch, encoded in encoding:
            is_new = dedup.add_new(encoded.keys) if dedup else np.ones(len(encoded.keys), dtype=np.bool_)
            is_val = is_validation_mask(encoded.keys, request.val_fraction)
            for split, selected in (("train", is_new & ~is_val), ("val", is_new & is_val)):
                ids = encoded.ids if selected.all() else encoded.ids[np.repeat(selected, encoded.lengths)]
                writers[split].append(ids)
                state.tokens[split] = writers[split].token_count
                state.documents[split] += int(selected.sum())
                state.text_bytes[split] += int(encoded.text_bytes[selected].sum())
            state.duplicates += int((~is_new).sum())
            state.empty += encoded.empty
            state.repaired += encoded.repaired
            state.converted += encoded.converted
            state.piece, state.document = reader_number, batch.next_index
            if any(len(writers[split].sha256_by_full_shard) > len(state.closed[split]) for split in SPLITS):
                _save_state(work, state, writers, dedup)
            advance(batch.disk_bytes, len(encoded.ids))
        return {name: digest for split in SPLITS for name, digest in writers[split].finish().items()}


def _save_state(
    work: Path, state: PrepareState, writers: Mapping[str, ShardWriter], dedup: DedupKeys | None
) -> None:
    """Called when a shard is full: the preparation can be resumed from here."""
    for split, writer in writers.items():
        writer.flush()
        state.closed[split] = dict(writer.sha256_by_full_shard)
        state.lengths |= writer.bytes_by_shard()
    if dedup is not None:
        state.keys = dedup.save()
        state.lengths[DEDUP_KEYS_FILE] = state.keys * BYTES_PER_KEY
    write_prepare_state(work, state)


# --- manifest ---


def _build_manifest(
    request: _CorpusRequest, encoder: Encoder, state: PrepareState, shard_sha256: Mapping[str, str]
) -> Manifest:
    documents, tokenizer = sum(state.documents.values()), encoder.tokenizer
    description = request.corpus.description
    if not documents:
        skipped = f" (left out {pluralize(state.empty, 'empty document')})" if state.empty else ""
        raise UserError(f"{description}: there is no text in it{skipped}: bring some")
    for split, use in (("train", "training"), ("val", "validation")):
        if not state.documents[split]:
            problem = f"{description}: of {pluralize(documents, 'document')} none is for {use}"
            raise UserError(f"{problem}: bring more text, or change --val_fraction")
    train_documents, val_documents = state.documents["train"], state.documents["val"]
    notes = [*state.notes, f"{train_documents:,} training and {val_documents:,} validation documents"]
    if state.empty:
        notes.append(f"left out {pluralize(state.empty, 'empty document')}")
    if state.duplicates:
        notes.append(f"left out {pluralize(state.duplicates, 'document')} that had been there before")
    if state.converted:
        files = pluralize(state.converted, "file")
        notes.append(f"{files} with UTF-16, a byte order mark or \\r\\n line ends became plain UTF-8")
    if state.repaired:
        notes.append(f"in {pluralize(state.repaired, 'document')} half characters became question marks")
    file_sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in tokenizer.files.items()}
    return Manifest(
        name=dataset_name(request.options),
        source=description,
        tokenizer=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        dtype=dtype_for(tokenizer.vocab_size),
        tokens=state.tokens,
        text_bytes=state.text_bytes,
        sha256={**shard_sha256, **file_sha256},
        characters=None,
        notes=tuple(notes),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


# --- the tokenizer ---

# A BPE is trained on at most this much text: more hardly changes it, and takes long.
MAX_BPE_SAMPLE_BYTES = 100_000_000
_MAX_SAMPLED_FILES = 64
_DEFAULT_TOKENIZER = "bpe:8192"

T = TypeVar("T")


def _choose_tokenizer(options: PrepareOptions) -> tuple[str, str]:
    """The name of the tokenizer, and the reason."""
    name, reason = requested_tokenizer(options)
    return (name, reason) if name != "auto" else (_DEFAULT_TOKENIZER, "the usual one for documents in bulk")


def make_bpe_or_bytes(
    name: str, options: PrepareOptions, gpt2: ByteLevelBpe | None, texts: Iterable[str], log: PrepareLog
) -> ByteLevelBpe | ByteTokenizer:
    """`gpt2`: the tokenizer for --tokenizer=gpt2, if that is requested; `texts`: to train bpe:N on."""
    if name == "byte":
        return ByteTokenizer()
    if gpt2 is not None:
        if gpt2.name != name:
            log.note(f"{options.tokenizer_files} has a BPE of another kind than GPT-2's: it is {gpt2.name}")
        return gpt2
    size = bpe_vocab_size(name)
    assert size is not None, name
    trained = train_bpe(texts, size)
    if trained.vocab_size < size:
        log.note(f"the text is too small for {size} tokens, it yields {trained.vocab_size}")
    return trained


class _BpeTrainingSample:
    """Training documents from the beginnings of files all over a corpus, up to MAX_BPE_SAMPLE_BYTES."""

    def __init__(self, request: _CorpusRequest) -> None:
        self._request = request
        self._readers = _evenly_spaced(request.corpus.readers, _MAX_SAMPLED_FILES)
        self.text_bytes = 0
        self._is_whole = len(self._readers) == len(request.corpus.readers)

    def texts(self, advance: Advance) -> Iterator[str]:
        """Without validation documents: a vocabulary trained on them would lower their loss."""
        for reader in self._readers:
            left_bytes = MAX_BPE_SAMPLE_BYTES // len(self._readers)
            for batch in reader.read_batches():
                if left_bytes <= 0:
                    self._is_whole = False
                    break
                texts, _, _ = extract_texts(batch, self._request.options.text_column)
                keys = np.array([document_key(text) for text in texts], dtype=np.uint64)
                is_val = is_validation_mask(keys, self._request.val_fraction)
                for text in itertools.compress(texts, ~is_val):
                    left_bytes -= len(text)
                    self.text_bytes += len(text)
                    for chunk in split_for_bpe_training([text.decode()]):
                        yield chunk
                        advance(len(chunk.encode()))

    def describe(self) -> str:
        """Call it after `texts` is exhausted."""
        if self._is_whole:
            return f"all training text, {self.text_bytes / 1e6:,.1f} MB"
        files = pluralize(len(self._readers), "file")
        return f"a sample of the training text, {self.text_bytes / 1e6:,.1f} MB from {files}"


def _evenly_spaced(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` items, evenly spaced."""
    count = min(limit, len(items))
    return [items[i * len(items) // count] for i in range(count)]
