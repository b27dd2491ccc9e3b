"""The options of `glass eval`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glassgpt.config import DEVICE_PATTERN
from glassgpt.i18n import check_language


@dataclass(frozen=True)
class EvalOptions:
    """Loss, perplexity and bits per byte of a model on text files, folders or prepared datasets.

    MODEL: a run (its best checkpoint, or RUN@2000, RUN@last), nanoGPT's ckpt.pt, gpt2, a folder with a GPT-2,
    or OWNER/NAME on Hugging Face. A dataset is evaluated on its validation split. Each value has a 95%
    interval, by bootstrap.
    """

    # Another model: both are compared in bits per byte on the same text, and the answer says whether the
    # difference is more than noise. Their tokenizers may differ.
    against: str = ""
    # Tokens that the model sees at most. none: all that it can, its block_size.
    context: int | None = None
    # Windows of CONTEXT tokens start this many tokens apart. Smaller: each token is predicted with more text
    # before it, which takes longer. none: the context.
    stride: int | None = None
    # auto, cpu, cuda, cuda:1, mps
    device: str = "auto"
    # Of matmuls. The 16-bit ones are faster on a card, and less exact.
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    # For a ckpt.pt of nanoGPT: the folder with its meta.pkl, if that is not data/DATASET.
    data_dir: str = ""
    # Print everything as one JSON document.
    json: bool = False
    # Language: en, hi or ar; empty: that of the locale.
    lang: str = ""


def find_problems(options: EvalOptions) -> list[str]:
    problems = [
        f"--{name}={value} must be at least 1"
        for name in ("context", "stride")
        if (value := getattr(options, name)) is not None and value < 1
    ]
    if options.context and options.stride and options.stride > options.context:
        problems.append(
            f"--stride={options.stride} skips text between windows of --context={options.context}: "
            "at most the context"
        )
    if not DEVICE_PATTERN.fullmatch(options.device):
        problems.append(f"--device={options.device} is not one of auto, cpu, cuda, cuda:N, mps")
    check_language(options.lang, problems)
    return problems
