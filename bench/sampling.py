"""Sampling speed of GlassGPT and nanoGPT, with the same random weights of GPT-2's size (124M).

    python bench/sampling.py --nanogpt PATH/TO/nanoGPT --device cuda [--tokens 500] [--rounds 3]

Every round is a separate process, in which each side generates its first batch, in alternating order, and on
a GPU a second one: PyTorch's libraries select a kernel for every new sequence length, of which nanoGPT,
without a KV cache, has 500. A user who wants one sample waits for that.

Prompts are one token; temperature and top-k are nanoGPT's. nanoGPT runs as in its sample.py: on a GPU with
autocast to bfloat16, not compiled; on a CPU in float32. The clock runs from the call to the last token, so
our time includes capturing the CUDA graph. Fewer --tokens favour nanoGPT. Before the timing both sample
greedily in float32, and must generate the same tokens. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from glassgpt.model.generate import generate, generate_samples
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.model.token_sampler import TokenSampler
from glassgpt.training.device import ExecutionConfig, device_name

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="float32 on a CPU, else bfloat16")
    parser.add_argument("--tokens", type=int, default=500, help="per sample")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="samples at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round", type=int, help="this one only, in this process")
    options = parser.parse_args()
    if options.round is not None:
        print(json.dumps(one_round(options)))
        return
    batches = {batch: run_rounds(batch, options.rounds) for batch in options.batches}
    device = device_name(torch.device(options.device))
    about = {"device": device, "torch": torch.__version__, "tokens": options.tokens}
    print(json.dumps(about | {"dtype": dtype_of(options), "batches": batches}))


def dtype_of(options: argparse.Namespace) -> str:
    return str(options.dtype or ("float32" if options.device == "cpu" else "bfloat16"))


def run_rounds(batch: int, rounds: int) -> dict[str, Any]:
    """The rounds of one batch size, each in a subprocess of this script."""
    first: dict[str, list[float]] = {"nanogpt": [], "glassgpt": []}
    later: dict[str, list[float]] = {"nanogpt": [], "glassgpt": []}
    for number in range(rounds):
        command = [sys.executable, *sys.argv, "--batches", str(batch), "--round", str(number)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        speeds = json.loads(done.stdout.splitlines()[-1])
        for name, values in speeds.items():
            print(f"batch {batch}  round {number}  {name:<9} {values} tok/s", flush=True)
            first[name].append(values[0])
            later[name] += values[1:]
    ratios = [our / their for our, their in zip(first["glassgpt"], first["nanogpt"], strict=True)]
    again = [our / their for our, their in zip(later["glassgpt"], later["nanogpt"], strict=True)]
    print(f"batch {batch}: GlassGPT samples {statistics.median(ratios):.1f} x as fast")
    if again:
        print(f"         and {statistics.median(again):.1f} x as fast for the second batch of a process")
    return {"rounds": first, "ratios": ratios, "later_texts": later, "later_ratios": again}


def one_round(options: argparse.Namespace) -> dict[str, list[float]]:
    device = torch.device(options.device)
    placement = ExecutionConfig(device, dtype_of(options), graph=device.type == "cuda")
    theirs, ours = build_same_models(options.nanogpt, device)
    check_same_sample(theirs, ours)
    (batch,) = options.batches
    samplers: dict[str, Callable[[int], None]] = {
        "nanogpt": lambda count: sample_nanogpt(theirs, placement, batch, count),
        "glassgpt": lambda count: sample_glass(ours, placement, batch, count),
    }
    speeds: dict[str, list[float]] = {name: [] for name in samplers}
    for sample in samplers.values():
        sample(5)  # warm-up: loads libraries, allocates memory
    turns = list(samplers) if options.round % 2 == 0 else list(reversed(samplers))
    for _ in range(2 if device.type == "cuda" else 1):
        for name in turns:
            speeds[name].append(
                batch * options.tokens / time_sampling(samplers[name], options.tokens, placement)
            )
    return speeds


def build_same_models(checkout: Path, device: torch.device) -> tuple[Any, GPT]:
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None
    assert spec.loader is not None
    nanogpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    torch.manual_seed(0)
    theirs = nanogpt.GPT(nanogpt.GPTConfig(**SHAPE)).to(device).eval()
    ours = GPT(GPTConfig(**SHAPE)).to(device).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def check_same_sample(theirs: Any, ours: GPT) -> None:
    prompt = torch.randint(REAL_VOCABULARY, (1, 9), device=ours.lm_head.weight.device)
    expected = theirs.generate(prompt, 20, top_k=1)[0, 9:].tolist()
    greedy = TokenSampler(REAL_VOCABULARY, temperature=0.0)
    for graph in (False, True):
        text = list(generate(ours, prompt[0].tolist(), 20, greedy, graph=graph))
        assert text == expected, (text, expected)


def time_sampling(sample: Callable[[int], None], tokens: int, placement: ExecutionConfig) -> float:
    placement.synchronize()
    started = time.perf_counter()
    sample(tokens)
    placement.synchronize()
    return time.perf_counter() - started


@torch.no_grad()
def sample_nanogpt(model: Any, placement: ExecutionConfig, batch: int, count: int) -> None:
    prompt = torch.full((batch, 1), PROMPT_TOKEN, device=placement.device)
    with placement.autocast():
        model.generate(prompt, count, temperature=TEMPERATURE, top_k=TOP_K)


def sample_glass(model: GPT, placement: ExecutionConfig, batch: int, count: int) -> None:
    """As `glass sample` does it: the autocast is entered for each token, which is printed before the next."""
    sampler = TokenSampler(REAL_VOCABULARY, TEMPERATURE, TOP_K)
    steps = generate_samples(
        model, [PROMPT_TOKEN], count, sampler, samples=range(batch), graph=placement.graph
    )
    for _ in range(count):
        with placement.autocast():
            next(steps)


if __name__ == "__main__":
    main()
