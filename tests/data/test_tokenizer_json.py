"""Our tokenizers through Hugging Face's file: the same ids there, and the same tokenizer when read back."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_gpt2 import CORPUS, ranks_of, train_small_bpe, write_layouts
from tokenizers import Tokenizer as Library

from glassgpt.data.bpe import HuggingFaceBpeTokenizer, gpt2_tokenizer, train_bpe
from glassgpt.data.bpe_table import download_gpt2_ranks
from glassgpt.data.tokenizer_json import dump_tokenizer, parse_tokenizer, require_tokenizer_in, same_tokenizer
from glassgpt.data.tokenizers import (
    GPT2_TOKENIZER_DIGEST,
    ByteTokenizer,
    CharTokenizer,
    IdsTokenizer,
    Tokenizer,
    tokenizer_digest,
)
from glassgpt.errors import UserError

TEXT = "".join(CORPUS) + "a\r\nb\x00c\u2028d\u0301 \u00a0\u3000e\ufffdf"
CHARACTERS = "".join(sorted(set(TEXT)))
OURS: list[Tokenizer] = [
    CharTokenizer(CHARACTERS),
    ByteTokenizer(),
    gpt2_tokenizer(ranks_of(train_small_bpe())),
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
    assert same_tokenizer(again, ours)
    assert type(again) is type(ours)
    assert again.encode(TEXT).tolist() == ours.encode(TEXT).tolist()


def test_merges_found_from_ranks_are_those_that_were_learned() -> None:
    learned = json.loads(train_small_bpe().to_str())
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
    assert same_tokenizer(CharTokenizer("abc"), CharTokenizer("abc"))
    assert not same_tokenizer(CharTokenizer("abc"), CharTokenizer("acb"))
    assert not same_tokenizer(CharTokenizer("abc"), CharTokenizer("abcd"))
    assert not same_tokenizer(OURS[2], train_bpe([TEXT.swapcase()], 400))
    assert not same_tokenizer(OURS[1], CharTokenizer("".join(map(chr, range(256)))))


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
    with pytest.raises(UserError, match=r"--init_from .*tokenizer\.json .*: take another"):
        require_tokenizer_in(tmp_path, "--init_from", "take another")


def test_every_layout_of_gpt2s_files_is_found(tmp_path: Path) -> None:
    for folder in write_layouts(train_small_bpe(), tmp_path):
        assert same_tokenizer(require_tokenizer_in(folder, "--init_from", "take another"), OURS[2])


# --- any numbering ---


def numbered(seed: int) -> dict[str, Any]:
    """A file with its ids in any order and with holes, special tokens anywhere, and another added token."""
    rng = random.Random(seed)
    document: dict[str, Any] = json.loads(train_small_bpe(330).to_str())
    special = document["added_tokens"][0]
    vocab = document["model"]["vocab"] | {"<|endoftext|>": 0, "<pad>": 0}
    ids = rng.sample([id for id in range(400) if id != len(vocab)], len(vocab))
    document["model"]["vocab"] = dict(zip(vocab, ids, strict=True))
    tokens = [("<|endoftext|>", True), ("<pad>", True), ("dog", False)]
    document["added_tokens"] = [special | {"content": c, "special": s} for c, s in tokens]
    document["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    return document


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.text(st.sampled_from(CHARACTERS), max_size=60))
def test_any_numbering_gives_the_librarys_ids(seed: int, text: str) -> None:
    document = numbered(seed)
    ours = parse_tokenizer(json.dumps(document).encode())
    assert isinstance(ours, HuggingFaceBpeTokenizer)
    theirs = Library.from_str(json.dumps(document | {"truncation": None}))
    again = pickle.loads(pickle.dumps(ours))  # noqa: S301  as a worker gets it
    for some in (text, "the dog, <pad> the dog<n>", TEXT):
        theirs.encode_special_tokens = True
        ids = theirs.encode(some).ids
        assert ours.encode(some).tolist() == ids == again.encode(some).tolist()
        assert ours.decode(ids) == some
    assert ours.eot == theirs.token_to_id("<|endoftext|>")
    assert ours.vocab_size == max(theirs.get_vocab().values()) + 1
    together, lengths = ours.encode_documents([text, "", "a<|endoftext|>b"])
    parts = np.split(together, np.cumsum(lengths)[:-1])
    assert [ours.decode(part[:-1]) for part in parts] == [text, "", "a<|endoftext|>b"]
    assert [part[-1] for part in parts] == [ours.eot] * 3
    assert ours.token_bytes(next(id for id in range(400) if id not in ours.bytes_by_id)) == b""


def test_a_numbering_is_its_content() -> None:
    document = numbered(0)
    one = parse_tokenizer(json.dumps(document).encode())
    vocab = dict(reversed(document["model"]["vocab"].items()))
    written_otherwise = document | {"model": document["model"] | {"vocab": vocab}}
    assert same_tokenizer(parse_tokenizer(json.dumps(written_otherwise, indent=1).encode()), one)
    for key, value in (("a", vocab["b"]), ("b", vocab["a"])):
        vocab[key] = value
    assert not same_tokenizer(parse_tokenizer(json.dumps(written_otherwise).encode()), one)
    assert not same_tokenizer(parse_tokenizer(json.dumps(numbered(1)).encode()), one)


def test_gpt2s_own_digest_is_of_its_table() -> None:
    """nanoGPT's folders have no table; another one of that name is told from OpenAI's all the same."""
    assert tokenizer_digest(OURS[2]) != GPT2_TOKENIZER_DIGEST
    if not os.environ.get("TIKTOKEN_CACHE_DIR"):
        pytest.skip("GPT-2's table is needed: set TIKTOKEN_CACHE_DIR to a folder that tiktoken keeps it in")
    assert tokenizer_digest(gpt2_tokenizer(download_gpt2_ranks())) == GPT2_TOKENIZER_DIGEST
