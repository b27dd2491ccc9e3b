"""GPT-2's table reads the same from every layout; a table in another order is none for tiktoken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_gpt2 import train_small_bpe, write_layouts
from tiktoken.load import data_gym_to_mergeable_bpe_ranks, load_tiktoken_bpe
from tokenizers import Tokenizer as Library

from glassgpt.data.bpe import BytePairTokenizer, gpt2_tokenizer
from glassgpt.data.bpe_table import (
    GPT2_PATTERN,
    TIKTOKEN_FILE,
    MergeRanks,
    bytes_to_unicode,
    download_gpt2_ranks,
    dump_ranks,
    parse_ranks,
    parse_tokenizer_json,
)
from glassgpt.data.tokenizer_json import require_tokenizer_in
from glassgpt.errors import UserError


def read_ranks(folder: Path) -> MergeRanks:
    found = require_tokenizer_in(folder, "--tokenizer_files", "bring GPT-2's")
    assert isinstance(found, BytePairTokenizer)
    return found.ranks


def test_every_layout_gives_tiktokens_own_reading(tmp_path: Path) -> None:
    folders = write_layouts(train_small_bpe(), tmp_path)
    openai = folders[0]
    expected = data_gym_to_mergeable_bpe_ranks(str(openai / "vocab.bpe"), str(openai / "encoder.json"))
    assert len(expected) == 399
    for folder in folders:
        assert read_ranks(folder) == expected
    (tmp_path / TIKTOKEN_FILE).write_bytes(dump_ranks(expected))
    assert read_ranks(tmp_path) == expected


def test_the_stored_form_is_tiktokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    ranks = read_ranks(write_layouts(train_small_bpe(), tmp_path)[0])
    (tmp_path / TIKTOKEN_FILE).write_bytes(dump_ranks(ranks))
    assert load_tiktoken_bpe(str(tmp_path / TIKTOKEN_FILE)) == ranks == parse_ranks(dump_ranks(ranks))


def test_the_pattern_is_tiktokens() -> None:
    from tiktoken_ext.openai_public import r50k_pat_str

    assert r50k_pat_str == GPT2_PATTERN


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    folder = write_layouts(train_small_bpe(), tmp_path)[2]
    original = (folder / "tokenizer.json").read_text()
    model = json.loads(original)["model"]
    split = {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"pre_tokenizer": None}, "splits words"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "splits words"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}}, "splits words"),
        ({"normalizer": {"type": "NFC"}}, "normalizer"),
        ({"model": {"type": "WordPiece", "vocab": {}}}, "WordPiece"),
        ({"model": {"type": "Unigram", "vocab": []}}, "Unigram"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "256 of the 256 bytes"),
        ({"model": model | {"dropout": 0.1}}, "dropout"),
        ({"model": model | {"end_of_word_suffix": "</w>"}}, "end_of_word_suffix"),
        ({"model": model | {"vocab": model["vocab"] | {"\u2581the": 900}}}, "alphabet"),
        ({"model": model | {"vocab": model["vocab"] | {"the": 5}}}, "same id"),
        ({"model": model | {"merges": [["q", "zz"]]}}, "out of vocabulary"),
        ({"model": 3}, "TypeError"),
    ]
    for changes, reason in refused:
        (folder / "tokenizer.json").write_text(original)
        edited(folder, **changes)
        with pytest.raises(UserError, match=rf"--tokenizer_files .*{reason}"):
            read_ranks(folder)
    (folder / "tokenizer.json").write_text(original)
    (folder / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    with pytest.raises(UserError, match="add_prefix_space"):
        read_ranks(folder)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_table_is_tiktokens_only_if_its_merges_are(data: st.DataObject) -> None:
    """Merges made up at random: some can never be reached, and then tiktoken would merge differently."""
    tokens = [*"abc"]
    merges: list[list[str]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        first, second = data.draw(st.tuples(st.sampled_from(tokens), st.sampled_from(tokens)))
        if first + second not in tokens:
            merges.append([first, second])
            tokens.append(first + second)
    document = json.loads(train_small_bpe(258).to_str())
    bytes_first = {character: byte for byte, character in enumerate(bytes_to_unicode())}
    made = {first + second: 256 + i for i, (first, second) in enumerate(merges)}
    document["model"] |= {"vocab": bytes_first | made, "merges": merges}
    document["added_tokens"][0]["id"] = 256 + len(merges)
    content = json.dumps(document)
    ranks, library = parse_tokenizer_json(content.encode()).ranks, Library.from_str(content)
    texts = data.draw(st.lists(st.text("abc", min_size=1, max_size=12), min_size=5, max_size=5)) + tokens
    if ranks is not None:
        ours = gpt2_tokenizer(ranks)
        for text in texts:
            assert ours.encode(text).tolist() == library.encode(text).ids


def test_a_merge_that_is_never_reached_is_not_given_to_tiktoken() -> None:
    document = json.loads(train_small_bpe(258).to_str())
    bytes_first = {character: byte for byte, character in enumerate(bytes_to_unicode())}
    document["model"] |= {
        "vocab": bytes_first | {"ab": 256, "bc": 257, "abc": 258},
        "merges": [["a", "b"], ["b", "c"], ["a", "bc"]],  # but of "abc" the first two merge first
    }
    document["added_tokens"][0]["id"] = 259
    assert parse_tokenizer_json(json.dumps(document).encode()).ranks is None
    document["model"]["merges"][2] = ["ab", "c"]
    assert parse_tokenizer_json(json.dumps(document).encode()).ranks is not None


def test_damaged_or_missing_files_say_which_to_bring(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs encoder\.json and vocab\.bpe, or"):
        read_ranks(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="JSONDecodeError"):
        read_ranks(tmp_path)
    for content in (b"QQ== x", b"!", b"QQ== 0"):
        with pytest.raises(ValueError, match=r".+"):
            parse_ranks(content)


def test_without_a_network_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import tiktoken_ext.openai_public

    def no_network() -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(tiktoken_ext.openai_public, "gpt2", no_network)
    with pytest.raises(UserError, match=r"ConnectionError.*--tokenizer_files FOLDER"):
        download_gpt2_ranks()
