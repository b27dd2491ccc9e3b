"""Texts that a sampler generates, and a GPT-2 to sample from, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_runs import LINE, prepare_dataset, train_run

from glassgpt.data.bpe import train_bpe
from glassgpt.sample.sample_options import SampleOptions
from glassgpt.sample.sampler import Sampler

KINDS = {"char": "char", "byte": "byte", "bpe": "bpe:300"}  # tokenizers by the name of a run
SAMPLE_OPTIONS = SampleOptions(
    num_samples=4, max_new_tokens=40, top_k=None, temperature=1.5, seed=3, device="cpu"
)


def sample_pieces(sampler: Sampler, prompt: list[int], options: SampleOptions) -> list[list[str]]:
    """The text of each token, by sample."""
    samples: list[list[str]] = []
    group: list[list[str]] = []
    for pieces in sampler.sample(prompt, options):
        if pieces:
            group.append(pieces)
        else:
            samples += [list(sample) for sample in zip(*group, strict=True)]
            group = []
    assert group == []
    return samples


def sample_texts(sampler: Sampler, prompt: list[int], options: SampleOptions) -> list[str]:
    return ["".join(pieces) for pieces in sample_pieces(sampler, prompt, options)]


def write_gpt2(folder: Path) -> Path:
    """A folder as `transformers` writes it, of random weights, with a small tokenizer of GPT-2's kind."""
    transformers = pytest.importorskip("transformers")
    tokenizer = train_bpe([LINE * 9], 300)
    shape = {"vocab_size": tokenizer.vocab_size, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 3}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, initializer_range=0.3))
    model.save_pretrained(folder)
    for name, content in tokenizer.files.items():
        (folder / name).write_bytes(content)
    return folder


def train_every_tokenizer(folder: Path) -> Path:
    """runs/char, runs/byte and runs/bpe in this folder."""
    for name, tokenizer in KINDS.items():
        arch = "modern" if name == "byte" else "gpt2"
        train_run(folder / "runs" / name, prepare_dataset(folder, name, tokenizer), arch=arch)
    return folder
