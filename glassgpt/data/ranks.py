"""Byte-pair ranks: the table of a byte-level BPE tokenizer, from every form it is handed around in.

GPT-2's table exists as `encoder.json` + `vocab.bpe` (OpenAI), `vocab.json` + `merges.txt` or
`tokenizer.json` (Hugging Face), and as base64 lines (tiktoken). All say the same: the 256 bytes, then
one token per merge in the order of the merges, then `<|endoftext|>`. A merge's place in that order is
its priority, so {token: id} is the whole tokenizer.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from glassgpt.errors import UserError
from glassgpt.paths import read_document, user_path

RANKS_FILE = "gpt2.tiktoken"
END_OF_TEXT = "<|endoftext|>"
# How GPT-2 cuts text into words before any merging; the possessive form (++) that tiktoken uses.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

Ranks = dict[bytes, int]

_LAYOUTS = "encoder.json and vocab.bpe, or vocab.json and merges.txt, or tokenizer.json"
_BRING_FILES = f"put {_LAYOUTS} into a folder and pass it as --tokenizer_files FOLDER"


def download_ranks(fix: str = _BRING_FILES) -> Ranks:
    """GPT-2's own table through tiktoken, which checks it and keeps it in its cache."""
    from tiktoken_ext.openai_public import gpt2

    try:
        ranks: Ranks = gpt2()["mergeable_ranks"]
    except (OSError, ValueError) as error:
        raise UserError(
            f"GPT-2's tokenizer could not be downloaded ({type(error).__name__}): {fix}"
        ) from error
    return ranks


def needed_ranks(tokenizer: str, folder: str) -> Ranks | None:
    """GPT-2's table if the tokenizer is that one, from the folder if one was given; others make their own."""
    if tokenizer != "gpt2":
        return None
    return read_ranks(user_path(folder)) if folder else download_ranks()


def read_ranks(folder: Path, flag: str = "--tokenizer_files") -> Ranks:
    """The table in a folder, whichever of the four layouts it has; `flag`: how the user named the folder."""
    try:
        for vocab, merges in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
            if (folder / vocab).is_file() and (folder / merges).is_file():
                return _from_vocab(json.loads(read_document(folder / vocab)), _merge_lines(folder / merges))
        if (folder / "tokenizer.json").is_file():
            return parse_tokenizer_json(read_document(folder / "tokenizer.json"))
        if (folder / RANKS_FILE).is_file():
            return parse_ranks(read_document(folder / RANKS_FILE))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{flag} {folder} is not a GPT-2 tokenizer ({type(error).__name__}: {error}): "
            f"bring GPT-2's own {_LAYOUTS}"
        ) from error
    raise UserError(f"{flag} {folder} has no tokenizer: it needs {_LAYOUTS}")


def parse_tokenizer_json(content: bytes) -> Ranks:
    """The table in a Hugging Face `tokenizer.json`; ValueError unless it works exactly as GPT-2's does."""
    document = json.loads(content)
    model, splitter = document["model"], document["pre_tokenizer"] or {}
    same_split = splitter.get("type") == "ByteLevel" and splitter.get("use_regex", True)
    if model.get("type") != "BPE" or not same_split or splitter.get("add_prefix_space"):
        raise ValueError("tokenizer.json is not a byte-level BPE that splits words as GPT-2 does")
    if document.get("normalizer"):
        raise ValueError("tokenizer.json changes the text before encoding it, which GPT-2 does not")
    added = {token["content"]: token["id"] for token in document.get("added_tokens", [])}
    # Older files write a merge as one string, newer ones as a pair.
    merges = (m.split(" ") if isinstance(m, str) else m for m in model["merges"])
    return _from_vocab({**model["vocab"], **added}, merges)


def dump_ranks(ranks: Ranks) -> bytes:
    """The table in tiktoken's format: a line of base64 token and rank each."""
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    return "".join(lines).encode()


def parse_ranks(content: bytes) -> Ranks:
    """The inverse of `dump_ranks`; ValueError when the table is not complete."""
    pairs = (line.split() for line in content.splitlines())
    ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    _check(ranks)
    return ranks


def _merge_lines(path: Path) -> Iterable[list[str]]:
    lines = read_document(path).decode().split("\n")
    if lines[0].startswith("#version"):
        del lines[0]
    return (line.rstrip("\r").split(" ") for line in lines if line.strip())


def _from_vocab(vocab: Mapping[str, Any], merges: Iterable[Iterable[str]]) -> Ranks:
    """Ranks from a vocabulary of printable tokens, after checking that ids follow the merges.

    tiktoken merges in the order of the ids, so a table in another order would encode differently
    without any error.
    """
    byte_of = {character: byte for byte, character in enumerate(characters_of_bytes())}
    ids = dict(vocab)
    end_of_text = ids.pop(END_OF_TEXT, len(ids))
    ranks = {bytes(byte_of[c] for c in token): int(rank) for token, rank in ids.items()}
    ranks = dict(sorted(ranks.items(), key=lambda item: item[1]))
    _check(ranks)
    if [ids[first + second] for first, second in merges] != list(range(256, len(ranks))):
        raise ValueError("the ids do not follow the order of the merges")
    if end_of_text != len(ranks):
        raise ValueError(f"{END_OF_TEXT} is {end_of_text}, not the last id {len(ranks)}")
    return ranks


def _check(ranks: Ranks) -> None:
    if list(ranks.values()) != list(range(len(ranks))):
        raise ValueError("the ids are not 0, 1, 2, ...")
    if {token for token, rank in ranks.items() if rank < 256} != {bytes([b]) for b in range(256)}:
        raise ValueError("the first 256 tokens are not the 256 bytes")


def characters_of_bytes() -> list[str]:
    """GPT-2's printable alphabet: bytes that print stand for themselves, the rest start at U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)]
