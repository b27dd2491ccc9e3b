"""A model that writes: weights, the tokenizer that goes with them, and a device to run on."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from glassgpt.config import Choice
from glassgpt.data.tokenizers import Tokenizer, encode_prompt
from glassgpt.errors import UserError
from glassgpt.model.generate import TokenSampler, generate_samples
from glassgpt.model.gpt import GPT
from glassgpt.model.weights import build_model
from glassgpt.paths import expand_user_path
from glassgpt.record.run_dir import NANOGPT_CKPT_FILE, RUNS_DIR, latest_numbered_run, numbered_runs
from glassgpt.sample.sample_options import SampleOptions
from glassgpt.training.checkpoint.checkpoints import committed_paths
from glassgpt.training.device import ExecutionConfig, choose_device, choose_dtype
from glassgpt.training.init_weights import find_tokenizer
from glassgpt.training.weight_source import LoadedCheckpoint, load_init_from

_MAX_KV_CACHE_BYTES = 2**30  # keys and values of samples written at the same time stay under this


@dataclass(frozen=True)
class Sampler:
    checkpoint: LoadedCheckpoint
    model: GPT
    tokenizer: Tokenizer
    execution: ExecutionConfig
    choices: tuple[Choice, ...]

    def encode(self, text: str) -> list[int]:
        """The prompt's tokens. For an empty one: a line break, or where a text begins if there are none."""
        if text:
            return [int(token) for token in encode_prompt(self.tokenizer, text)]
        try:
            line_break = self.encode("\n")
        except UserError:  # a text of one line has no line break among its characters
            line_break = []
        # And where the ids are all that is known, a line break is none of them.
        return line_break or [0 if self.tokenizer.eot is None else self.tokenizer.eot]

    def visible_prompt(self, prompt: list[int], text: str) -> str:
        """The prompt as it stands before what is written. Ids, unlike text, need a blank before the next."""
        return self.tokenizer.decode(prompt) if text else ""

    def sample(self, prompt: list[int], options: SampleOptions) -> Iterator[list[str]]:
        """Yields, token by token, what is new in each of the samples that are written together. An empty
        list ends such a group."""
        size = self._group_size(len(prompt) + options.max_new_tokens)
        for first in range(0, options.num_samples, size):
            numbers = range(first, min(first + size, options.num_samples))
            yield from self._sample_group(prompt, options, numbers)
            yield []

    def _sample_group(self, prompt: list[int], options: SampleOptions, numbers: range) -> Iterator[list[str]]:
        # A token may end in the middle of a character; it shows when the character is whole.
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in numbers]
        draws = TokenSampler(
            self.tokenizer.vocab_size, options.temperature, options.top_k, options.top_p, options.seed
        )
        count, graph = options.max_new_tokens, self.execution.graph
        steps = generate_samples(self.model, prompt, count, draws, samples=numbers, graph=graph)
        while True:
            with self.execution.autocast():
                tokens = next(steps, None)
            if tokens is None:
                break
            yield [
                decoder.decode(self.tokenizer.token_bytes(token))
                for decoder, token in zip(decoders, tokens, strict=True)
            ]
        yield [decoder.decode(b"", final=True) for decoder in decoders]

    def _group_size(self, length: int) -> int:
        shape = self.model.config
        each = 2 * 4 * shape.n_layer * shape.n_embd * min(length, shape.block_size)
        return max(1, _MAX_KV_CACHE_BYTES // each)


def load_sampler(run: str, options: SampleOptions) -> Sampler:
    origin = load_init_from(run, which="best")
    device, device_choice = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    tokenizer = find_tokenizer(origin, options.data_dir)
    model = build_model(origin.model_config, origin.weights, origin.description)
    graph = _choose_graph(options.compile, device)
    choices = [device_choice, dtype, Choice("tokenizer", tokenizer.name, f"{tokenizer.vocab_size:,} tokens")]
    if device.type == "cuda" or options.compile == "on":
        choices.append(graph)
    placement = ExecutionConfig(device, str(dtype.value), graph=graph.value == "on")
    if device.index is not None:
        torch.cuda.set_device(device)
    return Sampler(
        origin,
        model.to(device).eval(),
        tokenizer,
        placement,
        tuple(choices),
    )


def _choose_graph(asked: str, device: torch.device) -> Choice:
    """What `compile` means here."""
    if device.type != "cuda":
        return Choice("compile", "off", "a step is recorded only on a CUDA card; there is nothing to compile")
    if asked == "off":
        return Choice("compile", "off", "asked for: each token's kernels are launched one by one")
    return Choice("compile", "on", "the step from token to token is recorded once, as a CUDA graph")


def find_model_source(run: str | None, options: SampleOptions) -> str:
    """What `open_writer` shall open, from the ways there are to say it."""
    if options.init_from != "resume":
        if run or options.out_dir:
            raise UserError(f"--init_from={options.init_from} says which model: leave out RUN and --out_dir")
        return options.init_from
    if run and options.out_dir:
        raise UserError(f"{run} and --out_dir={options.out_dir} both say which run: leave one out")
    return run or str(_newest_of_row(options.out_dir) if options.out_dir else _newest_run())


def _newest_of_row(out_dir: str) -> Path:
    """Of OUT_DIR, OUT_DIR-2, …, the last that has something to write with."""
    base = expand_user_path(out_dir)
    ready = [folder for folder in numbered_runs(base) if _has_weights(folder)]
    if not ready and not _has_weights(base):
        return latest_numbered_run(base)  # which says what is wrong
    return ready[-1] if ready else base


def _newest_run() -> Path:
    """The run that was written to last, in runs/ or nanoGPT's default folder."""
    folders = [*(RUNS_DIR.iterdir() if RUNS_DIR.is_dir() else ()), *Path().glob("out*")]
    runs: list[Path] = [folder for folder in folders if _has_weights(folder)]
    if not runs:
        raise UserError(f"there is no run in {RUNS_DIR}/ to sample from; say which: glass sample RUN")
    return max(runs, key=_last_written)


def _last_written(folder: Path) -> float:
    return max(file.lstat().st_mtime for file in folder.iterdir())


def _has_weights(folder: Path) -> bool:
    return (folder / NANOGPT_CKPT_FILE).is_file() or bool(committed_paths(folder))
