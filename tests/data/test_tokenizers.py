"""Every tokenizer gives every text back, agrees with its reference, and streams without gaps."""

from __future__ import annotations

import codecs
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_gpt2 import CORPUS, small_bpe, small_hf_tokenizer, write_layouts

from glassgpt.data import tokenizers
from glassgpt.data.bpe import train_bpe
from glassgpt.data.bpe_table import GPT2_PATTERN
from glassgpt.data.dataset import open_dataset
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.data.tokenizer_json import require_tokenizer_in
from glassgpt.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    IdsTokenizer,
    Tokenizer,
    encode_prompt,
    load_tokenizer,
    tokenizer_problem,
    write_tokenizer,
)
from glassgpt.errors import UserError

few = settings(max_examples=80, deadline=None)
HINDI, ARABIC, EMOJI = "नमस्ते, दुनिया!", "مرحبا بالعالم ١٢٣", "👩‍👩‍👧 🇮🇳 🦊\u200d"
# Blanks of every kind that a word pattern may see differently, beside letters, digits and marks.
boundary_texts = st.text("aZ1'.sé字अ🦊 \n\t\r\x0b\x1c\x1f\x85\xa0\u3000\u2028\u200b\ufeff\u180e", max_size=40)


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
@given(st.one_of(st.text(), boundary_texts))
@example("".join(CORPUS))
@example(HINDI + " " + ARABIC + EMOJI)
def test_bpe_ids_are_the_tokenizers_librarys(text: str) -> None:
    assert (
        small_bpe().encode(text).tolist() == small_hf_tokenizer().encode(text, add_special_tokens=False).ids
    )


def test_every_layout_encodes_alike(tmp_path: Path) -> None:
    text = "".join(CORPUS)
    expected = small_hf_tokenizer().encode(text).ids
    for folder in write_layouts(small_hf_tokenizer(), tmp_path):
        assert require_tokenizer_in(folder, "", "").encode(text).tolist() == expected


def test_a_literal_end_of_text_is_ordinary_text() -> None:
    tokenizer = small_bpe()
    ids = tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.eot == 399
    assert tokenizer.eot not in ids
    assert tokenizer.decode(ids) == "a<|endoftext|>b"
    assert tokenizer.decode([tokenizer.eot]) == "<|endoftext|>"


def every_tokenizer() -> list[Tokenizer]:
    characters = "".join(sorted(set(HINDI + ARABIC + EMOJI))) + "\ud800\udfff"
    return [CharTokenizer(characters), ByteTokenizer(), small_bpe(), IdsTokenizer(300)]


@few
@given(st.data())
def test_text_streamed_token_by_token_is_the_text(data: st.DataObject) -> None:
    for tokenizer in every_tokenizer():
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
        assert b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace") == tokenizer.decode(ids)
        stream = codecs.getincrementaldecoder("utf-8")(errors="replace")
        pieces = [stream.decode(tokenizer.token_bytes(i)) for i in np.array(ids, dtype=np.int64)]
        assert "".join([*pieces, stream.decode(b"", final=True)]) == tokenizer.decode(ids)


@few
@given(st.lists(st.integers(0, 299), max_size=20))
def test_ids_are_their_own_text(ids: list[int]) -> None:
    tokenizer = IdsTokenizer(300)
    assert tokenizer.encode(tokenizer.decode(ids)).tolist() == ids
    assert tokenizer.encode(" ".join(map(str, ids)) + "\n").tolist() == ids
    assert tokenizer.encode("").dtype == np.int64


def test_what_is_not_an_id_is_refused(subtests: pytest.Subtests) -> None:
    for word in ("300", "-1", "1.5", "one", "1,2", "١٢", "9" * 5000, "1e1", "0x1"):
        with (
            subtests.test(word),
            pytest.raises(UserError, match=r"is not an id: write numbers from 0 to 299 with blanks between"),
        ):
            IdsTokenizer(300).encode(f"1 2 {word}")


def test_a_prompt_may_name_the_end_of_text() -> None:
    bpe = small_bpe()
    dog, fox = bpe.encode("the dog").tolist(), bpe.encode(" fox").tolist()
    assert encode_prompt(bpe, "the dog<|endoftext|> fox").tolist() == [*dog, bpe.eot, *fox]
    assert encode_prompt(bpe, "<|endoftext|>").tolist() == [bpe.eot]
    assert encode_prompt(bpe, "<|endoftext|><|endoftext|>the dog").tolist() == [bpe.eot, bpe.eot, *dog]
    assert encode_prompt(bpe, "the dog").tolist() == dog
    assert encode_prompt(bpe, "").tolist() == []
    # These have no such token: to them it is text like any other, or none at all.
    assert ByteTokenizer().decode(encode_prompt(ByteTokenizer(), "<|endoftext|>")) == "<|endoftext|>"
    with pytest.raises(UserError):
        encode_prompt(CharTokenizer("abc"), "<|endoftext|>")


@few
@given(st.text(max_size=40))
@example("a<|endoftext|>\n\n<|endoftext|> b")
def test_prompts_are_tiktokens(text: str) -> None:
    import tiktoken

    bpe = small_bpe()
    ends = {"<|endoftext|>": bpe.eot}
    reference = tiktoken.Encoding("x", pat_str=GPT2_PATTERN, mergeable_ranks=bpe.ranks, special_tokens=ends)
    assert encode_prompt(bpe, text).tolist() == reference.encode(text, allowed_special=set(ends))


def test_learning_is_repeatable_and_ends_with_the_separator() -> None:
    first, second = (train_bpe(CORPUS * 3, 300) for _ in range(2))
    assert first.files == second.files
    assert first.vocab_size == 300
    assert first.eot == 299
    assert first.encode("the dog").size < len("the dog")


@pytest.mark.parametrize("early", [False, True])
def test_learning_obeys_ctrl_c(monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    def endless() -> Iterator[str]:
        for i in itertools.count():
            if i == 1000:
                os.kill(os.getpid(), signal.SIGINT)
            assert i < 5_000_000, "it did not stop"
            yield "the dog "

    submit = ThreadPoolExecutor.submit

    def submit_slowly(pool: ThreadPoolExecutor, *call: Any) -> Future[Any]:
        learning = submit(pool, *call)
        time.sleep(0.5 if early else 0)  # the signal comes meanwhile
        return learning

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_slowly)
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


def test_unknown_tokenizers(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("bpe:256", "at least 257"),
        ("bpe", "did you mean bpe:8192"),
        ("chr", "did you mean char"),
        ("gpt-2", "did you mean gpt2"),
        ("zzz", "Use auto, char, byte, gpt2 or bpe:N"),
        ("bpe:99999999999999", "unknown"),
        ("bpe:999999999", "at most 1,048,576"),  # would end the process, without a word from Python
        ("", "unknown"),
    ]
    for name, message in cases:
        with subtests.test(name):
            assert message in (tokenizer_problem(name) or "")
    assert tokenizer_problem("bpe:257") is None


@pytest.mark.parametrize("kind", ["char", "byte", "gpt2", "bpe:300"])
def test_a_run_folder_carries_its_tokenizer(tmp_path: Path, kind: str) -> None:
    text = "".join(CORPUS).replace("\r\n", "\n")
    (tmp_path / "t.txt").write_text(text, encoding="utf-8", newline="")
    files = str(write_layouts(small_hf_tokenizer(), tmp_path / "files")[0]) if kind == "gpt2" else ""
    options = PrepareOptions(
        str(tmp_path / "t.txt"), tokenizer=kind, tokenizer_files=files, out_dir=str(tmp_path / "out")
    )
    prepare(options, print_line=lambda line: None)
    run = tmp_path / "run"
    for _ in range(2):  # a resumed run writes it again
        write_tokenizer(run, open_dataset(tmp_path / "out"))
    carried_files = [path for path in run.iterdir() if path.name != "manifest.json"]
    assert len(carried_files) == (0 if kind in ("char", "byte") else 1)
    original, carried = load_tokenizer(tmp_path / "out"), load_tokenizer(run)
    assert carried.name == kind
    assert carried.encode(text).tolist() == original.encode(text).tolist()
    assert carried.decode(carried.encode(text)) == text
    for file in carried_files:
        file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
        with pytest.raises(UserError, match="missing or damaged"):
            load_tokenizer(run)
        file.unlink()
        with pytest.raises(UserError, match="missing or damaged"):
            load_tokenizer(run)


def test_a_damaged_tokenizer_is_not_carried_along(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("".join(CORPUS), encoding="utf-8")
    out = tmp_path / "out"
    prepare(
        PrepareOptions(str(tmp_path / "t.txt"), tokenizer="bpe:300", out_dir=str(out)),
        print_line=lambda _: None,
    )
    dataset = open_dataset(out)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/run cannot be written to \(Not a directory\)"):
        write_tokenizer(tmp_path / "file" / "run", dataset)
    (out / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="missing or damaged"):
        write_tokenizer(tmp_path / "run", dataset)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_leaves_no_half_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.txt").write_text("".join(CORPUS), encoding="utf-8")
    out, run = tmp_path / "out", tmp_path / "run"
    prepare(
        PrepareOptions(str(tmp_path / "t.txt"), tokenizer="bpe:300", out_dir=str(out)),
        print_line=lambda _: None,
    )
    written: list[int] = []

    def full(path: Path, content: bytes) -> int:
        written.append(len(content))
        with path.open("wb") as file:
            file.write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match="No space left on device"):
        write_tokenizer(run, open_dataset(out))
    assert written
    assert not any(run.iterdir())


def test_a_table_that_the_manifest_names_is_never_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.txt").write_text("".join(CORPUS), encoding="utf-8")
    out, files = tmp_path / "out", str(write_layouts(small_hf_tokenizer(), tmp_path / "files")[0])
    options = PrepareOptions(
        str(tmp_path / "t.txt"), tokenizer="gpt2", tokenizer_files=files, out_dir=str(out)
    )
    prepare(options, print_line=lambda line: None)
    (out / "gpt2.tiktoken").unlink()
    monkeypatch.setattr(tokenizers, "download_gpt2_ranks", lambda fix: pytest.fail("asked for a download"))
    with pytest.raises(UserError, match="missing or damaged"):
        load_tokenizer(out)
