"""Checks an export: loads its files and compares its logits with those of the original model.

`transformers` loads it if it is installed and the export is for it, else our own model does. LogitCheck says
which.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassgpt.data.bpe import TOKENIZER_JSON, HuggingFaceBpeTokenizer
from glassgpt.data.tokenizer_json import parse_tokenizer, same_tokenizer
from glassgpt.data.tokenizers import Tokenizer
from glassgpt.errors import UserError
from glassgpt.exchange.export_formats import ExportableModel, with_exact_gelu
from glassgpt.format import pluralize
from glassgpt.model.gpt import GPTConfig
from glassgpt.model.pretrained import read_pretrained
from glassgpt.model.weights import build_model
from glassgpt.record.run_dir import NANOGPT_CKPT_FILE
from glassgpt.training.checkpoint.nanogpt_ckpt import read_nanogpt_ckpt

RELATIVE_TOLERANCE = 1e-5  # of the largest logit, or of 1 if all are smaller: float32 has seven digits
_MAX_COMPARED_TOKENS = 1024
_MAX_CHECKED_IDS = 5000
_RETRAIN_HINT = "export an earlier checkpoint, RUN@UPDATE, or train it again with a lower --learning_rate"


@dataclass(frozen=True)
class LogitCheck:
    loaded_by: str  # the library that loaded the files
    compared_positions: int  # each over the whole vocabulary
    max_difference: float  # between two logits
    max_logit: float
    round_trip_ids: int  # ids that the exported tokenizer decoded and encoded again

    @property
    def tolerance(self) -> float:
        return RELATIVE_TOLERANCE * max(1.0, self.max_logit)


def non_finite_problems(exportable: ExportableModel) -> list[str]:
    """Weights that are NaN or infinite, whose logits cannot be compared."""
    bad = [name for name, tensor in exportable.weights.items() if not torch.isfinite(tensor).all()]
    if not bad:
        return []
    return [
        f"the weights of {exportable.origin.description} are not finite (NaN or infinity in "
        f"{pluralize(len(bad), 'tensor')}, the first is {bad[0]}): {_RETRAIN_HINT}"
    ]


def check_huggingface(folder: Path, exportable: ExportableModel) -> LogitCheck:
    if importlib.util.find_spec("transformers") is None:
        return check_own_format(folder, exportable)
    import transformers

    if exportable.shape.arch == "modern" and not hasattr(transformers, "NanoChatForCausalLM"):  # before 5.0
        return check_own_format(folder, exportable)
    # Without its progress bars, and its warning that a text is longer than the context.
    logging: Any = transformers.utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        reader = f"transformers {transformers.__version__}"
        ids = _check_tokenizer(
            exportable.tokenizer,
            lambda text: tokenizer(text)["input_ids"],
            lambda ids: str(tokenizer.decode(ids)),
            reader,
        )
        return _compare_logits(exportable, lambda tokens: model.train(False)(tokens).logits, reader, ids)
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()


def check_own_format(folder: Path, exportable: ExportableModel) -> LogitCheck:
    """Checks any folder with config.json and model.safetensors, with our own loader."""
    shape, weights = read_pretrained(folder)
    model = build_model(shape, weights, str(folder)).eval()
    content = (folder / TOKENIZER_JSON).read_bytes()
    if not same_tokenizer(parse_tokenizer(content), exportable.tokenizer):
        raise UserError(
            f"the export is wrong: its {TOKENIZER_JSON} is not that of {exportable.origin.description}"
        )
    from tokenizers import Tokenizer as LibraryTokenizer

    library = LibraryTokenizer.from_str(content.decode())
    ids = _check_tokenizer(
        exportable.tokenizer, lambda text: library.encode(text).ids, library.decode, "the library tokenizers"
    )
    return _compare_logits(exportable, model, "GlassGPT, from the files", ids)


def check_nanogpt(folder: Path, exportable: ExportableModel) -> LogitCheck:
    """With the exact GELU, as nanoGPT's model.py has it."""
    ckpt = read_nanogpt_ckpt(folder / NANOGPT_CKPT_FILE)
    model = build_model(ckpt.model_config, ckpt.weights, str(folder / NANOGPT_CKPT_FILE)).eval()
    return _compare_logits(with_exact_gelu(exportable), model, "GlassGPT, from the file", 0)


def _random_tokens(shape: GPTConfig) -> Tensor:
    """(1, T), the same in every run."""
    length = min(shape.block_size, _MAX_COMPARED_TOKENS)
    return torch.randint(shape.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def _compare_logits(
    exportable: ExportableModel, exported: Callable[[Tensor], Tensor], reader: str, round_trip_ids: int
) -> LogitCheck:
    tokens = _random_tokens(exportable.shape)
    expected, logits = exportable.model()(tokens), exported(tokens)
    if not torch.isfinite(expected).all():
        raise UserError(
            f"the logits of {exportable.origin.description} are not finite, nothing was written: "
            f"{_RETRAIN_HINT}"
        )
    if logits.shape != expected.shape:
        raise UserError(
            f"the export is wrong: read by {reader} its logits are {tuple(logits.shape)}, not "
            f"{tuple(expected.shape)}; nothing was written"
        )
    difference = (logits.float() - expected).abs().max().item()
    max_logit = expected.abs().max().item()
    check = LogitCheck(reader, tokens.shape[1], difference, max_logit, round_trip_ids)
    if not difference <= check.tolerance:  # also if NaN
        raise UserError(
            f"the export is wrong: read by {reader} its logits differ by up to {difference:.3g}, "
            f"the tolerance is {check.tolerance:.3g}; nothing was written"
        )
    return check


def _check_tokenizer(
    tokenizer: Tokenizer,
    encode: Callable[[str], Sequence[int]],
    decode: Callable[[list[int]], str],
    reader: str,
) -> int:
    """Encodes and decodes a text of all tokens, or of the first thousands. Returns its number of ids."""
    special = tokenizer.added_tokens if isinstance(tokenizer, HuggingFaceBpeTokenizer) else (tokenizer.eot,)
    ids = [id for id in range(min(tokenizer.vocab_size, _MAX_CHECKED_IDS)) if id not in special]
    text = tokenizer.decode(ids).rstrip(" " if tokenizer.name == "ids" else "")
    expected = tokenizer.encode(text).tolist()
    if list(encode(text)) != expected or decode(expected) != text:
        raise UserError(
            f"the export is wrong: {reader} does not encode and decode text identically; nothing was written"
        )
    return len(expected)


def gelu_difference(exportable: ExportableModel) -> float:
    """How much nanoGPT's GELU changes a logit of a model that was trained with GPT-2's."""
    tokens = _random_tokens(exportable.shape)
    with torch.no_grad():
        exact = with_exact_gelu(exportable).model()(tokens)
        return float((exportable.model()(tokens) - exact).abs().max())
