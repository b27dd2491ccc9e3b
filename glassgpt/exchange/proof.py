"""That an export computes the same: it is read back from its files, and its logits are compared.

By `transformers` where that is installed and the export is for it; else by our own model, re-read from the
files. The proof says which.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from glassgpt.data.bpe import TOKENIZER_JSON, HuggingFaceBpeTokenizer
from glassgpt.data.tokenizer_json import parse_tokenizer, same_tokenizer
from glassgpt.data.tokenizers import Tokenizer
from glassgpt.errors import UserError
from glassgpt.exchange import to_nanogpt
from glassgpt.exchange.exportable import ExportableModel
from glassgpt.format import pluralize
from glassgpt.model.pretrained import read_pretrained
from glassgpt.model.weights import build_model
from glassgpt.record.run_dir import NANOGPT_CKPT_FILE
from glassgpt.training.checkpoint.nanogpt_ckpt import read_nanogpt_ckpt

RELATIVE_TOLERANCE = 1e-5  # of the largest logit, or of 1 where all are smaller: float32 has seven digits
_MAX_COMPARED_TOKENS = 1024
_MAX_CHECKED_IDS = 5000
_RETRAIN_HINT = "export an earlier checkpoint, RUN@UPDATE, or train it again with a lower --learning_rate"


@dataclass(frozen=True)
class LogitCheck:
    loaded_by: str  # who read the files back
    compared_positions: int  # compared at so many positions, each over the whole vocabulary
    max_difference: float  # the largest between two logits
    max_logit: float  # logit
    round_trip_ids: int  # that were turned into text and back by the exported tokenizer

    @property
    def tolerance(self) -> float:
        return RELATIVE_TOLERANCE * max(1.0, self.max_logit)


def non_finite_problems(parcel: ExportableModel) -> list[str]:
    """What is wrong with weights that are NaN or infinite: such a model computes nothing that compares."""
    bad = [name for name, tensor in parcel.weights.items() if not torch.isfinite(tensor).all()]
    if not bad:
        return []
    return [
        f"the weights of {parcel.origin.description} are not finite (NaN or infinity in "
        f"{pluralize(len(bad), 'tensor')}, the first is {bad[0]}): {_RETRAIN_HINT}"
    ]


def check_hf(folder: Path, parcel: ExportableModel) -> LogitCheck:
    if importlib.util.find_spec("transformers") is None:
        return check_own_format(folder, parcel)
    import transformers

    if parcel.shape.arch == "modern" and not hasattr(transformers, "NanoChatForCausalLM"):  # before 5.0
        return check_own_format(folder, parcel)
    with _quiet(transformers):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        reader = f"transformers {transformers.__version__}"
        ids = _check_tokenizer(
            parcel.tokenizer,
            lambda text: tokenizer(text)["input_ids"],
            lambda ids: str(tokenizer.decode(ids)),
            reader,
        )
        return _compare_logits(parcel, lambda tokens: model.train(False)(tokens).logits, reader, ids)


@contextlib.contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """Without its progress bars, and its remark that a text is longer than the context."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()


def check_own_format(folder: Path, parcel: ExportableModel) -> LogitCheck:
    """Of a folder with config.json and model.safetensors, of any kind."""
    shape, weights = read_pretrained(folder)
    model = build_model(shape, weights, str(folder)).eval()
    reader = "GlassGPT, from the files"
    content = (folder / TOKENIZER_JSON).read_bytes()
    if not same_tokenizer(parse_tokenizer(content), parcel.tokenizer):
        raise UserError(
            f"the export is wrong: its {TOKENIZER_JSON} has other tokens than {parcel.origin.description}"
        )
    from tokenizers import Tokenizer as Library

    library = Library.from_str(content.decode())
    ids = _check_tokenizer(
        parcel.tokenizer, lambda text: library.encode(text).ids, library.decode, "the library tokenizers"
    )
    return _compare_logits(parcel, model, reader, ids)


def check_nanogpt(folder: Path, parcel: ExportableModel) -> LogitCheck:
    """With the exact GELU, as nanoGPT's model.py has it."""
    ckpt = read_nanogpt_ckpt(folder / NANOGPT_CKPT_FILE)
    model = build_model(ckpt.model_config, ckpt.weights, str(folder / NANOGPT_CKPT_FILE)).eval()
    return _compare_logits(to_nanogpt.with_exact_gelu(parcel), model, "GlassGPT, from the file", 0)


@torch.no_grad()
def _compare_logits(
    parcel: ExportableModel, theirs: Callable[[Tensor], Tensor], reader: str, ids: int
) -> LogitCheck:
    shape = parcel.shape
    length = min(shape.block_size, _MAX_COMPARED_TOKENS)
    tokens = torch.randint(shape.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    expected, found = parcel.model()(tokens), theirs(tokens)
    if not torch.isfinite(expected).all():
        raise UserError(
            f"the logits of {parcel.origin.description} are not finite, nothing was written: {_RETRAIN_HINT}"
        )
    if found.shape != expected.shape:
        raise UserError(
            f"the export is wrong: read by {reader} its logits are {tuple(found.shape)}, not "
            f"{tuple(expected.shape)}; nothing was written"
        )
    difference = (found.float() - expected).abs().max().item()
    proof = LogitCheck(reader, length, difference, expected.abs().max().item(), ids)
    if not difference <= proof.tolerance:  # also NaN
        raise UserError(
            f"the export is wrong: read by {reader} its logits differ by up to {difference:.3g}, and "
            f"{proof.tolerance:.3g} would be rounding; nothing was written"
        )
    return proof


def _check_tokenizer(
    tokenizer: Tokenizer,
    encode: Callable[[str], Sequence[int]],
    decode: Callable[[list[int]], str],
    reader: str,
) -> int:
    """That a text of every token, or of the first thousands, gets the same ids and comes back as it was."""
    special = tokenizer.added_tokens if isinstance(tokenizer, HuggingFaceBpeTokenizer) else (tokenizer.eot,)
    ids = [id for id in range(min(tokenizer.vocab_size, _MAX_CHECKED_IDS)) if id not in special]
    text = tokenizer.decode(ids).rstrip(" " if tokenizer.name == "ids" else "")
    expected = tokenizer.encode(text).tolist()
    if list(encode(text)) != expected or decode(expected) != text:
        raise UserError(
            f"the export is wrong: {reader} does not turn text into the same tokens and back; nothing was "
            "written"
        )
    return len(expected)


def gelu_difference(parcel: ExportableModel) -> float:
    """How much nanoGPT's GELU changes a logit of a model that was trained with GPT-2's."""
    shape = parcel.shape
    tokens = torch.randint(
        shape.vocab_size,
        (1, min(shape.block_size, _MAX_COMPARED_TOKENS)),
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        exact = to_nanogpt.with_exact_gelu(parcel).model()(tokens)
        return float((parcel.model()(tokens) - exact).abs().max())
