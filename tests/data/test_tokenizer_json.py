"""Our tokenizers through Hugging Face's file: the same ids there, and the same tokenizer when read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_gpt2 import CORPUS, learn, write_layouts
from tokenizers import Tokenizer as Library

from glassgpt.data.ranks import parse_tokenizer_json
from glassgpt.data.tokenizer_json import dump_tokenizer, parse_tokenizer, same_tokens, tokenizer_beside
from glassgpt.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    IdsTokenizer,
    Tokenizer,
    gpt2_tokenizer,
    train_bpe,
)
from glassgpt.errors import UserError

TEXT = "".join(CORPUS) + "a\r\nb\x00c\u2028d\u0301 \u00a0\u3000e\ufffdf"
CHARACTERS = "".join(sorted(set(TEXT)))
OURS: list[Tokenizer] = [
    CharTokenizer(CHARACTERS),
    ByteTokenizer(),
    gpt2_tokenizer(parse_tokenizer_json(learn().to_str().encode())),
    train_bpe(CORPUS, 330),
]
LIBRARIES = [Library.from_str(dump_tokenizer(tokenizer).decode()) for tokenizer in OURS]
pairs = pytest.mark.parametrize(
    ("ours", "theirs"), list(zip(OURS, LIBRARIES, strict=True)), ids=[tokenizer.name for tokenizer in OURS]
)


@pairs
@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from(CHARACTERS), max_size=60))
def test_any_text_gets_the_same_ids_and_comes_back(ours: Tokenizer, theirs: Library, text: str) -> None:
    ids = ours.encode(text).tolist()
    assert theirs.encode(text).ids == ids
    assert theirs.decode(ids, skip_special_tokens=False) == text == ours.decode(ids)


@pairs
def test_all_of_the_vocabulary_is_there(ours: Tokenizer, theirs: Library) -> None:
    assert theirs.get_vocab_size() == ours.vocab_size
    assert theirs.token_to_id("<|endoftext|>") == ours.eot
    if ours.eot is not None:  # in a text it is that token there, as in every file of Hugging Face's
        assert theirs.encode("a<|endoftext|>b").ids[1] == ours.eot


@pairs
def test_the_file_is_read_back_as_the_same_tokenizer(ours: Tokenizer, theirs: Library) -> None:
    assert theirs is not None
    again = parse_tokenizer(dump_tokenizer(ours))
    assert same_tokens(again, ours)
    assert type(again) is type(ours)
    assert again.encode(TEXT).tolist() == ours.encode(TEXT).tolist()


def test_merges_found_from_ranks_are_those_that_were_learned() -> None:
    learned = json.loads(learn().to_str())
    made = json.loads(dump_tokenizer(OURS[2]))
    assert [list(merge) for merge in learned["model"]["merges"]] == made["model"]["merges"]
    assert made["model"]["vocab"] | {"<|endoftext|>": 399} == learned["model"]["vocab"] | {
        "<|endoftext|>": 399
    }


def test_a_character_that_is_not_there_is_an_error_there_too() -> None:
    with pytest.raises(Exception, match="WordLevel error"):
        LIBRARIES[0].encode("\u4e2d")


def test_ids_are_numbers_between_blanks() -> None:
    ours = IdsTokenizer(30)
    theirs = Library.from_str(dump_tokenizer(ours).decode())
    assert theirs.encode("0 12  29").ids == ours.encode("0 12  29").tolist() == [0, 12, 29]
    assert theirs.decode([0, 12]) == "0 12"
    assert parse_tokenizer(dump_tokenizer(ours)) == ours


def test_tokens_are_the_same_only_if_each_is() -> None:
    assert same_tokens(CharTokenizer("abc"), CharTokenizer("abc"))
    assert not same_tokens(CharTokenizer("abc"), CharTokenizer("acb"))
    assert not same_tokens(CharTokenizer("abc"), CharTokenizer("abcd"))
    assert not same_tokens(OURS[2], train_bpe([TEXT.swapcase()], 400))
    assert not same_tokens(OURS[1], CharTokenizer("".join(map(chr, range(256)))))


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"type": "WordLevel", "vocab": {"a": 1}}},
        {"model": {"type": "WordLevel", "vocab": {"ab": 0}}},
        {"model": {"type": "Unigram", "vocab": []}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"model": {}},
    ],
    ids=str,
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    document = json.loads(dump_tokenizer(OURS[0])) | change
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"--init_from .* is not a GPT-2 tokenizer"):
        tokenizer_beside(tmp_path, "--init_from")


def test_every_layout_of_gpt2s_files_is_found(tmp_path: Path) -> None:
    for folder in write_layouts(learn(), tmp_path):
        assert same_tokens(tokenizer_beside(folder, "--init_from"), OURS[2])
