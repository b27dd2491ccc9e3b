"""GPT-2's table reads the same from every layout, and a table in the wrong order is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_gpt2 import learn, write_layouts
from tiktoken.load import data_gym_to_mergeable_bpe_ranks, load_tiktoken_bpe

from glassgpt.data.ranks import PATTERN, RANKS_FILE, download_ranks, dump_ranks, parse_ranks, read_ranks
from glassgpt.errors import UserError


def test_every_layout_gives_tiktokens_own_reading(tmp_path: Path) -> None:
    folders = write_layouts(learn(), tmp_path)
    openai = folders[0]
    expected = data_gym_to_mergeable_bpe_ranks(str(openai / "vocab.bpe"), str(openai / "encoder.json"))
    assert len(expected) == 399
    for folder in folders:
        assert read_ranks(folder) == expected
    (tmp_path / RANKS_FILE).write_bytes(dump_ranks(expected))
    assert read_ranks(tmp_path) == expected


def test_the_stored_form_is_tiktokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    ranks = read_ranks(write_layouts(learn(), tmp_path)[0])
    (tmp_path / RANKS_FILE).write_bytes(dump_ranks(ranks))
    assert load_tiktoken_bpe(str(tmp_path / RANKS_FILE)) == ranks == parse_ranks(dump_ranks(ranks))


def test_the_pattern_is_tiktokens() -> None:
    from tiktoken_ext.openai_public import r50k_pat_str

    assert r50k_pat_str == PATTERN


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre_tokenizer": None}, "splits words as GPT-2 does"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "splits words as GPT-2 does"),
        ({"normalizer": {"type": "NFC"}}, "changes the text"),
        ({"model": {"type": "WordPiece", "vocab": {}}}, "splits words as GPT-2 does"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "first 256 tokens"),
        ({"model": 3}, "not a GPT-2 tokenizer"),
    ],
)
def test_another_kind_of_tokenizer_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_layouts(learn(), tmp_path)[2]
    edited(folder, **changes)
    with pytest.raises(UserError, match=message):
        read_ranks(folder)


def test_merges_in_another_order_than_the_ids_are_refused(tmp_path: Path) -> None:
    folder = write_layouts(learn(), tmp_path)[1]
    head, first, second, *rest = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    (folder / "merges.txt").write_text("\n".join([head, second, first, *rest]), encoding="utf-8")
    with pytest.raises(UserError, match="do not follow the order of the merges"):
        read_ranks(folder)


def test_damaged_or_missing_files_say_which_to_bring(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs encoder\.json and vocab\.bpe, or"):
        read_ranks(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="not a GPT-2 tokenizer"):
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
        download_ranks()
