"""Our tokenizers as Hugging Face's `tokenizer.json`, and back.

    gpt2, bpe:N    byte-level BPE, as GPT-2's file is
    char           a word is a character: WordLevel; a character that is not in it is an error, as here
    byte           byte-level BPE without a single merge: the id is the byte
    ids            a word is a number between blanks

Every one of them gives the same ids there as here, and the same text back.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

from glassgpt.data.fingerprint import check_recorded
from glassgpt.data.ranks import END_OF_TEXT, Ranks, characters_of_bytes, parse_tokenizer_json, read_ranks
from glassgpt.data.tokenizers import (
    TOKENIZER_JSON,
    BytePairTokenizer,
    ByteTokenizer,
    CharTokenizer,
    IdsTokenizer,
    Tokenizer,
    gpt2_tokenizer,
)
from glassgpt.paths import read_document

_ANY_CHARACTER = r"[\s\S]"


def dump_tokenizer(tokenizer: Tokenizer) -> bytes:
    """The content of a `tokenizer.json`."""
    if TOKENIZER_JSON in tokenizer.files:  # bpe:N is kept as one
        return tokenizer.files[TOKENIZER_JSON]
    if isinstance(tokenizer, CharTokenizer):
        document = _char_document(tokenizer)
    elif isinstance(tokenizer, IdsTokenizer):
        document = _document(
            {"type": "WordLevel", "vocab": {str(i): i for i in range(tokenizer.vocab_size)}, "unk_token": ""},
            {"type": "WhitespaceSplit"},
            None,
        )
    elif isinstance(tokenizer, ByteTokenizer):
        characters = characters_of_bytes()
        document = _bpe_document({characters[byte]: byte for byte in range(256)}, [], regex=False)
    else:
        assert isinstance(tokenizer, BytePairTokenizer)
        document = _byte_pair_document(tokenizer)
    return json.dumps(document, ensure_ascii=False, indent=2).encode()


def parse_tokenizer(content: bytes) -> Tokenizer:
    """What `dump_tokenizer` wrote, or GPT-2's own kind; ValueError (or its like) for any other."""
    document = json.loads(content)
    model, splitter = document["model"], document.get("pre_tokenizer") or {}
    if model["type"] == "WordLevel":
        words = sorted(model["vocab"], key=model["vocab"].__getitem__)
        if sorted(model["vocab"].values()) != list(range(len(words))):
            raise ValueError("the ids are not 0, 1, 2, ...")
        if splitter.get("type") == "WhitespaceSplit" and words == [str(i) for i in range(len(words))]:
            return IdsTokenizer(len(words))
        if splitter != _by_character() or any(len(word) != 1 for word in words):
            raise ValueError("its words are neither single characters nor numbers")
        return CharTokenizer("".join(words))
    if splitter.get("use_regex") is False and not model["merges"]:
        characters = characters_of_bytes()
        if model["vocab"] != {characters[byte]: byte for byte in range(256)}:
            raise ValueError("its ids are not the bytes")
        return ByteTokenizer()
    ranks = parse_tokenizer_json(content)
    name = "gpt2" if len(ranks) == 50256 else f"bpe:{len(ranks) + 1}"
    return BytePairTokenizer(name, ranks, {TOKENIZER_JSON: content})


def _document(model: dict[str, Any], splitter: dict[str, Any] | None, decoder: Any) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": splitter,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def _char_document(tokenizer: CharTokenizer) -> dict[str, Any]:
    vocabulary = {character: id for id, character in enumerate(tokenizer.characters)}
    # No word stands for the unknown ones: the library then refuses them.
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": ""}
    return _document(model, _by_character(), {"type": "Fuse"})


def _by_character() -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": _ANY_CHARACTER},
        "behavior": "Isolated",
        "invert": False,
    }


def _bpe_document(vocabulary: dict[str, int], merges: list[list[str]], regex: bool) -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }
    return _document(model, level, dict(level))


def _byte_pair_document(tokenizer: BytePairTokenizer) -> dict[str, Any]:
    characters = characters_of_bytes()
    names = {token: "".join(characters[byte] for byte in token) for token in tokenizer.ranks}
    merges = [[names[first], names[second]] for first, second in _merges(tokenizer.ranks)]
    vocabulary = {names[token]: rank for token, rank in tokenizer.ranks.items()}
    document = _bpe_document(vocabulary, merges, regex=True)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    document["added_tokens"] = [{"id": tokenizer.eot, "content": END_OF_TEXT, **flags}]
    return document


def _merges(ranks: Ranks) -> list[tuple[bytes, bytes]]:
    """The two that each token was made of: what is left of its bytes when only earlier tokens may merge."""
    return [_halves(token, ranks, rank) for token, rank in ranks.items() if rank >= 256]


def _halves(token: bytes, ranks: Ranks, before: int) -> tuple[bytes, bytes]:
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        made = [ranks.get(first + second, before) for first, second in itertools.pairwise(parts)]
        lowest = min(made)
        if lowest >= before:
            raise ValueError(f"{token!r} cannot be made of two earlier tokens")
        at = made.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


# --- the tokenizer of a model ---


def tokenizer_beside(folder: Path, flag: str) -> Tokenizer:
    """The one in a folder with a model's weights; `flag`: how the user named the folder."""
    path = folder / TOKENIZER_JSON
    check_recorded(path)
    if path.is_file():
        with contextlib.suppress(*_NOT_OURS):
            return parse_tokenizer(read_document(path))
    return gpt2_tokenizer(read_ranks(folder, flag))  # which says what is wrong


_NOT_OURS = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether each id stands for the same bytes in both."""
    if one.vocab_size != other.vocab_size:
        return False
    if isinstance(one, BytePairTokenizer) and isinstance(other, BytePairTokenizer):
        return one.ranks == other.ranks
    return all(one.token_bytes(id) == other.token_bytes(id) for id in range(one.vocab_size))
