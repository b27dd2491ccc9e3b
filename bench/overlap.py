"""The all-reduce of gradients alone: blocks that sleep instead of computing, as if a GPU did that.

    python -m bench.overlap --ranks 2 4                       # one machine
    python -m bench.overlap --ranks 2 4 --rate 200mbit        # as root: half of the ranks behind a slow link

Compares an all-reduce after the backward pass, overlap in buckets of several sizes, and PyTorch's
DistributedDataParallel. Processes that hardly compute are hardly disturbed by others. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.ranks import in_namespace, slow_link
from glassgpt.training.distributed import gradient_all_reduce

BLOCKS, WIDTH = 6, 384  # with four matrices of WIDTH x 3 WIDTH each: 10.6 million parameters, 42 MB
FORWARD_S = 0.1  # of a block; its backward pass takes twice as long
WAYS = ("after", "overlap, 25 MiB", "overlap, 8 MiB", "overlap, 2 MiB", "DDP, 25 MiB", "DDP, 8 MiB")


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD_S)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        time.sleep(2 * FORWARD_S)
        return gradients[0]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        products = torch.stack([matrix(x) for matrix in self.matrices])
        return Sleep.apply(x + products.mean(0)[..., :WIDTH])  # type: ignore[no-any-return, no-untyped-call]


def run_rank(way: str, updates: int) -> None:
    """As the process of one rank: prints the median seconds of an update."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    torch.set_num_threads(1)
    name, _, size = way.partition(", ")
    bucket_mib = int(size.split()[0]) if size else 64
    gradient_all_reduce.ALL_REDUCE_BUCKET_BYTES = bucket_mib * 2**20  # type: ignore[attr-defined]
    model: nn.Module = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    ours = None
    if name == "DDP":
        model = DistributedDataParallel(
            model, bucket_cap_mb=bucket_mib, gradient_as_bucket_view=True, find_unused_parameters=True
        )
    else:
        ours = gradient_all_reduce.GradientAllReduce(list(model.parameters()), dist.get_world_size())
    seconds = []
    for _ in range(updates):
        dist.barrier()
        start = time.perf_counter()
        loss = model(torch.ones(1, 8, WIDTH)).square().mean()
        if ours is not None and name == "overlap":
            ours.start_in_backward()
        loss.backward()
        if ours is not None:
            ours.finish(loss.detach())
        seconds.append(time.perf_counter() - start)
        model.zero_grad()
    if dist.get_rank() == 0:
        print(statistics.median(seconds[1:]))
    dist.destroy_process_group()


def start_rank(rank: int, ranks: int, port: int, way: str, options: argparse.Namespace) -> Any:
    command = [sys.executable, "-m", "bench.overlap", "--way", way, "--updates", str(options.updates)]
    environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
    command, more = in_namespace(command, 2 * rank // ranks if options.rate else None)
    return subprocess.Popen(command, env=environment | more, stdout=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--rate", help="of the link between two halves of the ranks; default: no such link")
    parser.add_argument("--way", help=argparse.SUPPRESS)  # of the processes that this one starts
    options = parser.parse_args()
    if options.way:
        return run_rank(options.way, options.updates)
    computing_ms = 3000 * BLOCKS * FORWARD_S
    results = {}
    print(f"| ranks, all-reduce | update, ms | of them beyond the {computing_ms:.0f} of computing |")
    print("|---|---:|---:|")
    with slow_link(options.rate) if options.rate else nullcontext():
        for number, (ranks, way) in enumerate((ranks, way) for ranks in options.ranks for way in WAYS):
            processes = [start_rank(rank, ranks, 29810 + number, way, options) for rank in range(ranks)]
            outputs = [process.communicate()[0] for process in processes]
            ms = results[f"{ranks} ranks, {way}"] = 1000 * float(outputs[0].split()[-1])
            print(f"| {ranks}, {way} | {ms:,.0f} | {ms - computing_ms:,.0f} |", flush=True)
    print(json.dumps(results))
    return None


if __name__ == "__main__":
    main()
