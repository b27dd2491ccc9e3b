"""What nanoGPT's prepare scripts write is opened as it is; what they could not have written is named."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_gpt2 import ranks_of, train_small_bpe

from glassgpt.data import tokenizers
from glassgpt.data.bpe_table import MergeRanks
from glassgpt.data.dataset import open_dataset, read_manifest, verify
from glassgpt.data.digests import MIN_SAMPLED_BYTES, SAMPLED_PREFIX, read_hashed_blocks
from glassgpt.data.nanogpt_bin import read_meta
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.data.tokenizers import load_tokenizer, write_tokenizer
from glassgpt.errors import UserError

TEXT = "Glass houses, कांच के घर, بيوت من زجاج 🦊\n" * 30


def write_ids(folder: Path, **splits: list[int]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, ids in splits.items():
        np.array(ids, dtype=np.uint16).tofile(folder / f"{split}.bin")
    return folder


def write_meta(folder: Path, meta: Any, protocol: int | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "meta.pkl").open("wb") as file:
        pickle.dump(meta, file, protocol)
    return folder / "meta.pkl"


def char_meta(text: str) -> dict[str, Any]:
    chars = sorted(set(text))
    return {
        "vocab_size": len(chars),
        "itos": dict(enumerate(chars)),
        "stoi": {c: i for i, c in enumerate(chars)},
    }


def write_char(folder: Path, text: str = TEXT) -> Path:
    """nanoGPT's data/shakespeare_char/prepare.py, in short."""
    meta, n = char_meta(text), len(text)
    ids = [meta["stoi"][c] for c in text]
    write_meta(folder, meta)
    return write_ids(folder, train=ids[: int(n * 0.9)], val=ids[int(n * 0.9) :])


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def problems_of(folder: Path) -> list[str]:
    with pytest.raises(UserError) as caught:
        open_dataset(folder)
    return caught.value.problems


def test_characters_are_the_dataset_that_glass_would_have_made(tmp_path: Path) -> None:
    nano = write_char(tmp_path / "nano")
    before = state_of(nano)
    (tmp_path / "text.txt").write_bytes(TEXT.encode())
    prepare(
        PrepareOptions(str(tmp_path / "text.txt"), out_dir=str(tmp_path / "glass")),
        print_line=lambda line: None,
    )
    adopted, prepared = open_dataset(nano), open_dataset(tmp_path / "glass")
    verify(adopted)
    assert adopted.hash == prepared.hash
    assert adopted.manifest.text_bytes == prepared.manifest.text_bytes
    assert adopted.bytes_per_token("val") == prepared.bytes_per_token("val")
    assert (prepared.bytes_per_token("val") or 0) > 1
    tokenizer = load_tokenizer(nano)
    assert tokenizer == load_tokenizer(tmp_path / "glass")
    assert "".join(tokenizer.decode(adopted.tokens(split)) for split in ("train", "val")) == TEXT
    assert adopted.manifest == read_manifest(nano)
    assert adopted.manifest.notes[0] == "nanoGPT's files, used as they are"
    assert adopted.manifest.name == "nano"
    assert state_of(nano) == before


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_of_meta(tmp_path: Path, protocol: int) -> None:
    found = read_meta(write_meta(tmp_path, char_meta(TEXT), protocol))
    assert found.tokenizer == "char"
    assert found.characters == "".join(sorted(set(TEXT)))


def test_without_meta_the_ids_are_gpt2s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_ids(tmp_path / "nano", train=[50256, 1, 2, 3], val=[0, 5])
    dataset = open_dataset(folder)
    assert (dataset.manifest.tokenizer, dataset.manifest.vocab_size) == ("gpt2", 50257)
    assert dataset.tokens("train").tolist() == [50256, 1, 2, 3]
    assert dataset.bytes_per_token("train") is None
    assert sorted(dataset.manifest.sha256) == ["train.bin", "val.bin"]
    # Neither the folder nor the run has GPT-2's table: tiktoken finds it, or says that it cannot.
    run = tmp_path / "run"
    write_tokenizer(run, dataset)
    assert [path.name for path in run.iterdir()] == ["manifest.json"]
    asked: list[str] = []

    def small_table(fix: str) -> MergeRanks:
        asked.append(fix)
        return ranks_of(train_small_bpe())

    monkeypatch.setattr(tokenizers, "download_gpt2_ranks", small_table)
    for place in (folder, run):
        tokenizer = load_tokenizer(place)
        assert tokenizer.name == "gpt2"
        assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert len(asked) == 2
    assert "connect to the network once" in asked[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"itos": None, "stoi": None}, "gives no tokens, only their number"),
        ({"itos": {0: "ab", 1: "c", 2: "d"}, "stoi": {}}, "not single characters"),
        ({"itos": {0: b"a", 1: b"b", 2: b"c"}}, "not single characters"),
        ({"itos": {0: "a", 1: "\ud800", 2: "c"}}, "not single characters"),
        ({"itos": {0: "a", 1: ["b"], 2: "c"}}, "not single characters"),
        ({"itos": {0: "a", 1: "b", 3: "c"}}, "a token for each of 3 ids"),
        ({"itos": {0: "a", 1: "b"}}, "a token for each of 3 ids"),
        ({"itos": "abc"}, "a token for each of 3 ids"),
        ({"itos": {0: "a", 1: "b", 2: "b"}}, "one character for several ids"),
        ({"stoi": {"a": 0, "b": 2, "c": 1}}, "contradict each other"),
        ({"stoi": [0, 1, 2]}, "contradict each other"),
    ],
)
def test_ids_that_are_not_characters_are_numbers(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    write_meta(tmp_path, {**char_meta("abc"), **changes})
    dataset = open_dataset(write_ids(tmp_path, train=[0, 1, 2], val=[2]))
    assert (dataset.manifest.tokenizer, dataset.manifest.vocab_size) == ("ids", 3)
    assert dataset.manifest.text_bytes == {}
    assert reason in dataset.manifest.notes[1]
    write_tokenizer(tmp_path / "run", dataset)
    tokenizer = load_tokenizer(tmp_path / "run")
    assert tokenizer.decode(dataset.tokens("train")) == "0 1 2 "
    assert tokenizer.encode("0 1 2").tolist() == [0, 1, 2]


def test_a_list_of_characters_is_as_good_as_a_dict(tmp_path: Path) -> None:
    found = read_meta(write_meta(tmp_path, {"vocab_size": 3, "itos": ["c", "a", "b"]}))
    assert found.characters == "cab"


@pytest.mark.parametrize(
    "meta",
    [
        *([], "text", None, {}, {"vocab_size": None}, {"vocab_size": True}, {"vocab_size": 65.0}),
        *({"vocab_size": 0}, {"vocab_size": -1}, {"vocab_size": 65537}, {"vocab_size": 2**62}),
    ],
)
def test_a_meta_without_a_vocab_size_is_refused(tmp_path: Path, meta: Any) -> None:
    with pytest.raises(UserError, match=r"meta\.pkl gives no vocab_size between 1 and 65536: make it again"):
        read_meta(write_meta(tmp_path, meta))


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_folder_is_executed(tmp_path: Path) -> None:
    folder = write_char(tmp_path / "nano")
    write_meta(folder, {**char_meta(TEXT), "extra": Evil(tmp_path / "made")})
    for look in (open_dataset, read_manifest, load_tokenizer):
        with pytest.raises(
            UserError, match=r"meta\.pkl wants to call .*\.mkdir at byte .*nothing is ever executed"
        ):
            look(folder)
    assert not (tmp_path / "made").exists()


def test_numpys_numbers_are_refused_by_name(tmp_path: Path) -> None:
    path = write_meta(tmp_path, {"vocab_size": np.int64(65)})
    with pytest.raises(UserError, match=r"wants to call numpy\.\S+\.scalar at byte \d+; .*plain dict"):
        read_meta(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_meta_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("meta") / "meta.pkl"
    content = bytearray(pickle.dumps(char_meta("abc न"), data.draw(st.integers(0, 5))))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        outcome = read_meta(path).tokenizer
    except UserError as error:
        outcome = str(error)
    assert outcome in ("char", "ids") or str(path) in outcome


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    folder = write_ids(tmp_path / "nano", train=[], val=[1])
    (folder / "val.bin").write_bytes(b"123")
    (folder / "meta.pkl").write_bytes(b"junk")
    empty, odd, meta = problems_of(folder)
    assert "train.bin is empty: make it again" in empty
    assert "val.bin has 3 bytes, not a whole number of 16-bit ids" in odd
    assert "meta.pkl" in meta
    write_meta(folder, {"vocab_size": 5})
    (folder / "val.bin").unlink()
    write_ids(folder, train=[4, 5])
    missing, unknown = problems_of(folder)
    assert "val.bin is missing beside the other split" in missing
    assert "train.bin has the id 5, but meta.pkl says vocab_size 5" in unknown
    (folder / "meta.pkl").unlink()
    write_ids(folder, train=[50257], val=[50256])
    (problem,) = problems_of(folder)
    assert "has the id 50257, but GPT-2's end at 50256: put the meta.pkl that belongs to it" in problem


def test_what_is_not_a_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_ids(tmp_path / "nano", train=[1], val=[1])
    (folder / "val.bin").unlink()
    os.mkfifo(folder / "val.bin")
    os.mkfifo(folder / "meta.pkl")
    assert ["is not a file" in problem for problem in problems_of(folder)] == [True, True]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    folder = write_char(tmp_path / "nano")
    for name in ("meta.pkl", "train.bin"):
        (folder / name).chmod(0)
        assert f"{folder / name} cannot be read" in problems_of(folder)[0]


def test_a_changed_file_is_seen_by_verify(tmp_path: Path) -> None:
    dataset = open_dataset(write_char(tmp_path / "nano"))
    with (dataset.directory / "val.bin").open("r+b") as file:
        file.write(b"\1\0")
    with pytest.raises(UserError, match=r"val\.bin is not what was prepared"):
        verify(dataset)


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """Six gigabytes that take no room on the disk, and would take a while to read."""
    folder = write_char(tmp_path / "huge")
    with (folder / "train.bin").open("r+b") as file:
        file.truncate(6_000_000_000)
    return folder


def test_a_huge_file_is_opened_at_once(huge: Path) -> None:
    began = time.monotonic()
    dataset = open_dataset(huge)
    verify(dataset)
    assert time.monotonic() - began < 2
    assert sum(map(len, read_hashed_blocks(huge / "train.bin"))) < MIN_SAMPLED_BYTES / 10
    assert dataset.manifest.tokens["train"] == len(dataset.tokens("train")) == 3_000_000_000
    assert dataset.manifest.sha256["train.bin"].startswith(SAMPLED_PREFIX)
    assert not dataset.manifest.sha256["val.bin"].startswith(SAMPLED_PREFIX)
    assert any("train.bin is large" in note for note in dataset.manifest.notes)
    # All of the validation text was counted; of the training text only a part, which says nothing.
    assert dataset.bytes_per_token("train") is None
    assert (dataset.bytes_per_token("val") or 0) > 1
    write_tokenizer(huge / "run", dataset)
    assert read_manifest(huge / "run") == dataset.manifest


@pytest.mark.parametrize("place", [0, -2])
def test_a_sample_has_both_ends(huge: Path, place: int) -> None:
    dataset = open_dataset(huge)
    with (huge / "train.bin").open("r+b") as file:
        file.seek(place, os.SEEK_SET if place == 0 else os.SEEK_END)
        file.write(b"\xff\xff")
    with pytest.raises(UserError, match=r"train\.bin is not what was prepared"):
        verify(dataset)
    assert "train.bin has the id 65535" in problems_of(huge)[0]


def test_a_sample_knows_the_size(huge: Path) -> None:
    before = open_dataset(huge).manifest
    os.truncate(huge / "train.bin", 6_000_000_002)
    assert open_dataset(huge).manifest.sha256["train.bin"] != before.sha256["train.bin"]


@pytest.mark.parametrize(
    ("most", "dtype", "refused"),
    [(50_000, "<u4", True), (200_000, "<u4", True), (50_000, "<u2", False), (4, "<u2", False)],
)
def test_ids_of_another_width_are_not_learned_from(
    tmp_path: Path, most: int, dtype: str, refused: bool
) -> None:
    """Every second one would be 0, and nothing would say so."""
    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        (tmp_path / f"{split}.bin").write_bytes(draw.integers(0, most, 5000).astype(dtype).tobytes())
    write_meta(tmp_path, {"vocab_size": 65536})
    if refused:
        with pytest.raises(UserError, match="has 32-bit ids, it seems") as caught:
            open_dataset(tmp_path)
        assert len(caught.value.problems) == 2
    else:
        assert open_dataset(tmp_path).manifest.tokens == {"train": 5000, "val": 5000}


@pytest.mark.parametrize(
    ("magic", "version", "dtype", "fix"),
    [(20240520, 1, "<u2", r"cut it off,  tail -c \+1025"), (20240801, 7, "<u4", "32-bit ids")],
)
def test_a_header_is_not_learned_from(tmp_path: Path, magic: int, version: int, dtype: str, fix: str) -> None:
    """llm.c's and modded-nanogpt's shards; a meta.pkl with room for every id would let them through."""
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, 500
    for split in ("train", "val"):
        ids = np.arange(500, dtype=dtype).tobytes()
        (tmp_path / f"{split}.bin").write_bytes(header.tobytes() + ids)
    write_meta(tmp_path, {"vocab_size": 65536})
    with pytest.raises(UserError, match=fix) as caught:
        open_dataset(tmp_path)
    assert len(caught.value.problems) == 2
