"""Every tokenizer gives every text back, agrees with its reference, and streams without a seam."""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_gpt2 import CORPUS, learn, write_layouts
from tokenizers import Tokenizer as LibraryTokenizer

from glassgpt.data.prepare import PrepareOptions, prepare
from glassgpt.data.ranks import parse_tokenizer_json
from glassgpt.data.tokenizers import (
    BytePairTokenizer,
    ByteTokenizer,
    CharTokenizer,
    gpt2_tokenizer,
    load_tokenizer,
    tokenizer_files,
    tokenizer_problem,
    train_bpe,
)
from glassgpt.errors import UserError

few = settings(max_examples=80, deadline=None)
HINDI, ARABIC, EMOJI = "नमस्ते, दुनिया!", "مرحبا بالعالم ١٢٣", "👩‍👩‍👧 🇮🇳 🦊\u200d"
# Blanks of every kind that a word pattern may see differently, beside letters, digits and marks.
seams = st.text("aZ1'.sé字अ🦊 \n\t\r\x0b\x1c\x1f\x85\xa0\u3000\u2028\u200b\ufeff\u180e", max_size=40)


@functools.cache
def library() -> LibraryTokenizer:
    return learn()


@functools.cache
def small_bpe() -> BytePairTokenizer:
    return gpt2_tokenizer(parse_tokenizer_json(library().to_str().encode()))


@few
@given(st.text())
@example(HINDI + ARABIC + EMOJI)
@example("")
@example("a\r\nb\n\r\t\x00\u2028")
def test_every_text_comes_back(text: str) -> None:
    for tokenizer in (CharTokenizer("".join(sorted(set(text)))), ByteTokenizer(), small_bpe()):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int64
        assert ((ids >= 0) & (ids < tokenizer.vocab_size)).all()
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(ids.tolist()) == text


@few
@given(st.text(min_size=1))
def test_char_is_nanogpts_dictionary(text: str) -> None:
    characters = sorted(set(text))
    ids = {character: i for i, character in enumerate(characters)}
    assert CharTokenizer("".join(characters)).encode(text).tolist() == [ids[c] for c in text]


def test_char_shows_what_it_does_not_know() -> None:
    tokenizer = CharTokenizer("abc")
    with pytest.raises(UserError, match=re.escape("has no '\\n', 'd', 'न'")):
        tokenizer.encode("abcd\nनabc")
    with pytest.raises(UserError) as caught:
        tokenizer.encode("".join(map(chr, range(0x900, 0x930))))
    assert str(caught.value).count("'") == 20
    assert ", ..." in str(caught.value)
    with pytest.raises(UserError):
        CharTokenizer("").encode("a")


def test_bytes_that_are_not_text_decode_to_a_replacement() -> None:
    assert ByteTokenizer().decode([0xFF, 0x41]) == "\ufffdA"


@few
@given(st.one_of(st.text(), seams))
@example("".join(CORPUS))
@example(HINDI + " " + ARABIC + EMOJI)
def test_bpe_ids_are_the_tokenizers_librarys(text: str) -> None:
    assert small_bpe().encode(text).tolist() == library().encode(text, add_special_tokens=False).ids


def test_every_layout_encodes_alike(tmp_path: Path) -> None:
    from glassgpt.data.ranks import read_ranks

    text = "".join(CORPUS)
    expected = library().encode(text).ids
    for folder in write_layouts(library(), tmp_path):
        assert gpt2_tokenizer(read_ranks(folder)).encode(text).tolist() == expected


def test_a_literal_end_of_text_is_ordinary_text() -> None:
    tokenizer = small_bpe()
    ids = tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.eot == 399
    assert tokenizer.eot not in ids
    assert tokenizer.decode(ids) == "a<|endoftext|>b"
    assert tokenizer.decode([tokenizer.eot]) == "<|endoftext|>"


def test_learning_is_repeatable_and_ends_with_the_separator() -> None:
    first, second = (train_bpe(CORPUS * 3, 300) for _ in range(2))
    assert first.files == second.files
    assert first.vocab_size == 300
    assert first.eot == 299
    assert first.encode("the dog").size < len("the dog")


def test_learning_obeys_ctrl_c() -> None:
    def endless() -> Iterator[str]:
        for i in itertools.count():
            if i == 1000:
                os.kill(os.getpid(), signal.SIGINT)
            yield "the dog "

    with pytest.raises(KeyboardInterrupt):
        train_bpe(endless(), 300)


def test_a_text_that_cannot_be_read_stops_the_learning() -> None:
    def broken() -> Iterator[str]:
        yield "the dog "
        raise UserError("the disk is gone")

    with pytest.raises(UserError, match="the disk is gone"):
        train_bpe(broken(), 300)


def test_a_small_text_yields_fewer_tokens() -> None:
    assert train_bpe(["ab"], 5000).vocab_size == 258
    assert train_bpe(["abab"], 257).vocab_size == 257


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bpe:256", "at least 257"),
        ("bpe", "did you mean bpe:8192"),
        ("chr", "did you mean char"),
        ("gpt-2", "did you mean gpt2"),
        ("zzz", "Use auto, char, byte, gpt2 or bpe:N"),
        ("bpe:99999999999999", "unknown"),
        ("", "unknown"),
    ],
)
def test_unknown_tokenizers(name: str, message: str) -> None:
    assert message in (tokenizer_problem(name) or "")
    assert tokenizer_problem("bpe:257") is None


@pytest.mark.parametrize("kind", ["char", "byte", "gpt2", "bpe:300"])
def test_a_run_folder_carries_its_tokenizer(tmp_path: Path, kind: str) -> None:
    text = "".join(CORPUS)
    (tmp_path / "t.txt").write_text(text, encoding="utf-8", newline="")
    files = str(write_layouts(library(), tmp_path / "files")[0]) if kind == "gpt2" else ""
    options = PrepareOptions(
        str(tmp_path / "t.txt"), tokenizer=kind, tokenizer_files=files, out_dir=str(tmp_path / "out")
    )
    prepare(options, say=lambda line: None)
    run = tmp_path / "run"
    run.mkdir()
    copied = [shutil.copy(path, run) for path in tokenizer_files(tmp_path / "out")]
    assert len(copied) == (1 if kind in ("char", "byte") else 2)
    original, carried = load_tokenizer(tmp_path / "out"), load_tokenizer(run)
    assert carried.name == kind
    assert carried.encode(text).tolist() == original.encode(text).tolist()
    assert carried.decode(carried.encode(text)) == text
    if len(copied) == 2:
        file = Path(copied[1])
        file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
        with pytest.raises(UserError, match="missing or damaged"):
            load_tokenizer(run)
        file.unlink()
        with pytest.raises(UserError, match="missing or damaged"):
            load_tokenizer(run)
