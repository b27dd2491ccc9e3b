"""Tokenizers as Hugging Face's `tokenizer.json` and back, and the tokenizers of other projects.

    gpt2, bpe:N    byte-level BPE, as in GPT-2's file; one trained by GlassGPT has its own word pattern
    char           WordLevel, a word is a character; an unknown character is an error, as in CharTokenizer
    byte           byte-level BPE without merges: the id is the byte
    ids            WordLevel, a word is a number between blanks

    load_tokenizer_in(folder, "--tokenizer_files", "...")   # tokenizer.json, or vocab.json + merges.txt

Each gives the same ids and the same text in `transformers` as in GlassGPT.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

from glassgpt.data.bpe import TOKENIZER_JSON, ByteLevelBpe, BytePairTokenizer, gpt2_tokenizer, parse_bpe
from glassgpt.data.bpe_table import (
    END_OF_TEXT,
    GPT2_PATTERN,
    HF_COMBINING_MARKS_PRE_TOKENIZER,
    TIKTOKEN_FILE,
    TOKENIZER_FILE_LAYOUTS,
    MergeRanks,
    bytes_to_unicode,
    download_gpt2_ranks,
    parse_ranks,
)
from glassgpt.data.digests import check_recorded_sha256
from glassgpt.data.tokenizers import ByteTokenizer, CharTokenizer, IdsTokenizer, Tokenizer, tokenizer_digest
from glassgpt.errors import UserError
from glassgpt.files import expand_user_path, read_small_file

_PARSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_VOCAB_AND_MERGES_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
_CHAR_PRE_TOKENIZER = {
    "type": "Split",
    "pattern": {"Regex": r"[\s\S]"},  # any character
    "behavior": "Isolated",
    "invert": False,
}


# --- ours ---


def dump_tokenizer(tokenizer: Tokenizer) -> bytes:
    """The content of a `tokenizer.json`."""
    if TOKENIZER_JSON in tokenizer.files:  # bpe:N is stored as one
        return tokenizer.files[TOKENIZER_JSON]
    if isinstance(tokenizer, CharTokenizer):
        vocabulary = {character: id for id, character in enumerate(tokenizer.characters)}
        # No token for unknown characters: the library then refuses them.
        model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": ""}
        document = _document(model, _CHAR_PRE_TOKENIZER, {"type": "Fuse"})
    elif isinstance(tokenizer, IdsTokenizer):
        vocabulary = {str(i): i for i in range(tokenizer.vocab_size)}
        model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": ""}
        document = _document(model, {"type": "WhitespaceSplit"}, None)
    elif isinstance(tokenizer, ByteTokenizer):
        characters = bytes_to_unicode()
        document = _bpe_document({characters[byte]: byte for byte in range(256)}, [], regex=False)
    else:
        assert isinstance(tokenizer, BytePairTokenizer)
        characters, ranks = bytes_to_unicode(), tokenizer.ranks
        names = {token: "".join(characters[byte] for byte in token) for token in ranks}
        pairs = (_split_merge(token, ranks, rank) for token, rank in ranks.items() if rank >= 256)
        merges = [[names[first], names[second]] for first, second in pairs]
        vocabulary = {names[token]: rank for token, rank in ranks.items()}
        is_gpt2 = tokenizer.pattern == GPT2_PATTERN
        document = _bpe_document(vocabulary, merges, regex=is_gpt2)
        if not is_gpt2:
            document["pre_tokenizer"] = {
                "type": "Sequence",
                "pretokenizers": [HF_COMBINING_MARKS_PRE_TOKENIZER, document["pre_tokenizer"]],
            }
        document["added_tokens"] = [_special_token(END_OF_TEXT, tokenizer.eot)]
    return json.dumps(document, ensure_ascii=False, indent=2).encode()


def parse_tokenizer(content: bytes) -> Tokenizer:
    """Parses what `dump_tokenizer` wrote, or another byte-level BPE; raises _PARSE_ERRORS for the rest."""
    document = json.loads(content)
    model, pre_tokenizer = document["model"], document.get("pre_tokenizer") or {}
    if model["type"] == "WordLevel":
        words = sorted(model["vocab"], key=model["vocab"].__getitem__)
        if sorted(model["vocab"].values()) != list(range(len(words))):
            raise ValueError("the ids are not 0, 1, 2, ...")
        if pre_tokenizer.get("type") == "WhitespaceSplit" and words == [str(i) for i in range(len(words))]:
            return IdsTokenizer(len(words))
        if pre_tokenizer != _CHAR_PRE_TOKENIZER or any(len(word) != 1 for word in words):
            raise ValueError("its words are neither single characters nor numbers")
        return CharTokenizer("".join(words))
    if pre_tokenizer.get("use_regex") is False and not model["merges"]:
        characters = bytes_to_unicode()
        if model["vocab"] != {characters[byte]: byte for byte in range(256)}:
            raise ValueError("its ids are not the bytes")
        return ByteTokenizer()
    return parse_bpe(content)


def _document(model: dict[str, Any], pre_tokenizer: dict[str, Any] | None, decoder: Any) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def _bpe_document(vocabulary: dict[str, int], merges: list[list[str]], regex: bool) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}
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
    return _document(model, byte_level, dict(byte_level))


def _special_token(content: str, id: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id, "content": content, **flags}


def _split_merge(token: bytes, ranks: MergeRanks, rank: int) -> tuple[bytes, bytes]:
    """The two parts that a token was merged from: what its bytes become when only earlier merges apply."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pair_ranks = [ranks.get(first + second, rank) for first, second in itertools.pairwise(parts)]
        lowest = min(pair_ranks)
        if lowest >= rank:
            raise ValueError(f"{token!r} cannot be made of two earlier tokens")
        at = pair_ranks.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


# --- tokenizers of other projects ---


def load_requested_gpt2(tokenizer: str, folder: str) -> ByteLevelBpe | None:
    """The tokenizer for --tokenizer=gpt2, from the folder if one was given; None for any other."""
    if tokenizer != "gpt2":
        return None
    if not folder:
        return gpt2_tokenizer(download_gpt2_ranks())
    loaded = require_tokenizer_in(
        expand_user_path(folder), "--tokenizer_files", "use --tokenizer=bpe:8192 instead"
    )
    if not isinstance(loaded, ByteLevelBpe):
        raise UserError(f"--tokenizer_files {folder} is not a BPE: use --tokenizer={loaded.name} instead")
    if isinstance(loaded, BytePairTokenizer) and loaded.pattern == GPT2_PATTERN:
        return gpt2_tokenizer(loaded.ranks)
    return loaded


def require_tokenizer_in(folder: Path, flag: str, fix: str) -> Tokenizer:
    """Loads the tokenizer in a folder. UserError if there is none."""
    tokenizer = load_tokenizer_in(folder, flag, fix)
    if tokenizer is None:
        raise UserError(f"{flag} {folder} has no tokenizer: it needs {TOKENIZER_FILE_LAYOUTS}")
    return tokenizer


def load_tokenizer_in(folder: Path, flag: str, fix: str) -> Tokenizer | None:
    """The tokenizer in a folder; None if there is none. One that cannot be used is an error.

    `flag`: the flag with which the user named the folder, `fix`: what to do instead. tokenizer.json comes
    first, as in `transformers`.
    """
    path = folder / TOKENIZER_JSON
    try:
        if os.path.lexists(path):  # a broken link is an error, not "none"
            check_recorded_sha256(path)
            _check_config(folder)
            return parse_tokenizer(read_small_file(path))
        for vocab, merges in _VOCAB_AND_MERGES_FILES:
            if (folder / vocab).is_file() and (folder / merges).is_file():
                path = folder / vocab
                _check_config(folder)
                return parse_bpe(_join_vocab_and_merges(folder, vocab, merges))
        path = folder / TIKTOKEN_FILE
        return gpt2_tokenizer(parse_ranks(read_small_file(path))) if path.is_file() else None
    except OSError as error:
        raise UserError(f"{flag} {folder}: {path.name} cannot be read ({error.strerror}): {fix}") from error
    except _PARSE_ERRORS as error:
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise UserError(
            f"{flag} {folder}: {path.name} is no tokenizer that can be read here, a byte-level BPE of any "
            f"numbering ({reason}): {fix}"
        ) from error


def _check_config(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    check_recorded_sha256(path)
    if path.is_file() and json.loads(read_small_file(path)).get("add_prefix_space"):
        raise ValueError("tokenizer_config.json puts a blank before every text: add_prefix_space")


def _join_vocab_and_merges(folder: Path, vocab: str, merges: str) -> bytes:
    """vocab.json and merges.txt as one tokenizer.json."""
    ids = json.loads(read_small_file(folder / vocab))
    lines = read_small_file(folder / merges).decode().split("\n")
    if lines[0].startswith("#version"):
        del lines[0]
    pairs = [line.rstrip("\r").split(" ") for line in lines if line.strip()]
    document = _bpe_document(ids, pairs, regex=True)
    path = folder / "added_tokens.json"
    added = json.loads(read_small_file(path)) if path.is_file() else {}
    specials = added | ({END_OF_TEXT: ids[END_OF_TEXT]} if END_OF_TEXT in ids else {})
    document["added_tokens"] = [
        _special_token(*item) for item in sorted(specials.items(), key=lambda item: item[1])
    ]
    return json.dumps(document).encode()


def same_tokenizer(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether both give the same ids for every text."""
    return tokenizer_digest(one) == tokenizer_digest(other)
