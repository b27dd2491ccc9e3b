"""A sampler: a model, the tokenizer that goes with its weights, and the device it runs on.

sampler = load_sampler("runs/quickstart", SampleOptions())
for new_text in sampler.sample(sampler.encode("Once"), options): ...
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from glassgpt.config import Choice, TrainConfig
from glassgpt.data.tokenizers import Tokenizer, encode_prompt
from glassgpt.errors import UserError
from glassgpt.estimate.cards import find_card
from glassgpt.estimate.decide import choose_threads
from glassgpt.estimate.machine_facts import Origin, find_missing_toolchain
from glassgpt.files import expand_user_path
from glassgpt.model.generate import (
    decoding_bytes,
    generate_samples,
    has_float16_linear,
    pack_float16_weights,
)
from glassgpt.model.gpt import GPT
from glassgpt.model.token_sampler import TokenSampler
from glassgpt.model.weights import build_model
from glassgpt.record.run_dir import NANOGPT_CKPT_FILE, RUNS_DIR, latest_numbered_run, numbered_runs
from glassgpt.sample.sample_options import SampleOptions
from glassgpt.training.checkpoint.checkpoints import LoadedCheckpoint, committed_paths
from glassgpt.training.compute_plan import set_threads
from glassgpt.training.device import ExecutionConfig, choose_device, choose_dtype, device_name
from glassgpt.training.weight_source import find_tokenizer, load_init_from

# On an H200 GPT-2 124M takes 0.7 ms less per token by the fused kernels; building them takes some seconds.
_MIN_TOKENS_FOR_KERNELS = 2000
# On a CPU, float16 weights are no faster in smaller models. Packing them takes what about 100 tokens save.
_MIN_PARAMETERS_FOR_FLOAT16 = 5_000_000
_MIN_TOKENS_FOR_FLOAT16 = 200
_MAX_KV_CACHE_BYTES = 2**30  # limits how many samples are generated in one batch


@dataclass(frozen=True)
class Sampler:
    checkpoint: LoadedCheckpoint
    model: GPT
    tokenizer: Tokenizer
    execution: ExecutionConfig
    choices: tuple[Choice, ...]

    def encode(self, text: str) -> list[int]:
        """The prompt's tokens. For an empty prompt: a line break, else the end-of-text token, else 0."""
        if text:
            return [int(token) for token in encode_prompt(self.tokenizer, text)]
        try:
            line_break = self.encode("\n")
        except UserError:  # a character vocabulary may lack it
            line_break = []
        # The `ids` tokenizer, without texts, encodes a line break to nothing.
        return line_break or [0 if self.tokenizer.eot is None else self.tokenizer.eot]

    def visible_prompt(self, prompt: list[int], text: str) -> str:
        """The prompt as shown before the sample. Decoded, because the `ids` tokenizer adds a space."""
        return self.tokenizer.decode(prompt) if text else ""

    def token_sampler(self, options: SampleOptions) -> TokenSampler:
        vocab_size, seed = self.tokenizer.vocab_size, options.seed
        return TokenSampler(vocab_size, options.temperature, options.top_k, options.top_p, seed)

    def sample(self, prompt: list[int], options: SampleOptions) -> Iterator[list[str]]:
        """Yields, token by token, the new text of each sample in a batch. An empty list ends a batch."""
        batch_size = self._batch_size(prompt, options)
        for first in range(0, options.num_samples, batch_size):
            numbers = range(first, min(first + batch_size, options.num_samples))
            yield from self._sample_batch(prompt, options, numbers)
            yield []

    def bandwidth_use(self, prompt: list[int], options: SampleOptions, seconds: float) -> str:
        """Model bandwidth utilisation (MBU) of such samples: a share and its inputs. Empty: unknown card."""
        card = find_card(device_name(self.execution.device))
        if card is None or self.execution.device.type != "cuda":
            return ""
        itemsize = 4 if self.execution.dtype == "float32" else 2
        batch = self._batch_size(prompt, options)
        rows = [min(batch, options.num_samples - first) for first in range(0, options.num_samples, batch)]
        read = sum(decoding_bytes(self.model, len(prompt), options.max_new_tokens, n, itemsize) for n in rows)
        share = read / seconds / (card.bandwidth_gb_s * 1e9)
        return (
            f"{share:.1%} ({read / 1e9:,.1f} GB of weights and cache read, {card.bandwidth_gb_s:,.0f} GB/s)"
        )

    def _batch_size(self, prompt: list[int], options: SampleOptions) -> int:
        shape = self.model.config
        length = min(len(prompt) + options.max_new_tokens, shape.block_size)
        kv_cache_bytes = 2 * 4 * shape.n_layer * shape.n_embd * length  # of one sample
        return max(1, _MAX_KV_CACHE_BYTES // kv_cache_bytes)

    def _sample_batch(self, prompt: list[int], options: SampleOptions, numbers: range) -> Iterator[list[str]]:
        # A token may end in the middle of a character, which is shown when it is complete.
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in numbers]
        steps = generate_samples(
            self.model,
            prompt,
            options.max_new_tokens,
            self.token_sampler(options),
            samples=numbers,
            graph=self.execution.graph,
            kernels=self.execution.kernels,
        )
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


def load_sampler(run: str, options: SampleOptions) -> Sampler:
    loaded = load_init_from(run, which="best")
    device, _ = choose_device(options.device)
    default_threads, busy_cores, _ = set_threads(TrainConfig(), device, Origin())
    threads = choose_threads(None, default_threads, None, busy_cores)
    _, device_choice = choose_device(options.device)  # again: it names the number of threads
    tokenizer = find_tokenizer(loaded, options.data_dir)
    model = build_model(loaded.model_config, loaded.weights, loaded.description)
    dtype = _choose_dtype(options, device, model.parameter_count())
    computed_in = str(dtype.value)
    if device.type == "cpu" and dtype.value == "float16":
        pack_float16_weights(model)
        computed_in = "float32"
    graph = _choose_graph(options.compile, device)
    kernels = _choose_kernels(options, graph.value == "on")
    choices = [device_choice] if threads is None else [device_choice, threads]
    choices += [dtype, Choice("tokenizer", tokenizer.name, f"{tokenizer.vocab_size:,} tokens")]
    if device.type == "cuda" or options.compile == "on":
        choices.append(graph)
    if graph.value == "on":
        choices.append(kernels)
    execution = ExecutionConfig(
        device, computed_in, kernels=kernels.value == "triton", graph=graph.value == "on"
    )
    if device.index is not None:
        torch.cuda.set_device(device)
    return Sampler(loaded, model.to(device).eval(), tokenizer, execution, tuple(choices))


def _choose_dtype(options: SampleOptions, device: torch.device, parameters: int) -> Choice:
    """As in training. But on a CPU float16 can be that of the weights alone."""
    if device.type != "cpu" or options.dtype not in ("auto", "float16") or not has_float16_linear():
        return choose_dtype(options.dtype, device)
    weights_only = "weights only: half the bytes to read for each token, summed in float32"
    if options.dtype == "float16":
        return Choice("dtype", "float16", f"asked for; {weights_only}")
    if parameters < _MIN_PARAMETERS_FOR_FLOAT16:
        return Choice("dtype", "float32", "float16 weights are no faster in so small a model")
    if options.max_new_tokens < _MIN_TOKENS_FOR_FLOAT16:
        reason = f"packing float16 weights takes longer than {options.max_new_tokens:,} tokens save"
        return Choice("dtype", "float32", reason)
    return Choice("dtype", "float16", weights_only)


def _choose_kernels(options: SampleOptions, graph: bool) -> Choice:
    """Whether a decoding step is one Triton kernel, which has to be built or loaded first."""
    missing = find_missing_toolchain("cuda")
    if not graph or missing is not None:
        return Choice("kernels", "plain", missing or "--compile=off: nothing is built")
    if options.max_new_tokens < _MIN_TOKENS_FOR_KERNELS:
        reason = f"a fused one saves less on {options.max_new_tokens:,} tokens than building it takes"
        return Choice("kernels", "plain", reason)
    return Choice("kernels", "triton", "one launch a token, which is chosen on the card")


def _choose_graph(requested: str, device: torch.device) -> Choice:
    """--compile in sampling: whether the decode step is captured as a CUDA graph."""
    if device.type != "cuda":
        return Choice("compile", "off", "a CUDA graph is captured only on a CUDA card; nothing to compile")
    if requested == "off":
        return Choice("compile", "off", "asked for: each token's kernels are launched one by one")
    return Choice("compile", "on", "the decode step is captured as a CUDA graph")


def find_model_source(run: str | None, options: SampleOptions) -> str:
    """The spec for `load_sampler`: from RUN, --init_from or --out_dir; else the newest run."""
    if options.init_from != "resume":
        if run or options.out_dir:
            raise UserError(f"--init_from={options.init_from} says which model: leave out RUN and --out_dir")
        return options.init_from
    if run and options.out_dir:
        raise UserError(f"{run} and --out_dir={options.out_dir} both say which run: leave one out")
    if run:
        return run
    if options.out_dir:  # the last of OUT_DIR, OUT_DIR-2, … that has weights
        base = expand_user_path(options.out_dir)
        with_weights = [folder for folder in numbered_runs(base) if _has_weights(folder)]
        if not with_weights and not _has_weights(base):
            return str(latest_numbered_run(base))  # which raises if there is no run
        return str(with_weights[-1] if with_weights else base)
    # The run that was written to last, in runs/ or a folder named as nanoGPT's.
    folders = [*(RUNS_DIR.iterdir() if RUNS_DIR.is_dir() else ()), *Path().glob("out*")]
    modified = {
        folder: max(file.lstat().st_mtime for file in folder.iterdir())
        for folder in folders
        if _has_weights(folder)
    }
    if not modified:
        raise UserError(f"there is no run in {RUNS_DIR}/ to sample from; say which: glass sample RUN")
    return str(max(modified, key=lambda folder: modified[folder]))


def _has_weights(folder: Path) -> bool:
    return (folder / NANOGPT_CKPT_FILE).is_file() or bool(committed_paths(folder))
