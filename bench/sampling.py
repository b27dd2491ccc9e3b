"""Sampling speed of GlassGPT and nanoGPT, with the same random weights of GPT-2's size (124M).

    python -m bench sampling --nanogpt PATH/TO/nanoGPT --device cuda --out FILE

Every round is a separate process, in which each side generates its first batch, in alternating order, and on
a GPU a second one: PyTorch's libraries select a kernel for every new sequence length, of which nanoGPT,
without a KV cache, has 500. A user who wants one sample waits for that.

Prompts are one token; temperature and top-k are nanoGPT's. nanoGPT runs as in its sample.py: on a GPU with
autocast to bfloat16, not compiled; on a CPU in float32. The clock runs from the call to the last token, so
our time includes capturing the CUDA graph, and on a CPU packing the weights as float16. There `float32` is
our speed without that. Fewer tokens favour nanoGPT. Before the timing both sample greedily in float32, and
must generate the same tokens.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.context import BenchContext
from bench.glass import ROOT
from bench.peers import load_nanogpt_model
from bench.results import Result
from bench.watch import cache_environment, run_timed
from glassgpt.model.generate import generate, generate_samples, has_float16_linear, pack_float16_weights
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.model.token_sampler import TokenSampler
from glassgpt.training.device import ExecutionConfig

SHAPE: dict[str, Any] = {
    "vocab_size": 50304,
    "block_size": 1024,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "bias": True,
}
REAL_VOCABULARY = 50257
PROMPT_TOKEN = 50256
TEMPERATURE, TOP_K = 0.8, 200


def sampling(ctx: BenchContext) -> list[Result]:
    """Sampling 500 tokens with GPT-2 124M, one sample and eight at a time."""
    tokens, environment = ctx.options.updates or 500, cache_environment(ctx.fresh_dir("caches"))
    rows = []
    for batch in (1, 8):
        first: dict[str, list[float]] = {"nanogpt": [], "glassgpt": [], "float32": []}
        later: dict[str, list[float]] = {"nanogpt": [], "glassgpt": [], "float32": []}
        for number in range(ctx.options.rounds):
            command = [sys.executable, "-m", "bench.sampling", str(ctx.nanogpt.root), ctx.device_type]
            command += [str(tokens), str(batch), str(number)]
            speeds = json.loads(run_timed(command, ROOT, environment).lines[-1].text)
            for name, values in speeds.items():
                ctx.log(f"batch {batch}  round {number}  {name:<9} {values} tok/s")
                first[name].append(values[0])
                later[name] += values[1:]
        ratios = [our / their for our, their in zip(first["glassgpt"], first["nanogpt"], strict=True)]
        again = [our / their for our, their in zip(later["glassgpt"], later["nanogpt"], strict=True)]
        details = {"tokens": tokens, "dtype": usual_dtype(ctx.device_type)}
        details |= {"later_texts": later, "later_ratios": again, "float32": first.pop("float32")}
        rows.append(ctx.make_result(f"sampling-{batch}", "tokens/s", **first, values=ratios, details=details))
    return rows


def usual_dtype(device: str) -> str:
    return "float32" if device == "cpu" else "bfloat16"


def one_round(
    checkout: Path, device_type: str, tokens: int, batch: int, number: int
) -> dict[str, list[float]]:
    """In a process of its own: tokens/s of each side's first batch, and on a GPU of a second one."""
    device = torch.device(device_type)
    execution = ExecutionConfig(device, usual_dtype(device_type), graph=device_type == "cuda")
    nanogpt = load_nanogpt_model(checkout)
    torch.manual_seed(0)
    theirs = nanogpt.GPT(nanogpt.GPTConfig(**SHAPE)).to(device).eval()
    ours = GPT(GPTConfig(**SHAPE)).to(device).eval()
    ours.load_state_dict(theirs.state_dict())
    check_same_sample(theirs, ours)
    samplers: dict[str, Callable[[int], None]] = {
        "nanogpt": lambda count: sample_nanogpt(theirs, execution, batch, count),
        "glassgpt": lambda count: sample_glass(float16_on_cpu(ours), execution, batch, count),
    }
    if device_type == "cpu":
        samplers["float32"] = lambda count: sample_glass(ours, execution, batch, count)
    speeds: dict[str, list[float]] = {name: [] for name in samplers}
    for sample in samplers.values():
        sample(5)  # warm-up: loads libraries, allocates memory
    turns = list(samplers) if number % 2 == 0 else list(reversed(samplers))
    for _ in range(2 if device_type == "cuda" else 1):
        for name in turns:
            execution.synchronize()
            started = time.perf_counter()
            samplers[name](tokens)
            execution.synchronize()
            speeds[name].append(batch * tokens / (time.perf_counter() - started))
    return speeds


def check_same_sample(theirs: Any, ours: GPT) -> None:
    prompt = torch.randint(REAL_VOCABULARY, (1, 9), device=ours.lm_head.weight.device)
    expected = theirs.generate(prompt, 20, top_k=1)[0, 9:].tolist()
    greedy = TokenSampler(REAL_VOCABULARY, temperature=0.0)
    for graph in (False, True):
        text = list(generate(ours, prompt[0].tolist(), 20, greedy, graph=graph))
        assert text == expected, (text, expected)


def float16_on_cpu(model: GPT) -> GPT:
    """The model as `glass sample` loads it for so many tokens."""
    if model.lm_head.weight.is_cuda or not has_float16_linear():
        return model
    packed = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    pack_float16_weights(packed)
    return packed


@torch.no_grad()
def sample_nanogpt(model: Any, execution: ExecutionConfig, batch: int, count: int) -> None:
    prompt = torch.full((batch, 1), PROMPT_TOKEN, device=execution.device)
    with execution.autocast():
        model.generate(prompt, count, temperature=TEMPERATURE, top_k=TOP_K)


def sample_glass(model: GPT, execution: ExecutionConfig, batch: int, count: int) -> None:
    """As `glass sample` does it: the autocast is entered for each token, which is printed before the next."""
    sampler = TokenSampler(REAL_VOCABULARY, TEMPERATURE, TOP_K)
    steps = generate_samples(
        model, [PROMPT_TOKEN], count, sampler, samples=range(batch), graph=execution.graph
    )
    for _ in range(count):
        with execution.autocast():
            next(steps)


if __name__ == "__main__":
    checkout, device_type, *numbers = sys.argv[1:]
    tokens, batch, number = map(int, numbers)
    print(json.dumps(one_round(Path(checkout), device_type, tokens, batch, number)))
