"""What a writer writes, for tests to look at."""

from __future__ import annotations

from glassgpt.sample.sample_options import SampleOptions
from glassgpt.sample.sampler import Sampler

SAMPLE_OPTIONS = SampleOptions(
    num_samples=4, max_new_tokens=40, top_k=None, temperature=1.5, seed=3, device="cpu"
)


def sample_pieces(writer: Sampler, prompt: list[int], options: SampleOptions) -> list[list[str]]:
    """The pieces of each sample."""
    samples: list[list[str]] = []
    group: list[list[str]] = []
    for pieces in writer.sample(prompt, options):
        if pieces:
            group.append(pieces)
        else:
            samples += [list(sample) for sample in zip(*group, strict=True)]
            group = []
    assert group == []
    return samples


def sample_texts(writer: Sampler, prompt: list[int], options: SampleOptions) -> list[str]:
    return ["".join(pieces) for pieces in sample_pieces(writer, prompt, options)]
