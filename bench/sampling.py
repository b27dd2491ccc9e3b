"""GlassGPT and nanoGPT side by side writing text, with the same random weights of GPT-2's size (124M).

    python bench/sampling.py --nanogpt PATH/TO/nanoGPT --device cuda [--tokens 500] [--rounds 3]

The two write in alternation, from a prompt of one token, by nanoGPT's temperature and top-k. nanoGPT does it
as its sample.py does: on a card in an autocast to bfloat16, not compiled; on a CPU in float32. The clock runs
from the call to the last token, so recording a CUDA graph is in our time. nanoGPT reads the whole text again
for every token: fewer --tokens flatter it. Before all that both write without chance in float32, and must
write the same. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from glassgpt.model.generate import generate, generate_samples
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.train.device import Placement, device_name

SHAPE: dict[str, Any] = {
    "vocab_size": 50304,
    "block_size": 1024,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "bias": True,
}
KNOWN_TOKENS = 50257
PROMPT = 50256
TEMPERATURE, TOP_K = 0.8, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="float32 on a CPU, else bfloat16")
    parser.add_argument("--tokens", type=int, default=500, help="per text")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="texts at a time")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    device = torch.device(options.device)
    dtype = options.dtype or ("float32" if device.type == "cpu" else "bfloat16")
    placement = Placement(device, dtype, compile=device.type == "cuda", attention="sdpa")
    theirs, ours = same_models(options.nanogpt, device)
    check_same_text(theirs, ours)
    result: dict[str, Any] = {
        "device": device_name(device),
        "torch": torch.__version__,
        "dtype": dtype,
        "tokens": options.tokens,
        "batches": {},
    }
    for batch in options.batches:
        result["batches"][batch] = compare(theirs, ours, placement, batch, options.tokens, options.rounds)
    print(json.dumps(result))


def same_models(checkout: Path, device: torch.device) -> tuple[Any, GPT]:
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


def check_same_text(theirs: Any, ours: GPT) -> None:
    prompt = torch.randint(KNOWN_TOKENS, (1, 9), device=ours.lm_head.weight.device)
    expected = theirs.generate(prompt, 20, top_k=1)[0, 9:].tolist()
    for graph in (False, True):
        text = list(
            generate(ours, prompt[0].tolist(), 20, vocab_size=KNOWN_TOKENS, temperature=0.0, graph=graph)
        )
        assert text == expected, (text, expected)


def compare(
    theirs: Any, ours: GPT, placement: Placement, batch: int, tokens: int, rounds: int
) -> dict[str, Any]:
    writers: dict[str, Callable[[int], None]] = {
        "nanogpt": lambda count: write_nanogpt(theirs, placement, batch, count),
        "glassgpt": lambda count: write_glass(ours, placement, batch, count),
    }
    speeds: dict[str, list[float]] = {name: [] for name in writers}
    for write in writers.values():
        write(5)  # not counted: libraries are loaded, memory is taken
    for number in range(rounds):
        for name, write in writers.items():
            speeds[name].append(batch * tokens / seconds(write, tokens, placement))
            print(f"batch {batch}  round {number}  {name:<9} {speeds[name][-1]:9,.1f} tok/s", flush=True)
    ratios = [our / their for our, their in zip(speeds["glassgpt"], speeds["nanogpt"], strict=True)]
    print(f"batch {batch}: GlassGPT writes {statistics.median(ratios):.1f} x as fast, {tokens} tokens each\n")
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    return {"tokens_per_s": medians, "ratio": statistics.median(ratios), "rounds": speeds, "ratios": ratios}


def seconds(write: Callable[[int], None], tokens: int, placement: Placement) -> float:
    placement.synchronize()
    started = time.perf_counter()
    write(tokens)
    placement.synchronize()
    return time.perf_counter() - started


@torch.no_grad()
def write_nanogpt(model: Any, placement: Placement, batch: int, count: int) -> None:
    prompt = torch.full((batch, 1), PROMPT, device=placement.device)
    with placement.autocast():
        model.generate(prompt, count, temperature=TEMPERATURE, top_k=TOP_K)


def write_glass(model: GPT, placement: Placement, batch: int, count: int) -> None:
    """As `glass sample` does it: the autocast is entered for each token, which is printed before the next."""
    steps = generate_samples(
        model,
        [PROMPT],
        count,
        samples=range(batch),
        vocab_size=KNOWN_TOKENS,
        temperature=TEMPERATURE,
        top_k=TOP_K,
        graph=placement.compile,
    )
    for _ in range(count):
        with placement.autocast():
            next(steps)


if __name__ == "__main__":
    main()
