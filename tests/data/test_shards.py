"""Many files read as one, and refused when one of them is not what was written."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest
from corpora import make_documents, prepare_dataset, write_json_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.data.batches import evaluation_batch, gather_windows, training_batch
from glassgpt.data.dataset import open_dataset, verify
from glassgpt.data.prepare_resume import DedupKeys
from glassgpt.data.shards import ShardedTokens, ShardWriter
from glassgpt.errors import UserError

NUMBERS = np.arange(1000, dtype=np.uint16)


def cut(size: int) -> ShardedTokens:
    return ShardedTokens([NUMBERS[start : start + size] for start in range(0, len(NUMBERS), size)])


@given(
    size=st.integers(1, 1200), start=st.integers(0, 1000), length=st.integers(0, 300), step=st.integers(1, 7)
)
def test_shards_read_like_one_array(size: int, start: int, length: int, step: int) -> None:
    shards = cut(size)
    assert len(shards) == 1000
    assert shards.nbytes == 2000
    assert np.array_equal(shards[start : start + length : step], NUMBERS[start : start + length : step])
    places = np.array([[start, 999], [0, 500]]) % 1000
    assert np.array_equal(shards[places], NUMBERS[places])
    assert np.array_equal(np.asarray(shards), NUMBERS)


@pytest.mark.parametrize("size", [1, 7, 64, 333, 999, 1000])
def test_batches_do_not_depend_on_how_the_text_is_cut(size: int) -> None:
    shards = cut(size)
    for whole, parts in zip(
        training_batch(NUMBERS, 16, 1337, 40, 64), training_batch(shards, 16, 1337, 40, 64), strict=True
    ):
        assert np.array_equal(whole, parts)
    starts = np.array([0, 500, 990, 1000])
    for whole, parts in zip(
        evaluation_batch(NUMBERS, starts, 16), evaluation_batch(shards, starts, 16), strict=True
    ):
        assert np.array_equal(whole, parts)


def test_shards_are_as_fast_as_one_file(tmp_path: Path) -> None:
    """The best of many tries each, alternating; a row costs a microsecond more at most."""
    tokens = np.random.default_rng(0).integers(0, 50_000, 4_000_000, dtype=np.uint16)
    tokens.tofile(tmp_path / "one.bin")
    for i in range(40):
        tokens[i * 100_000 : (i + 1) * 100_000].tofile(tmp_path / f"{i:02}.bin")
    one = np.memmap(tmp_path / "one.bin", dtype=np.uint16, mode="r")
    many = ShardedTokens(
        [np.memmap(path, dtype=np.uint16, mode="r") for path in sorted(tmp_path.glob("[0-9]*.bin"))]
    )
    starts = np.random.default_rng(1).integers(0, 3_990_000, 64)
    best = {"one": np.inf, "many": np.inf}
    for _ in range(30):
        for name, text in (("one", one), ("many", many)):
            began = time.perf_counter()
            rows = gather_windows(text, starts, 1025)
            best[name] = min(best[name], time.perf_counter() - began)
    assert np.array_equal(rows, gather_windows(one, starts, 1025))
    assert best["many"] < 3 * best["one"]


@settings(deadline=None, max_examples=30)  # it waits for the disk
@given(st.lists(st.integers(0, 40), max_size=12), st.integers(5, 30))
def test_what_is_written_in_parts_is_in_full_shards(lengths: list[int], shard_tokens: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer = ShardWriter(folder, "train", shard_tokens, np.dtype("<u2"), {}, 0)
        for length in lengths:
            writer.append(NUMBERS[writer.token_count : writer.token_count + length])
        names = writer.finish()
        contents = [(folder / name).read_bytes() for name in names]
        assert b"".join(contents) == NUMBERS[: sum(lengths)].tobytes()
        assert all(len(content) == 2 * shard_tokens for content in contents[:-1])
        assert list(names.values()) == [hashlib.sha256(content).hexdigest() for content in contents]
        assert sorted(path.name for path in folder.iterdir()) == list(names)


def test_going_on_cuts_back_what_came_after_the_mark(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, "val", 10, np.dtype("<u2"), {}, 0)
    writer.append(NUMBERS[:14])
    closed, tokens = dict(writer.sha256_by_full_shard), writer.token_count
    writer.append(NUMBERS[500:503])  # lost
    writer.close()
    writer = ShardWriter(tmp_path, "val", 10, np.dtype("<u2"), closed, tokens)
    writer.append(NUMBERS[14:25])
    names = writer.finish()
    assert b"".join((tmp_path / name).read_bytes() for name in names) == NUMBERS[:25].tobytes()
    again = ShardWriter(tmp_path, "train", 10, np.dtype("<u2"), {}, 0)
    again.append(NUMBERS[:25])
    assert list(names.values()) == list(again.finish().values())


def test_more_shards_than_files_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json_lines(tmp_path / "a.jsonl", make_documents(300))
    dataset = prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=25)
    expected = np.concatenate(
        [np.fromfile(tmp_path / "out" / name, "<u2") for name in dataset.manifest.split_files("train")]
    )
    assert len(dataset.manifest.split_files("train")) > 300
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 150, hard))
    try:
        tokens = dataset.tokens("train")
        assert np.array_equal(tokens[:], expected)
        assert np.array_equal(np.asarray(tokens), expected)
        places = np.random.default_rng(0).integers(0, len(expected) - 60, 400)
        assert np.array_equal(tokens[places], expected[places])
        rows = gather_windows(tokens, places, 60)
        assert np.array_equal(rows, gather_windows(expected, places, 60))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_many_shards_are_refused_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.data.prepare_bulk._MAX_SHARDS", 100)
    write_json_lines(tmp_path / "a.jsonl", make_documents(300))
    with pytest.raises(UserError, match=r"--shard_tokens 10 would make about [0-9,]+ files .* at least"):
        prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=10)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_json_lines(tmp_path / "a.jsonl", make_documents(100))
    prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=600)
    return tmp_path / "out"


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "train-00002.bin").unlink()
    with pytest.raises(UserError, match=r"train-00002\.bin is missing: prepare the dataset again"):
        open_dataset(folder)


@pytest.mark.parametrize("name", ["train-00001.bin", "val-00000.bin"])
def test_a_short_shard_is_named(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=rf"with [^,]*{name} the shards have .* bytes where"):
        open_dataset(folder)


def test_shards_of_other_lengths_are_named(folder: Path) -> None:
    """Together as long as the manifest says; but every token would be one to the side."""
    longer, shorter = folder / "train-00000.bin", folder / "train-00001.bin"
    longer.write_bytes(longer.read_bytes() + b"\0\0")
    shorter.write_bytes(shorter.read_bytes()[2:])
    with pytest.raises(UserError, match=r"with .*00000\.bin, .*00001\.bin the shards have other lengths"):
        open_dataset(folder)


def test_a_shard_with_another_hash_is_named(folder: Path) -> None:
    path = folder / "train-00001.bin"
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"train-00001\.bin is not what was prepared"):
        verify(open_dataset(folder))


def test_a_gap_in_the_names_is_no_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    fields = json.loads(path.read_text())
    del fields["digest"], fields["sha256"]["train-00001.bin"]
    path.write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"does not name train\.bin, or shards from train-00000\.bin on"):
        open_dataset(folder)


def test_overwriting_removes_all_shards(folder: Path) -> None:
    prepare_dataset(folder.parent / "a.jsonl", folder, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "tokenizer.json",
        "train-00000.bin",
        "val-00000.bin",
    ]


def test_seen_remembers_across_files_and_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.data.prepare_resume._MAX_RECENT_KEYS", 5)
    drawn = np.random.default_rng(0).integers(0, 60, 200, dtype=np.uint64) + np.uint64(2**63)
    seen, known = DedupKeys(tmp_path / "keys"), set()
    for start in range(0, 200, 8):
        keys = drawn[start : start + 8]
        expected = [key not in known and not known.add(key) for key in keys.tolist()]  # type: ignore[func-returns-value]
        assert seen.add_new(keys).tolist() == expected
        if start == 96:
            saved, at_mark = seen.save(), set(known)
    later = DedupKeys(tmp_path / "keys", saved)
    everything = np.arange(60, dtype=np.uint64) + np.uint64(2**63)
    assert later.add_new(everything).tolist() == [key not in at_mark for key in everything.tolist()]
