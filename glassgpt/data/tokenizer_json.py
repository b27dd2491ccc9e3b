"""Our tokenizers as Hugging Face's `tokenizer.json`, and back.

    gpt2, bpe:N    byte-level BPE, as GPT-2's file is; a learned one has its own pattern of words in it
    char           a word is a character: WordLevel; a character that is not in it is an error, as here
    byte           byte-level BPE without a single merge: the id is the byte
    ids            a word is a number between blanks

Every one of them gives the same ids there as here, and the same text back.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

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
from glassgpt.data.tokenizers import (
    TOKENIZER_JSON,
    ByteLevelBpe,
    BytePairTokenizer,
    ByteTokenizer,
    CharTokenizer,
    IdsTokenizer,
    Tokenizer,
    gpt2_tokenizer,
    parse_bpe,
    tokenizer_digest,
)
from glassgpt.errors import UserError
from glassgpt.files import expand_user_path, read_small_file

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
        characters = bytes_to_unicode()
        document = _bpe_document({characters[byte]: byte for byte in range(256)}, [], regex=False)
    else:
        assert isinstance(tokenizer, BytePairTokenizer)
        document = _byte_pair_document(tokenizer)
    return json.dumps(document, ensure_ascii=False, indent=2).encode()


def parse_tokenizer(content: bytes) -> Tokenizer:
    """What `dump_tokenizer` wrote, or a byte-level BPE of others; ValueError (or its like) for any other."""
    document = json.loads(content)
    model, splitter = document["model"], document.get("pre_tokenizer") or {}
    if model["type"] == "WordLevel":
        words = sorted(model["vocab"], key=model["vocab"].__getitem__)
        if sorted(model["vocab"].values()) != list(range(len(words))):
            raise ValueError("the ids are not 0, 1, 2, ...")
        if splitter.get("type") == "WhitespaceSplit" and words == [str(i) for i in range(len(words))]:
            return IdsTokenizer(len(words))
        if splitter != _char_pre_tokenizer() or any(len(word) != 1 for word in words):
            raise ValueError("its words are neither single characters nor numbers")
        return CharTokenizer("".join(words))
    if splitter.get("use_regex") is False and not model["merges"]:
        characters = bytes_to_unicode()
        if model["vocab"] != {characters[byte]: byte for byte in range(256)}:
            raise ValueError("its ids are not the bytes")
        return ByteTokenizer()
    return parse_bpe(content)


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
    return _document(model, _char_pre_tokenizer(), {"type": "Fuse"})


def _char_pre_tokenizer() -> dict[str, Any]:
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
    characters = bytes_to_unicode()
    names = {token: "".join(characters[byte] for byte in token) for token in tokenizer.ranks}
    merges = [[names[first], names[second]] for first, second in _merges(tokenizer.ranks)]
    vocabulary = {names[token]: rank for token, rank in tokenizer.ranks.items()}
    document = _bpe_document(vocabulary, merges, regex=tokenizer.pattern == GPT2_PATTERN)
    if tokenizer.pattern != GPT2_PATTERN:
        level = document["pre_tokenizer"]
        document["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [HF_COMBINING_MARKS_PRE_TOKENIZER, level],
        }
    document["added_tokens"] = [_special(END_OF_TEXT, tokenizer.eot)]
    return document


def _special(content: str, id: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id, "content": content, **flags}


def _merges(ranks: MergeRanks) -> list[tuple[bytes, bytes]]:
    """The two that each token was made of: what is left of its bytes when only earlier tokens may merge."""
    return [_halves(token, ranks, rank) for token, rank in ranks.items() if rank >= 256]


def _halves(token: bytes, ranks: MergeRanks, before: int) -> tuple[bytes, bytes]:
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        made = [ranks.get(first + second, before) for first, second in itertools.pairwise(parts)]
        lowest = min(made)
        if lowest >= before:
            raise ValueError(f"{token!r} cannot be made of two earlier tokens")
        at = made.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


# --- tokenizers of others ---

_PARSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_VOCAB_AND_MERGES_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


def load_requested_gpt2(tokenizer: str, folder: str) -> ByteLevelBpe | None:
    """What --tokenizer=gpt2 means: the one in the folder if one was given; others make their own."""
    if tokenizer != "gpt2":
        return None
    if not folder:
        return gpt2_tokenizer(download_gpt2_ranks())
    given = require_tokenizer_in(
        expand_user_path(folder), "--tokenizer_files", "use --tokenizer=bpe:8192 instead"
    )
    if not isinstance(given, ByteLevelBpe):
        raise UserError(f"--tokenizer_files {folder} is not a BPE: use --tokenizer={given.name} instead")
    if isinstance(given, BytePairTokenizer) and given.pattern == GPT2_PATTERN:
        return gpt2_tokenizer(given.ranks)
    return given


def require_tokenizer_in(folder: Path, flag: str, fix: str) -> Tokenizer:
    """The one in a folder; `flag`: how the user named the folder, `fix`: what else is possible."""
    found = load_tokenizer_in(folder, flag, fix)
    if found is None:
        raise UserError(f"{flag} {folder} has no tokenizer: it needs {TOKENIZER_FILE_LAYOUTS}")
    return found


def load_tokenizer_in(folder: Path, flag: str, fix: str) -> Tokenizer | None:
    """None if a folder has no file of a tokenizer; one that is there and cannot be used is an error.

    tokenizer.json comes first, as in `transformers`.
    """
    path = folder / TOKENIZER_JSON
    try:
        if os.path.lexists(path):  # a link that leads nowhere is not "none", but cannot be read
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
    """As one tokenizer.json."""
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
        _special(*item) for item in sorted(specials.items(), key=lambda item: item[1])
    ]
    return json.dumps(document).encode()


def same_tokenizer(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether every text has the same ids in both."""
    return tokenizer_digest(one) == tokenizer_digest(other)
