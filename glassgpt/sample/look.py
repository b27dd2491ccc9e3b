"""What a checkpoint has learned, seen from inside: its loss on each token of a passage, and its attention.

    passage = choose_passage(sampler, dataset, text="")
    view = look_at_passage(sampler, passage)
    view.losses[7], view.guesses[7]           # of its eighth token
    view.attention[layer, head]               # (T, T): the row of a token, over those before it

    scores = score_heads(sampler, view.attention)

Everything is computed in one forward pass, in float32. The passage is chosen by a rule from the validation
split, so that it is the same for all checkpoints of a run.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glassgpt.config import TrainConfig, dataset_folder
from glassgpt.data.copied_text import (
    MAX_SEARCHED_TOKENS,
    Tokens,
    collapse_spaces,
    count_closed_brackets,
    find_words,
    known_share,
    longest_copied,
)
from glassgpt.data.dataset import Dataset, open_dataset
from glassgpt.data.ngram_baselines import sample_blocks
from glassgpt.data.passage import PASSAGE_AT, PASSAGE_TOKENS
from glassgpt.data.tokenizers import dataset_tokenizer_digest, tokenizer_digest
from glassgpt.errors import UserError
from glassgpt.files import expand_user_path
from glassgpt.model.generate import generate_samples
from glassgpt.model.gpt import GPT, CausalSelfAttention, attention_weights
from glassgpt.model.token_sampler import TokenSampler
from glassgpt.sample.sampler import Sampler

GUESSES = 3
SAMPLE_TOKENS = 500
_REPEATED_TOKENS = 64  # of the longest random sequence that is shown twice
_REPEATED_SEQUENCES = 8
_WORD_TOKENS = 4_000_000  # of the training text whose words are collected
_SEED = 1337


# --- the passage ---


@dataclass(frozen=True)
class Passage:
    context: int  # the token before it
    tokens: tuple[int, ...]
    start: int | None  # in the validation split; None: given as text
    omitted: int = 0  # tokens of the given text that the model's context has no room for


def training_dataset(sampler: Sampler, data_dir: str = "") -> Dataset | None:
    """The dataset that it was trained on, if it is still there; `data_dir`: where the user says it is."""
    settings = sampler.checkpoint.settings
    if data_dir:
        folder = expand_user_path(data_dir)
    elif settings.get("dataset") or settings.get("data_dir"):
        names = {name: str(settings.get(name) or "") for name in ("dataset", "data_dir")}
        folder = dataset_folder(TrainConfig(**names))  # type: ignore[arg-type]
    else:
        return None
    try:
        dataset = open_dataset(folder)
        is_same = dataset_tokenizer_digest(dataset) == tokenizer_digest(sampler.tokenizer)
    except UserError:
        if data_dir:
            raise
        return None
    if data_dir and not is_same:
        raise UserError(f"--data_dir={data_dir} has another tokenizer than {sampler.checkpoint.description}")
    return dataset if is_same else None


def choose_passage(sampler: Sampler, dataset: Dataset | None, text: str, start: int | None = None) -> Passage:
    """The text; else the tokens at `start` of the validation split, which is where the run's evaluations keep
    the losses; else those after the first line end past a tenth of it."""
    length = min(PASSAGE_TOKENS, sampler.model.config.block_size)
    if text:
        tokens = sampler.encode(text)
        shown = tuple(tokens[: sampler.model.config.block_size])
        return Passage(sampler.encode("")[0], shown, None, len(tokens) - len(shown))
    if dataset is None:
        raise UserError(
            f"the dataset of {sampler.checkpoint.description} is not here: say where it is by "
            "--data_dir=FOLDER, or give a passage by --text='…'"
        )
    val = dataset.tokens("val")
    first = int(PASSAGE_AT * len(val))
    searched = np.asarray(val[first : first + 10_000])
    line_ends = (
        first + index
        for index, token in enumerate(searched.tolist())
        if b"\n" in sampler.tokenizer.token_bytes(token)
    )
    before = min(next(line_ends, first), max(0, len(val) - length - 1))
    if start is not None and 0 < start < len(val):
        before = start - 1
    tokens = [int(token) for token in val[before : before + length + 1]]
    if len(tokens) < 2:
        raise UserError("the validation split has fewer than two tokens: give a passage by --text='…'")
    return Passage(tokens[0], tuple(tokens[1:]), before + 1)


# --- one forward pass ---


@dataclass(frozen=True)
class PassageView:
    losses: list[float]  # nats, of each token given those before it
    guesses: list[list[tuple[int, float]]]  # of each token, before it was seen: the likeliest, with p
    attention: Tensor  # (layers, heads, T, T), of the context token and all tokens but the last

    @property
    def mean_loss(self) -> float:
        return sum(self.losses) / len(self.losses)


def look_at_passage(sampler: Sampler, passage: Passage) -> PassageView:
    tokens = torch.tensor([[passage.context, *passage.tokens]], device=sampler.execution.device)
    logits, attention = forward_with_attention(sampler.model, tokens[:, :-1])
    log_probs = logits[0].float().log_softmax(-1)
    losses = -log_probs.gather(-1, tokens[0, 1:, None])[:, 0]
    # Larger ids are padding of the model's matrices: part of the loss, as in training, but no guess.
    vocab_size = sampler.tokenizer.vocab_size
    best, ids = log_probs[:, :vocab_size].exp().topk(min(GUESSES, vocab_size))
    guesses = [
        list(zip(row_ids, row_probs, strict=True))
        for row_ids, row_probs in zip(ids.tolist(), best.tolist(), strict=True)
    ]
    return PassageView(losses.tolist(), guesses, attention[:, 0].cpu())


@torch.no_grad()
def forward_with_attention(model: GPT, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, T, V), and the attention weights (layers, B, heads, T, T) that they were computed with.

    The weights are computed again from what enters each attention layer: fused kernels do not return them.
    """
    weights: list[Tensor] = []

    def record(module: CausalSelfAttention, inputs: tuple[Tensor, tuple[Tensor, Tensor] | None]) -> None:
        x, rope = inputs[:2]
        q, k, _ = module.project(x, rope)
        weights.append(attention_weights(q, k))

    layers = [module for module in model.modules() if isinstance(module, CausalSelfAttention)]
    hooks = [layer.register_forward_pre_hook(record) for layer in layers]
    try:
        logits = model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return logits, torch.stack(weights)


# --- what the heads do ---


@dataclass(frozen=True)
class HeadScores:
    """Scores of all heads (layers, heads), between 0 and 1, and what uniform attention would score."""

    previous_token: Tensor  # on the passage: mean attention to the token before
    previous_token_uniform: float
    # On random tokens shown twice: mean attention from the second copy to the token that followed in the
    # first. A head that does this can repeat what it saw once. None: the context is too short.
    induction: Tensor | None
    induction_uniform: float | None
    first_copy_loss: float | None  # of the random tokens
    second_copy_loss: float | None  # lower: the model does repeat them


def previous_token_scores(attention: Tensor) -> Tensor:
    """`attention` (…, T, T): its mean one below the diagonal."""
    return attention.diagonal(-1, -2, -1).mean(-1)


def induction_scores(attention: Tensor, length: int) -> Tensor:
    """`attention` (…, 2 length, 2 length) on `length` tokens shown twice."""
    # Token i of the second copy stands at length + i; what followed it in the first at i + 1.
    return attention.diagonal(1 - length, -2, -1)[..., 1:].mean(-1)


def uniform_score(first: int, end: int) -> float:
    """Mean attention to one token by rows `first` to `end` - 1, if each attends equally to all it sees."""
    return float(np.mean(1 / np.arange(first + 1, end + 1)))


def score_heads(sampler: Sampler, attention: Tensor) -> HeadScores:
    """`attention`: on the passage."""
    model, device = sampler.model, sampler.execution.device
    usable = [token for token in range(sampler.tokenizer.vocab_size) if token != sampler.tokenizer.eot]
    longest = min(_REPEATED_TOKENS, model.config.block_size // 2, len(usable))
    T = attention.shape[-1]
    previous = previous_token_scores(attention) if T > 1 else torch.zeros(attention.shape[:2])
    previous_uniform = uniform_score(1, T) if T > 1 else 0.0
    # Of several lengths: a head that always looks 63 tokens back must not score as one that finds a token.
    lengths = range(longest, max(1, longest - _REPEATED_SEQUENCES), -1)
    if not lengths:
        return HeadScores(previous, previous_uniform, None, None, None, None)
    generator = np.random.default_rng(_SEED)
    scores, first_losses, second_losses = [], [], []
    for length in lengths:
        # Each token once, so that only one place is the right one.
        once = torch.from_numpy(generator.choice(usable, length, replace=False)).to(device)
        twice = torch.cat([once, once])[None]
        logits, repeated = forward_with_attention(model, twice)
        losses = -logits[0, :-1].float().log_softmax(-1).gather(-1, twice[0, 1:, None])[:, 0]
        scores.append(induction_scores(repeated[:, 0], length).cpu())
        first_losses.append(float(losses[: length - 1].mean()))
        # Its first token cannot be known: nothing says that the copy begins.
        second_losses.append(float(losses[length:].mean()))
    return HeadScores(
        previous_token=previous,
        previous_token_uniform=previous_uniform,
        induction=torch.stack(scores).mean(0),
        induction_uniform=float(np.mean([uniform_score(length, 2 * length) for length in lengths])),
        first_copy_loss=float(np.mean(first_losses)),
        second_copy_loss=float(np.mean(second_losses)),
    )


def highest_heads(scores: Tensor, count: int) -> list[tuple[int, int, float]]:
    """(layer, head, score) of the heads with the highest scores, from 0."""
    flat = scores.flatten()
    values, indices = flat.topk(min(count, len(flat)))
    heads = scores.shape[1]
    return [
        (index // heads, index % heads, value)
        for index, value in zip(indices.tolist(), values.tolist(), strict=True)
    ]


# --- what it copies ---


@dataclass(frozen=True)
class SampleOriginality:
    """Of samples: the longest string from the training text (with single blanks), and the words.

    `val_…`: the same of as much validation text, which the model did not write. A share is None without a
    word."""

    samples: int
    sample_tokens: int  # of all of them
    searched_tokens: int  # of the training text
    word_tokens: int  # of the training text, whose words were collected
    train_tokens: int
    copied_text: str
    copied_tokens: int
    val_copied_text: str
    val_copied_tokens: int
    copied_share: float  # of the sample that this string stands in
    known_words: float | None  # share of the words that occur in the training text
    val_known_words: float | None
    brackets_opened: int  # brackets and quotes
    brackets_closed: float | None  # share of those opened; None: none was
    val_brackets_closed: float | None


def measure_originality(sampler: Sampler, dataset: Dataset) -> SampleOriginality:
    tokenizer, prompt = sampler.tokenizer, sampler.encode("")
    # Several samples that fit into the context, rather than a long one: beyond it nothing can be cached.
    length = max(1, min(SAMPLE_TOKENS, sampler.model.config.block_size - len(prompt)))
    numbers = range(math.ceil(SAMPLE_TOKENS / length))
    draws = TokenSampler(tokenizer.vocab_size, seed=_SEED)
    steps = generate_samples(
        sampler.model,
        prompt,
        length,
        draws,
        samples=numbers,
        graph=sampler.execution.graph,
        kernels=sampler.execution.kernels,
    )
    with sampler.execution.autocast():
        samples = list(np.array(list(steps), dtype=np.int64).T)
    train, val = dataset.tokens("train"), dataset.tokens("val")
    total = sum(map(len, samples))
    first = int(PASSAGE_AT * len(val)) if len(val) >= 2 * total else 0
    val_text = np.asarray(val[first : first + total], dtype=np.int64)
    val_pieces = [val_text[begin : begin + length] for begin in range(0, len(val_text), length)]
    # A table: decoding millions of tokens one by one would take longer than everything else.
    token_bytes = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    bytes_by_token = np.array(token_bytes, dtype=object)
    is_space = np.array([content.isspace() for content in token_bytes])
    searched = sample_blocks(train, MAX_SEARCHED_TOKENS)
    blocks = [collapse_spaces(block, is_space) for block in searched]
    word_blocks = sample_blocks(train, _WORD_TOKENS)

    def decode(tokens: Tokens) -> str:
        return b"".join(bytes_by_token[tokens].tolist()).decode("utf-8", errors="replace")

    vocabulary = {word for block in word_blocks for word in find_words(decode(block))}

    def longest(pieces: list[Tokens]) -> tuple[str, int]:
        # One text, with a token between two pieces that the training text does not have.
        ends = [np.append(collapse_spaces(piece, is_space), -1) for piece in pieces]
        text = np.concatenate(ends)[:-1]
        copied = longest_copied(text, blocks)
        return decode(text[copied.start : copied.start + copied.length]), copied.length

    def known_words(pieces: list[Tokens]) -> float | None:
        # The first and the last word of a piece may be cut off.
        words = [find_words(decode(piece))[1:-1] for piece in pieces]
        return known_share(list(itertools.chain.from_iterable(words)), vocabulary)

    def closed_brackets(pieces: list[Tokens]) -> tuple[int, float | None]:
        counts = [count_closed_brackets(decode(piece)) for piece in pieces]
        opened, closed = sum(one for one, _ in counts), sum(one for _, one in counts)
        return opened, closed / opened if opened else None

    (text, copied_tokens), (val_copied_text, val_copied_tokens) = longest(samples), longest(val_pieces)
    brackets_opened, brackets_closed = closed_brackets(samples)
    return SampleOriginality(
        samples=len(samples),
        sample_tokens=total,
        searched_tokens=sum(map(len, searched)),
        word_tokens=sum(map(len, word_blocks)),
        train_tokens=len(train),
        copied_text=text,
        copied_tokens=copied_tokens,
        val_copied_text=val_copied_text,
        val_copied_tokens=val_copied_tokens,
        copied_share=copied_tokens / length,
        known_words=known_words(samples),
        val_known_words=known_words(val_pieces),
        brackets_opened=brackets_opened,
        brackets_closed=brackets_closed,
        val_brackets_closed=closed_brackets(val_pieces)[1],
    )
