"""Merge ranks: the table of a byte-level BPE tokenizer, read from every common file format.

GPT-2's table exists as `encoder.json` + `vocab.bpe` (OpenAI), `vocab.json` + `merges.txt` or
`tokenizer.json` (Hugging Face), and as base64 lines (tiktoken). All hold the same: the 256 bytes, then
one token per merge in the order of the merges, then `<|endoftext|>`. A merge's place in that order is
its priority, so {token: id} is the whole tokenizer. Other projects may number their tokens in any way.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from glassgpt.errors import UserError

TIKTOKEN_FILE = "gpt2.tiktoken"
END_OF_TEXT = "<|endoftext|>"
# How GPT-2 splits text into words before any merge; in the possessive form (++) that tiktoken uses.
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
# How a BPE trained by GlassGPT does: combining marks (\p{M}) and zero-width joiners stay in the word of their
# letter. GPT-2's pattern ends a word at each of them, so it cuts Hindi at every vowel sign. A mark on
# anything but a letter, such as an emoji's variation selector, stays with that.
COMBINING_MARKS_PATTERN = GPT2_PATTERN.replace(r"\p{L}++", r"\p{L}[\p{L}\p{M}\x{200C}\x{200D}]*+", 1)
# The same in tokenizer.json, where possessive forms and $ have another meaning.
HF_COMBINING_MARKS_PATTERN = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}[\p{L}\p{M}\x{200C}\x{200D}]*| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
HF_COMBINING_MARKS_PRE_TOKENIZER = {
    "type": "Split",
    "pattern": {"Regex": HF_COMBINING_MARKS_PATTERN},
    "behavior": "Isolated",
    "invert": False,
}

MergeRanks = dict[bytes, int]

TOKENIZER_FILE_LAYOUTS = "encoder.json and vocab.bpe, or vocab.json and merges.txt, or tokenizer.json"
_BRING_FILES_HINT = f"put {TOKENIZER_FILE_LAYOUTS} into a folder and pass it as --tokenizer_files FOLDER"


def download_gpt2_ranks(fix: str = _BRING_FILES_HINT) -> MergeRanks:
    """GPT-2's table through tiktoken, which checks and caches it."""
    from tiktoken_ext.openai_public import gpt2

    try:
        ranks: MergeRanks = gpt2()["mergeable_ranks"]
    except (OSError, ValueError) as error:
        raise UserError(
            f"GPT-2's tokenizer could not be downloaded ({type(error).__name__}): {fix}"
        ) from error
    return ranks


@dataclass(frozen=True)
class ParsedBpe:
    """A `tokenizer.json`, checked to be a byte-level BPE that does not change the text."""

    pattern: str
    ids: dict[str, int]  # tokens in GPT-2's printable alphabet, without added tokens
    merges: list[tuple[str, str]]
    added_tokens: dict[str, int]

    @property
    def ranks(self) -> MergeRanks | None:
        """The table, if the ids are in the order of the merges, as GPT-2's are; None for any other numbering.

        tiktoken merges in the order of the ids, and any two parts that make a token. With a table in another
        order, or with a merge that this never reaches, it would give other ids without any error.
        """
        ranks = {
            unicode_to_bytes(token): id for token, id in sorted(self.ids.items(), key=lambda item: item[1])
        }
        merged = [self.ids.get(first + second) for first, second in self.merges]
        if merged != list(range(256, len(ranks))) or self.added_tokens != {END_OF_TEXT: len(ranks)}:
            return None
        parts = {first + second: (first, second) for first, second in self.merges}
        if _rank_problem(ranks) or not all(
            _is_merge_reachable(*pair, self.ids, parts) for pair in self.merges
        ):
            return None
        return ranks


def _is_merge_reachable(
    left: str, right: str, ids: Mapping[str, int], parts: Mapping[str, tuple[str, str]]
) -> bool:
    """Whether merging in the order of the ids arrives at these two parts: no earlier merge crosses.

    Undoes the merges next to the border, the latest first, and checks each time what could have been merged.
    """
    limit = ids[left + right]
    while ids.get(left + right, limit) >= limit:
        undo_left = ids[left] > ids[right] if left in parts and right in parts else left in parts
        if undo_left:
            limit, left = ids[left], parts[left][1]
        elif right in parts:
            limit, right = ids[right] + 1, parts[right][0]
        else:
            return True
    return False


def parse_tokenizer_json(content: bytes) -> ParsedBpe:
    """Parses a `tokenizer.json`; ValueError names what is not supported."""
    document = json.loads(content)
    model = document["model"]
    if model.get("type") != "BPE":
        raise ValueError(f"its model is {model.get('type')}, not a byte-level BPE")
    if document.get("normalizer"):
        raise ValueError("it changes the text before encoding it (it has a normalizer)")
    unsupported = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    if used := [name for name in unsupported if model.get(name)]:
        raise ValueError(f"its BPE has a {', a '.join(used)}")
    vocab = model["vocab"]
    if any(type(id) is not int or id < 0 for id in vocab.values()) or len({*vocab.values()}) < len(vocab):
        raise ValueError("two of its tokens have the same id, or one has none")
    if missing := {*bytes_to_unicode()} - {*vocab}:
        raise ValueError(f"{len(missing)} of the 256 bytes are not among its tokens")
    extra = document.get("added_tokens") or []
    added = {token["content"]: vocab.get(token["content"], token["id"]) for token in extra}
    ids = {token: id for token, id in vocab.items() if token not in added}
    for token in ids:
        unicode_to_bytes(token)
    # Older files write a merge as one string, newer ones as a pair.
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    pairs = [(first, second) for first, second in merges]
    pre_tokenizer = document.get("pre_tokenizer") or {}
    is_sequence = pre_tokenizer and pre_tokenizer["type"] == "Sequence"
    *others, byte_level = pre_tokenizer["pretokenizers"] if is_sequence else [pre_tokenizer]
    if byte_level.get("type") == "ByteLevel" and not byte_level.get("add_prefix_space"):
        uses_regex = byte_level.get("use_regex", True)
        if not others and uses_regex:
            return ParsedBpe(GPT2_PATTERN, ids, pairs, added)
        if others == [HF_COMBINING_MARKS_PRE_TOKENIZER] and not uses_regex:
            return ParsedBpe(COMBINING_MARKS_PATTERN, ids, pairs, added)
    raise ValueError("it splits words neither as GPT-2 does nor as a BPE learned here does")


def dump_ranks(ranks: MergeRanks) -> bytes:
    """The table in tiktoken's format: a line of base64 token and rank each."""
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    return "".join(lines).encode()


def parse_ranks(content: bytes) -> MergeRanks:
    """The inverse of `dump_ranks`; ValueError when the table is not complete."""
    pairs = (line.split() for line in content.splitlines())
    ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    if problem := _rank_problem(ranks):
        raise ValueError(problem)
    return ranks


def _rank_problem(ranks: MergeRanks) -> str | None:
    if list(ranks.values()) != list(range(len(ranks))):
        return "the ids are not 0, 1, 2, ..."
    if {token for token, rank in ranks.items() if rank < 256} != {bytes([b]) for b in range(256)}:
        return "the first 256 tokens are not the 256 bytes"
    return None


def unicode_to_bytes(token: str) -> bytes:
    """The bytes of a token in GPT-2's printable alphabet; ValueError if it is in another."""
    try:
        return token.translate(_BYTE_BY_CHARACTER).encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"its token {token!r} is not written in GPT-2's alphabet of bytes") from None


def bytes_to_unicode() -> list[str]:
    """GPT-2's printable alphabet: bytes that print stand for themselves, the rest start at U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)]


# Any other character becomes one that Latin-1 cannot encode, or is such a character already.
_BYTE_BY_CHARACTER = dict.fromkeys(range(256), 0xFFFF) | {
    ord(character): byte for byte, character in enumerate(bytes_to_unicode())
}
