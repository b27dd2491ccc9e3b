"""A small tokenizer of GPT-2's kind, learned here, in every layout GPT-2's files come in."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from glassgpt.data.bpe import BytePairTokenizer, gpt2_tokenizer
from glassgpt.data.bpe_table import MergeRanks, parse_tokenizer_json

CORPUS = [
    "The quick brown fox jumps over the lazy dog; the dog doesn't mind, and they'll be friends.\n\n",
    "def f(x):\n    return x + 1\n\n\n# twice\nprint(f(f(2)))\n" * 3,
    "हिन्दी में लिखा हुआ पाठ, और कुछ शब्द।\n",
    "نص مكتوب باللغة العربية\t١٢٣\n",
    "1234 5678 99 🦊🐕 ok\u00a0ok\r\n",
]


def train_small_bpe(vocab_size: int = 400) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return tokenizer


def write_layouts(tokenizer: Tokenizer, root: Path) -> list[Path]:
    """OpenAI's two files, Hugging Face's two, and its one: a folder each."""
    folders = [root / "openai", root / "two_files", root / "one_file"]
    for folder in folders:
        folder.mkdir(parents=True)
    vocab = json.dumps(tokenizer.get_vocab(with_added_tokens=True))
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    lines = "#version: 0.2\n" + "".join(f"{first} {second}\n" for first, second in merges)
    for folder, names in zip(
        folders, [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")], strict=False
    ):
        (folder / names[0]).write_text(vocab)
        (folder / names[1]).write_text(lines, encoding="utf-8")
    tokenizer.save(str(folders[2] / "tokenizer.json"))
    return folders


@functools.cache
def small_hf_tokenizer() -> Tokenizer:
    return train_small_bpe()


@functools.cache
def small_bpe() -> BytePairTokenizer:
    return gpt2_tokenizer(ranks_of(small_hf_tokenizer()))


def ranks_of(tokenizer: Tokenizer) -> MergeRanks:
    ranks = parse_tokenizer_json(tokenizer.to_str().encode()).ranks
    assert ranks is not None
    return ranks
