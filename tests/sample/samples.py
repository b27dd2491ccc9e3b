"""Texts that a sampler generates, for tests."""

from __future__ import annotations

from glassgpt.sample.sample_options import SampleOptions
from glassgpt.sample.sampler import Sampler

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
