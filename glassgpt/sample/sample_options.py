"""The options of `glass sample` and `glass eval`, and the prompt. nanoGPT's flags keep their meaning."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Literal

from glassgpt.config import device_problems, has_invalid_characters
from glassgpt.errors import UserError
from glassgpt.files import expand_user_path
from glassgpt.i18n import check_language


@dataclass(frozen=True)
class SampleOptions:
    """Sample text from the model of a run: its best checkpoint, or RUN@2000, RUN@last. No RUN: the newest."""

    # nanoGPT's flag for the run: the newest of OUT_DIR, OUT_DIR-2, … that holds a run or a ckpt.pt.
    out_dir: str = ""
    # `resume`: a trained model, see above. Or gpt2, gpt2-medium, gpt2-large, gpt2-xl, a folder with one,
    # or OWNER/NAME on Hugging Face.
    init_from: str = "resume"
    # The prompt; --prompt is the same. FILE:prompt.txt reads a file, - reads standard input. Empty: a line
    # break, or the end-of-text token.
    start: str = ""
    # Number of samples.
    num_samples: int = 10
    # Tokens per sample.
    max_new_tokens: int = 500
    # Below 1: less random, above 1: more random. 0: greedy, always the most likely token.
    temperature: float = 0.8
    # Sample from the k most likely tokens. none: from all.
    top_k: int | None = 200
    # Nucleus sampling: from the most likely tokens whose probabilities sum to this, e.g. 0.9.
    top_p: float | None = None
    # The same seed gives the same samples.
    seed: int = 1337
    # Another run, whose samples are shown side by side: same prompt, same seed.
    compare: str = ""
    # auto, cpu, cuda, cuda:1, mps
    device: str = "auto"
    # auto: the fastest of the card; on a CPU float16 weights if they pay, else float32. float16 on a CPU:
    # of the weights only.
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # On a CUDA card, unless off: the decode step is captured as a CUDA graph.
    compile: Literal["auto", "on", "off"] = "auto"
    # For a ckpt.pt of nanoGPT: the folder with its meta.pkl, if that is not data/DATASET.
    data_dir: str = ""


def find_problems(options: SampleOptions) -> list[str]:
    problems = [
        f"--{name}={getattr(options, name)} must be at least 1"
        for name in ("num_samples", "max_new_tokens", "top_k")
        if (value := getattr(options, name)) is not None and value < 1
    ]
    if not (options.temperature >= 0 and math.isfinite(options.temperature)):
        problems.append(f"--temperature={options.temperature} must be 0 or more")
    if options.top_p is not None and not 0 < options.top_p <= 1:
        problems.append(f"--top_p={options.top_p} must be above 0 and at most 1")
    if not 0 <= options.seed < 2**63:
        problems.append(f"--seed={options.seed} must be at least 0 and below 2^63")
    if has_invalid_characters(options.start):
        problems.append("--start is not text in UTF-8; FILE:prompt.txt reads it from a file")
    return problems + device_problems(options.device)


def prompt_text(start: str) -> str:
    """The prompt that --start gives: itself, from a file, or from standard input."""
    if start == "-" and sys.stdin is None:
        raise UserError("--start=- reads standard input, which is closed")
    if start == "-":
        return _decode(sys.stdin.buffer.read(), "standard input")
    if not start.startswith("FILE:"):
        return start
    path = expand_user_path(start.removeprefix("FILE:"))
    try:
        return _decode(path.read_bytes(), str(path))
    except OSError as error:
        raise UserError(f"--start={start} cannot be read: {error.strerror}") from None


def _decode(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"--start: {source} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None


# --- glass eval ---


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


def find_eval_problems(options: EvalOptions) -> list[str]:
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
    problems += device_problems(options.device)
    check_language(options.lang, problems)
    return problems
