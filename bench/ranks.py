"""Several processes on one machine: tokens/s, and the time that an update waits for gradients.

    python -m bench.ranks --tree before=../old --tree after=. --ranks 2 4 --rounds 3
    python -m bench.ranks --tree after=. --ranks 2 4 --rate 200mbit       # as root: a slow link

Each tree is a checkout of this repository; they take turns. With `--rate` the first half of the ranks is in
one network namespace and the second half in another, as on two machines. The link between them has this rate
in each direction (`tc`, token bucket). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

from bench.glass import write_random_tokens
from glassgpt.record import journal

MODEL = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "batch_size": 4}
_VOCAB_SIZE = 65  # with these shapes 10.7 million parameters, 43 MB of gradients
_NAMESPACES = (f"glass-{os.getpid()}-0", f"glass-{os.getpid()}-1")
_ADDRESSES = ("10.77.0.1", "10.77.0.2")
_ports = count(29610)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def slow_link(rate: str) -> Iterator[None]:
    """Two network namespaces, joined by a link of this rate."""
    interfaces = ("glass0", "glass1")
    for name in _NAMESPACES:
        _ip("netns", "add", name)
    try:
        ends = [("name", end, "netns", name) for end, name in zip(interfaces, _NAMESPACES, strict=True)]
        _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for name, end, address in zip(_NAMESPACES, interfaces, _ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")
            _ip("-n", name, "link", "set", "lo", "up")
            shaper = ["tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
            _ip("netns", "exec", name, "tc", "qdisc", "add", "dev", end, "root", *shaper)
        yield
    finally:
        for name in _NAMESPACES:
            _ip("netns", "delete", name)


def in_namespace(command: list[str], machine: int | None) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of a rank on one of the two machines; None: there are none."""
    if machine is None:
        return command, {"MASTER_ADDR": "localhost"}
    environment = {"MASTER_ADDR": _ADDRESSES[0], "GLOO_SOCKET_IFNAME": f"glass{machine}"}
    return ["ip", "netns", "exec", _NAMESPACES[machine], *command], environment


def run_ranks(tree: Path, ranks: int, out: Path, flags: Sequence[str], is_linked: bool) -> list[Any]:
    """Trains in so many processes; the records of their journal."""
    port = next(_ports)
    processes = []
    for rank in range(ranks):
        command = [sys.executable, "-m", "glassgpt", "train", f"--out_dir={out}", *flags]
        command, environment = in_namespace(command, 2 * rank // ranks if is_linked else None)
        environment |= {
            "PYTHONPATH": str(tree.resolve()), "RANK": str(rank), "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        processes.append(
            subprocess.Popen(command, env=os.environ | environment, cwd=tree, stdout=subprocess.DEVNULL)
        )
    exit_codes = [process.wait() for process in processes]
    if any(exit_codes):
        raise SystemExit(f"{tree}: a rank failed")
    return list(journal.read(out / journal.FILE_NAME))


def measure(records: list[Any], warm_up: int) -> dict[str, float]:
    """Medians over the updates. `exposed_ms`: of the rank that waits least, so not for a slower one."""
    steps = [r for r in records if r["kind"] == "step" and r["iter"] > warm_up]
    return {
        "tokens_per_s": statistics.median(step["tokens_per_s"] for step in steps),
        "step_ms": statistics.median(step["step_ms"] for step in steps),
        "exposed_ms": statistics.median(min(step["ranks"]["exchange_ms"]) for step in steps),
        "loss": steps[-1]["loss"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", action="append", required=True, help="name=folder; may be repeated")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--micro-steps", type=int, default=1, help="micro-batches of each rank in an update")
    parser.add_argument("--rate", help="of the link between two halves of the ranks; default: no such link")
    parser.add_argument("settings", nargs="*", help="of `glass train`, as --key=value after --")
    options = parser.parse_args()
    trees = dict(tree.split("=", 1) for tree in options.tree)
    results: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name, slow_link(options.rate) if options.rate else nullcontext():
        folder = Path(name)
        write_random_tokens(folder / "data", _VOCAB_SIZE)
        for number in range(options.rounds):
            for ranks in options.ranks:
                settings: dict[str, Any] = {
                    **MODEL, "data_dir": folder / "data", "device": "cpu", "dtype": "float32",
                    "log_interval": 1, "max_iters": options.updates,
                    "gradient_accumulation_steps": ranks * options.micro_steps,
                    "eval_interval": 10_000, "eval_tokens": 256, "sample_tokens": 0, "probe_seconds": 0,
                    "checkpoint_interval": 10_000, "compile": "off",
                }  # fmt: skip
                settings |= dict(flag.removeprefix("--").split("=", 1) for flag in options.settings)
                flags = [f"--{key}={value}" for key, value in settings.items()]
                for tree, path in trees.items():
                    key = f"{ranks} ranks, {tree}"
                    out = folder / f"{ranks}-{tree}-{number}"
                    found = measure(run_ranks(Path(path), ranks, out, flags, bool(options.rate)), warm_up=2)
                    results.setdefault(key, []).append(found)
                    load = os.getloadavg()[0]
                    print(f"{key}: {json.dumps(found)}, load {load:.1f}", file=sys.stderr, flush=True)
    print("| ranks | tokens/s | update, ms | exposed communication, ms |")
    print("|---|---|---|---|")
    for key, rounds in results.items():
        columns = (
            f"{statistics.median(found[name] for found in rounds):,.0f}"
            for name in ("tokens_per_s", "step_ms", "exposed_ms")
        )
        print(f"| {key} | {' | '.join(columns)} |")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
