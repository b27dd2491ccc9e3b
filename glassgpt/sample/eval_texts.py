"""The texts of `glass eval`, and a model evaluated on them.

texts = [open_text("my.txt"), open_text("data/pylib")]
evaluate_model(load_eval_model("runs/quickstart", options), texts, options)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassgpt.config import is_dataset_folder
from glassgpt.data.corpus import is_corpus
from glassgpt.data.dataset import BUILT_IN, Dataset, open_dataset
from glassgpt.data.sources import is_special_file, open_source
from glassgpt.data.tokenizers import (
    IdsTokenizer,
    Tokenizer,
    dataset_tokenizer,
    dataset_tokenizer_digest,
    tokenizer_digest,
)
from glassgpt.errors import UserError
from glassgpt.files import expand_user_path
from glassgpt.sample.sample_options import EvalOptions, SampleOptions
from glassgpt.sample.sampler import Sampler, load_sampler
from glassgpt.sample.text_loss import (
    Floats,
    Ints,
    LossComparison,
    TextLoss,
    TokenizedDocuments,
    compare_losses,
    summarize,
    token_losses,
)


@dataclass(frozen=True)
class EvalText:
    """One argument of the command. It has either documents or a dataset, whose validation split is meant."""

    name: str
    documents: tuple[str, ...] = ()
    dataset: Dataset | None = None


@dataclass(frozen=True)
class ModelOnTexts:
    """A model's losses: on each text, and on all of them if they are several."""

    sampler: Sampler
    context: int
    stride: int
    documents: TokenizedDocuments
    token_losses: Floats
    results: tuple[TextLoss, ...]

    @property
    def total(self) -> TextLoss:
        return self.results[-1]


def open_text(name: str) -> EvalText:
    """A dataset by its folder or its name in data/; else a text file, or a folder of them."""
    path = expand_user_path(name)
    for folder in (path, Path("data") / name):
        if is_dataset_folder(folder):
            return EvalText(str(folder), dataset=open_dataset(folder))
    if not path.exists():
        fix = f"; glass prepare {name} makes a dataset of it" if name in BUILT_IN else ""
        raise UserError(f"{name} is neither a text file, nor a folder, nor a dataset in data/{fix}")
    if is_special_file(path):
        raise UserError(f"{name} is neither a file nor a folder: write the text to a file, and evaluate that")
    if is_corpus(str(path)):
        raise UserError(
            f"{name} holds documents in bulk: run  glass prepare {name}  and evaluate on the dataset it makes"
        )
    # An absolute path is never taken for the name of a built-in dataset.
    source = open_source(str(path.resolve()), "", path, path)
    return EvalText(name, tuple("".join(document.text("utf-8")) for document in source.documents))


def load_eval_model(spec: str, options: EvalOptions) -> Sampler:
    sample_options = SampleOptions(
        device=options.device, dtype=options.dtype, compile="off", data_dir=options.data_dir
    )
    return load_sampler(spec, sample_options)


def window_sizes(sampler: Sampler, options: EvalOptions) -> tuple[int, int]:
    """Context and stride for this model."""
    longest, name = sampler.model.config.block_size, sampler.checkpoint.description
    if options.context is not None and options.context > longest:
        raise UserError(f"--context={options.context} is more than {name} can see: at most {longest}")
    context = options.context or longest
    if options.stride is not None and options.stride > context:
        raise UserError(
            f"--stride={options.stride} skips text between windows of {name}: at most {context}, its context"
        )
    return context, options.stride or context


def tokenize_texts(
    texts: Sequence[EvalText], tokenizers: Sequence[Tokenizer]
) -> list[list[TokenizedDocuments]]:
    """Each text for each tokenizer. The documents are the same for all.

    Where all tokenizers are the dataset's own, its tokens are taken as they are, with the end-of-text tokens
    between documents, as in training. Else it is decoded, and cut there.
    """
    digests = {tokenizer_digest(tokenizer) for tokenizer in tokenizers}
    tokenized = []
    for text in texts:
        if text.dataset is not None and digests == {dataset_tokenizer_digest(text.dataset)}:
            ids = np.asarray(text.dataset.tokens("val"), dtype=np.int64)
            tokenized.append([_join_documents([ids], tokenizer) for tokenizer in tokenizers])
            continue
        documents = text.documents if text.dataset is None else _decode_documents(text.dataset)
        row = []
        for tokenizer in tokenizers:
            try:
                row.append(_join_documents([tokenizer.encode(document) for document in documents], tokenizer))
            except UserError as error:
                raise UserError([f"{text.name}: {problem}" for problem in error.problems]) from error
        tokenized.append(row)
    return tokenized


def _decode_documents(dataset: Dataset) -> tuple[str, ...]:
    tokenizer = dataset_tokenizer(dataset)
    if isinstance(tokenizer, IdsTokenizer):
        raise UserError(
            f"{dataset.directory} has token ids and no text: only a model that was trained on such ids can "
            "be evaluated on it"
        )
    ids = np.asarray(dataset.tokens("val"), dtype=np.int64)
    cuts = np.flatnonzero(ids == tokenizer.eot) if tokenizer.eot is not None else np.array([], dtype=np.int64)
    parts = np.split(ids, cuts)
    if len(cuts):
        parts = [parts[0], *(part[1:] for part in parts[1:])]
    return tuple(tokenizer.decode(part) for part in parts if len(part))


def _join_documents(parts: Sequence[Ints], tokenizer: Tokenizer) -> TokenizedDocuments:
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    ids = np.concatenate([np.empty(0, dtype=np.int64), *parts])
    byte_counts = None
    if not isinstance(tokenizer, IdsTokenizer):
        unique, inverse = np.unique(ids, return_inverse=True)
        # The end-of-text token stands for no text.
        sizes = [0 if i == tokenizer.eot else len(tokenizer.token_bytes(i)) for i in unique.tolist()]
        byte_counts = np.array(sizes, dtype=np.int64)[inverse]
    return TokenizedDocuments(ids, lengths, byte_counts)


def evaluate_model(
    sampler: Sampler,
    names: Sequence[str],
    tokenized: Sequence[TokenizedDocuments],
    sizes: tuple[int, int],
    advance: Callable[[int], None] = lambda done: None,
) -> ModelOnTexts:
    """`names`: of the texts. The last result is that of all texts together, named "", if they are several."""
    context, stride = sizes
    results, losses = [], []
    for name, documents in zip(names, tokenized, strict=True):
        if not documents.is_predicted.any():
            raise UserError(f"{name} is too short: a loss needs at least 2 tokens in a document")
        losses.append(token_losses(sampler.model, sampler.execution, documents, context, stride, advance))
        results.append(summarize(name, documents, losses[-1], context))
    documents, all_losses = _join_texts(tokenized), np.concatenate(losses)
    if len(names) > 1:
        results.append(summarize("", documents, all_losses, context))
    return ModelOnTexts(sampler, context, stride, documents, all_losses, tuple(results))


def _join_texts(texts: Sequence[TokenizedDocuments]) -> TokenizedDocuments:
    def joined(arrays: Iterable[Ints]) -> Ints:
        return np.concatenate(list(arrays))

    known = [text.byte_counts for text in texts if text.byte_counts is not None]
    return TokenizedDocuments(
        joined(text.ids for text in texts),
        joined(text.lengths for text in texts),
        joined(known) if len(known) == len(texts) else None,
    )


def compare_models(first: ModelOnTexts, other: ModelOnTexts) -> LossComparison:
    """On the same texts, paired by pieces as long as the longer context, which are about independent."""
    lengths = []
    for model in (first, other):
        if model.documents.byte_counts is None:
            raise UserError(
                f"--against: the tokens of {model.sampler.checkpoint.description} have no known text; "
                "--data_dir=FOLDER names the dataset that has its vocabulary"
            )
        lengths.append(int(model.documents.byte_counts.sum()))
    if lengths[0] != lengths[1]:
        raise UserError(
            f"--against: the two tokenizers keep {lengths[0]:,} and {lengths[1]:,} bytes of the same text; "
            "models are compared only where both predict all of it"
        )
    span_bytes = max(round(model.context * lengths[0] / len(model.documents.ids)) for model in (first, other))
    comparison = compare_losses(
        (first.documents, first.token_losses), (other.documents, other.token_losses), span_bytes
    )
    if comparison is None:
        raise UserError("--against: the text is too short to compare models on it: give more text")
    return comparison
