"""Hindi and Arabic: every byte comes back, no form of a character is turned into another."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from corpora import prepare_dataset, texts_in, write_json_lines
from small_gpt2 import train_small_bpe
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, trainers

from glassgpt.data.bpe import BytePairTokenizer, train_bpe
from glassgpt.data.bpe_table import GPT2_PATTERN
from glassgpt.data.tokenizers import load_folder_bpe, load_tokenizer

HINDI = [
    "काँच का घर वह है जिसका हर कमरा दरवाज़े से दिखाई देता है।",
    "मॉडल ने पाँच सौ चरणों के बाद धीमा होना शुरू किया, पर कारण मूल्यांकन था।",
    "हानि १.७६ से घटकर ०.६२ हुई; क्या यह अच्छा है?",
    "क्\u200dष और क्ष में एक अदृश्य जोड़क का अंतर है।",  # with a zero-width joiner, and without
]
ARABIC = [
    "البيت الزجاجي هو الذي تُرى كل غرفه من الباب.",
    "تباطأ التدريب بعد خمسمئة خطوة، وكان السبب هو التقييم.",
    "انخفضت الخسارة من ١٫٧٦ إلى ٠٫٦٢؛ فهل هذا جيد؟",
    "السَّلَامُ عَلَيْكُمْ ـ بالتشكيل والتطويل",
    "ﷺ ﻻ لا",  # a ligature's own character, and the two letters it stands for
]
# One letter, two spellings: normalising would make them one.
FORMS = ["\u0958 \u0915\u093c", "\u00e9 e\u0301", "\u0622 \u0627\u0653", "\u200fمرحبا\u200e"]
TEXTS = [f"{i}. {a} {b}" for i in range(12) for a in HINDI + ARABIC for b in FORMS]


@pytest.mark.parametrize("tokenizer", ["bpe:600", "byte"])
def test_hindi_and_arabic_come_back_to_the_byte(tmp_path: Path, tokenizer: str) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    dataset = prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", tokenizer=tokenizer)
    if tokenizer == "byte":
        parts = [np.asarray(dataset.tokens(split)).astype(np.uint8).tobytes() for split in ("train", "val")]
        back = [text for part in parts for text in part.decode().removesuffix("\n").split("\n")]
    else:
        back = texts_in(dataset, "train") + texts_in(dataset, "val")
    assert sorted(back) == sorted(TEXTS)
    loaded = load_tokenizer(tmp_path / "out")
    for text in TEXTS:
        assert loaded.decode(loaded.encode(text)) == text
    assert any(unicodedata.normalize("NFC", text) != text for text in TEXTS)
    assert any(unicodedata.normalize("NFKC", text) != text for text in ARABIC)


def test_bytes_per_token_are_told(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    bytes_per_token = {}
    for tokenizer in ("byte", "bpe:600"):
        dataset = prepare_dataset(
            tmp_path / "a.jsonl", tmp_path / tokenizer.replace(":", ""), tokenizer=tokenizer
        )
        manifest = json.loads((dataset.directory / "manifest.json").read_text(encoding="utf-8"))
        bytes_per_token[tokenizer] = manifest["bytes_per_token"]["train"]
        text_bytes = sum(len(text.encode()) for text in texts_of(dataset.directory))
        assert bytes_per_token[tokenizer] == pytest.approx(text_bytes / len(dataset.tokens("train")))
    assert bytes_per_token["byte"] == 1.0
    assert bytes_per_token["bpe:600"] > 3.0  # two or three bytes a letter, and some letters to a token


def texts_of(folder: Path) -> list[str]:
    """The training documents; of `byte` with the newline after each, which counts as text there."""
    from glassgpt.data.dataset import open_dataset

    dataset = open_dataset(folder)
    if dataset.manifest.tokenizer == "byte":
        return [np.asarray(dataset.tokens("train")).astype(np.uint8).tobytes().decode()]
    return texts_in(dataset, "train")


def test_marks_stay_with_their_letters() -> None:
    """A word is a word in every script: no cut before a vowel sign, a virama, a tone, a point, an accent."""
    learned = train_bpe(TEXTS, 300)
    library = Library.from_str(learned.files["tokenizer.json"].decode())
    assert library.pre_tokenizer is not None
    texts = {
        "हिन्दी में लिखी किताबें": 4,
        "السَّلَامُ عَلَيْكُمْ": 2,
        "שָׁלוֹם עוֹלָם": 2,
        "ภาษาไทยที่นี่": 1,
        "தமிழ் மொழி": 2,
        "ශ්\u200dරී ලංකා": 2,  # with a zero-width joiner inside
        "می\u200cخواهم بروم": 2,  # with a zero-width non-joiner inside
        "cafe\u0301 Việt": 2,
        "I \u2764\ufe0f it": 3,  # an emoji keeps its variation selector
        "it's 12 o'clock": 6,
    }
    for text, expected in texts.items():
        words = [word for word, _ in library.pre_tokenizer.pre_tokenize_str(text)]
        assert len(words) == expected, (text, words)
        assert learned.encode(text).tolist() == library.encode(text).ids


def test_hindi_takes_half_the_tokens_it_took() -> None:
    """The same vocabulary, learned from the same text, with GPT-2's words and with ours."""
    text = (" ".join(HINDI[:3]) + "\n") * 5
    ours = train_bpe([text], 500)
    theirs = Library(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=499, initial_alphabet=alphabet, show_progress=False)
    theirs.train_from_iterator([text], trainer)
    assert len(ours.encode(text)) < 0.6 * len(theirs.encode(text).ids)


def test_a_dataset_from_before_keeps_its_words(tmp_path: Path) -> None:
    """Its tokenizer.json has GPT-2's pattern: the ids that a model was trained with stay what they were."""
    library = train_small_bpe()
    (tmp_path / "tokenizer.json").write_text(library.to_str(pretty=True))
    old = load_folder_bpe("bpe:400", tmp_path)
    assert isinstance(old, BytePairTokenizer)
    assert old.pattern == GPT2_PATTERN
    for text in TEXTS:
        assert old.encode(text).tolist() == library.encode(text).ids
