"""A manifest is believed only when all of it makes sense, and files only when they match it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassgpt.data.dataset import open_dataset, read_manifest, verify
from glassgpt.data.manifest import Manifest, write_manifest
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("glass houses " * 40)
    out = tmp_path / "data" / "text"
    prepare(PrepareOptions(str(tmp_path / "text.txt"), out_dir=str(out)), print_line=lambda line: None)
    return out


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    fields = json.loads(path.read_text())
    fields.pop("digest", None)  # as in manifests from before there was one
    path.write_text(json.dumps({**fields, **changes}))


def test_a_manifest_that_is_a_pipe_or_endless_is_not_read(folder: Path) -> None:
    path = folder / "manifest.json"
    os.truncate(path, 1 << 40)  # takes no room on the disk
    with pytest.raises(UserError, match="1,099,511,627,776 bytes"):
        open_dataset(folder)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="pipe"):
        open_dataset(folder)


def test_round_trip(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest == Manifest(**{**dataclasses.asdict(manifest), "notes": manifest.notes})
    assert manifest.tokens == {"train": 468, "val": 52}
    dataset = open_dataset(folder)
    verify(dataset)
    tokens = dataset.tokens("train")
    assert tokens.dtype == np.dtype("<u2")
    assert len(tokens) == 468
    assert dataset.bytes_per_token("val") == 1.0
    assert json.loads((folder / "manifest.json").read_text())["bytes_per_token"] == {"train": 1.0, "val": 1.0}
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


def test_the_hash_follows_the_content_and_nothing_else(folder: Path) -> None:
    before = open_dataset(folder).hash
    edit(folder, created="2001-01-01", notes=["another"], source="elsewhere", name="x")
    assert open_dataset(folder).hash == before
    characters = read_manifest(folder).characters
    assert characters is not None
    edit(folder, characters=characters[::-1])
    assert open_dataset(folder).hash != before


def test_no_dataset_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no dataset at .*pylib: run  glass prepare pylib"):
        open_dataset(tmp_path / "pylib")
    with pytest.raises(UserError, match=r"--out_dir=.*mine  or put .* or say where it is by --data_dir"):
        open_dataset(tmp_path / "mine")


def test_a_text_taken_for_a_dataset_is_to_be_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("words " * 100)
    Path("data/my texts").mkdir(parents=True)
    Path("data/my texts/train.bin").touch()  # which has nearly that name
    for path in (Path("data/my.txt"), Path("my.txt")):  # by --dataset=my.txt, by --data_dir=my.txt
        with pytest.raises(
            UserError, match=r"^my\.txt is not a prepared dataset: run  glass prepare my\.txt  "
        ):
            open_dataset(path)


def test_a_dataset_of_nearly_that_name_is_offered(folder: Path) -> None:
    typed = folder.with_name(folder.name + "s")
    with pytest.raises(UserError, match=rf"^no dataset at {typed}; did you mean {folder}\?$"):
        open_dataset(typed)


def test_what_to_run_makes_the_dataset_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"run  glass prepare shakespeare_char$"):
        open_dataset(Path("data/shakespeare_char"))
    with pytest.raises(UserError, match=r"glass prepare shakespeare_char --out_dir=there/shakespeare_char$"):
        open_dataset(Path("there/shakespeare_char"))


def test_a_manifest_is_believed_as_written_or_not_at_all(folder: Path) -> None:
    path = folder / "manifest.json"
    content, written = path.read_bytes(), read_manifest(folder)
    refused = 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            assert read_manifest(folder) == written, place
        except UserError:
            refused += 1
    assert refused > 0.75 * len(content)  # the rest is indentation, and numbers that are not read back


def test_a_change_that_makes_sense_is_seen_too(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"train": 520', '"train": 521').replace("468", "469"))
    with pytest.raises(UserError, match="something in it was changed after it was written"):
        read_manifest(folder)


def test_what_is_unknown_is_null_and_reads_back(folder: Path) -> None:
    for known in ({}, {"val": 52}):
        manifest = dataclasses.replace(read_manifest(folder), text_bytes=known, tokenizer="char")
        write_manifest(folder, manifest)
        assert read_manifest(folder) == manifest
        assert open_dataset(folder).bytes_per_token("train") is None
        text = (folder / "manifest.json").read_text()
        assert json.loads(text)["bytes_per_token"] == {"train": None, "val": 1.0 if known else None}
        assert "NaN" not in text


def test_a_name_that_is_no_text_reads_back(folder: Path) -> None:
    manifest = dataclasses.replace(read_manifest(folder), name="\udcff", source="folder \udcff")
    write_manifest(folder, manifest)
    assert read_manifest(folder) == manifest


def test_every_truncation_of_a_manifest_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    content = path.read_bytes().rstrip()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match="damaged"):
            read_manifest(folder)


def test_nonsense_in_a_manifest_is_named(folder: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"version": 2}, "version 2, this GlassGPT reads version 1"),
        ({"version": None}, "version None"),
        ({"vocab_size": "65"}, "'vocab_size' is not int"),
        ({"vocab_size": True}, "'vocab_size' is not int"),
        ({"vocab_size": 0}, "between 1 and"),
        ({"vocab_size": 7}, "vocab_size different characters"),
        ({"dtype": "object"}, "dtype 'object'"),
        ({"tokenizer": "../../evil"}, "tokenizer '../../evil'"),
        ({"tokens": {"train": 1}}, "'tokens' does not give"),
        ({"tokens": {"train": -1, "val": 3}}, "'tokens' does not give"),
        ({"tokens": {"train": 1.5, "val": 3}}, "'tokens' is not"),
        ({"text_bytes": {"test": 1}}, "'text_bytes' does not give"),
        ({"text_bytes": {"val": 0}}, "'text_bytes' does not give"),
        ({"digest": None}, "its digest differs"),
        ({"sha256": {"../secret": "00"}}, "'sha256' does not name"),
        ({"notes": "one"}, "'notes' is not"),
        ({"characters": None}, "belongs to the char tokenizer"),
        ({"surprise": 1}, "unknown field 'surprise'"),
    ]
    whole = (folder / "manifest.json").read_bytes()
    for changes, message in cases:
        with subtests.test(repr(changes)):
            (folder / "manifest.json").write_bytes(whole)
            edit(folder, **changes)
            with pytest.raises(UserError) as caught:
                read_manifest(folder)
            assert message in str(caught.value)


def test_what_is_no_manifest_is_refused(folder: Path, subtests: pytest.Subtests) -> None:
    for content in (b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"version": 1}'):
        with subtests.test(repr(content[:20])):
            (folder / "manifest.json").write_bytes(content)
            with pytest.raises(UserError, match="damaged"):
                read_manifest(folder)


def test_a_missing_or_short_file_is_seen_at_once(folder: Path) -> None:
    (folder / "val.bin").unlink()
    (folder / "train.bin").write_bytes(b"\0" * 10)
    with pytest.raises(UserError) as caught:
        open_dataset(folder)
    assert len(caught.value.problems) == 2
    assert "10 bytes where its manifest says 936" in caught.value.problems[0]
    assert "val.bin is missing" in caught.value.problems[1]


def test_one_flipped_bit_is_seen_by_verify(folder: Path) -> None:
    path = folder / "train.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    dataset = open_dataset(folder)
    with pytest.raises(UserError, match=r"train\.bin is not what was prepared"):
        verify(dataset)


def test_a_file_that_shrinks_after_it_was_opened_is_refused_before_it_is_mapped(folder: Path) -> None:
    """Reading beyond the end of a mapped file ends the process."""
    for size in (100, 3, 0):
        dataset = open_dataset(folder)
        whole = (folder / "train.bin").read_bytes()
        (folder / "train.bin").write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"train\.bin"):
            dataset.tokens("train")
        (folder / "train.bin").write_bytes(whole)
