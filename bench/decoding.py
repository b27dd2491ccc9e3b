"""Decoding speed of GlassGPT's plain and fused decoding steps, with random weights of GPT-2's size.

    python -m bench.decoding [--tokens 500] [--batches 1 8] [--arch gpt2] [--paths plain fused] [--profile]

The first text of the process includes loading and building kernels; `cold` says whether Triton's cache was
empty. MBU is the model bandwidth utilisation: bytes of weights and cached keys and values that the steps
read, per second, of the card's bandwidth. With --profile: the kernels of a step, microseconds each.
The last line is
one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from bench.sampling import PROMPT_TOKEN, REAL_VOCABULARY, SHAPE, TEMPERATURE, TOP_K
from glassgpt.estimate.cards import find_card
from glassgpt.model.generate import decoding_bytes, generate_samples
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.model.token_sampler import TokenSampler
from glassgpt.training.device import ExecutionConfig

TEXTS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=500, help="per sample")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="samples at a time")
    parser.add_argument("--arch", choices=["gpt2", "modern"], default="gpt2")
    parser.add_argument("--paths", choices=["plain", "fused"], nargs="+", default=["fused", "plain"])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    cache = Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache"))
    is_cold = not cache.is_dir() or not any(cache.iterdir())
    execution = ExecutionConfig(torch.device("cuda"), "bfloat16", graph=True)
    torch.manual_seed(0)
    activation = "gelu" if options.arch == "gpt2" else "relu2"
    model = GPT(GPTConfig(**SHAPE, arch=options.arch, activation=activation)).cuda().eval()
    name = torch.cuda.get_device_name()
    card = find_card(name)
    document: dict[str, Any] = {
        "device": name,
        "torch": torch.__version__,
        "arch": options.arch,
        "tokens": options.tokens,
        "cold": is_cold,
        "rows": [],
    }
    for batch in options.batches:
        read_bytes = decoding_bytes(model, 1, options.tokens, batch, itemsize=2)
        for path in options.paths:
            seconds = [generate(model, execution, batch, options.tokens, path) for _ in range(TEXTS)]
            speeds = [round(batch * options.tokens / value) for value in seconds]
            mbu = None if card is None else read_bytes / min(seconds) / (card.bandwidth_gb_s * 1e9)
            print(f"batch {batch}  {path}  tok/s {speeds}  seconds {seconds}  MBU {mbu}", flush=True)
            document["rows"].append({"batch": batch, "path": path, "tokens_per_s": speeds, "mbu": mbu})
            if options.profile:
                print_kernels(model, execution, batch, path)
    print(json.dumps(document))


def generate(model: GPT, execution: ExecutionConfig, batch: int, count: int, path: str) -> float:
    """The seconds from the call to the last token. As `glass sample` does it: an autocast for each token."""
    execution.synchronize()
    started = time.perf_counter()
    sampler = TokenSampler(REAL_VOCABULARY, TEMPERATURE, TOP_K)
    fused = path == "fused"
    steps = generate_samples(
        model, [PROMPT_TOKEN], count, sampler, samples=range(batch), graph=True, kernels=fused
    )
    for _ in range(count):
        with execution.autocast():
            next(steps)
    execution.synchronize()
    return time.perf_counter() - started


def print_kernels(model: GPT, execution: ExecutionConfig, batch: int, path: str) -> None:
    """Of the steps of one text, without what comes before: the difference of a long and a short one."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    counts = (20, 220)
    for count, sign in zip(counts, (-1, 1), strict=True):
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            generate(model, execution, batch, count, path)
        for event in profiler.events():
            if event.device_type == DeviceType.CUDA:
                totals[event.name][0] += sign * event.device_time
                totals[event.name][1] += sign
    steps = counts[1] - counts[0]
    for kernel, (microseconds, launches) in sorted(totals.items(), key=lambda item: -item[1][0])[:14]:
        each = microseconds / launches if launches else 0.0
        line = f"{microseconds / steps:8.1f} us/step {launches / steps:6.1f} launches {each:7.2f} us each"
        print(f"    {line}  {kernel[:90]}")
    print(f"    {sum(value for value, _ in totals.values()) / steps:8.1f} us/step in kernels", flush=True)


if __name__ == "__main__":
    main()
