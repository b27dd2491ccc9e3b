"""The peers: scratch copies of their checkouts, runs of their unmodified scripts, and parsers of their logs.

No code of theirs is part of this repository, and nothing is written to the checkouts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.watch import TimedLine, TimedOutput, cache_environment, run_timed
from glassgpt.data.dataset import open_dataset

Flags = Mapping[str, object]

_SEED_LINE = "torch.manual_seed(1337 "  # nanoGPT has no flag for its seed
_DEFAULT_VOCABULARY = 50304  # of nanoGPT, for data without a meta.pkl

# Runs train.py unmodified, then prints its peak memory.
_RUN_AND_PRINT_MEMORY = """
import runpy, sys, torch
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
if torch.cuda.is_available():
    print("peak memory", torch.cuda.max_memory_allocated())
"""


@dataclass(frozen=True)
class PeerIteration:
    number: int
    loss: float
    printed_ms: float
    at_s: float


@dataclass(frozen=True)
class PeerEvaluation:
    number: int
    val_loss: float  # its own estimate, from random batches
    at_s: float


@dataclass(frozen=True)
class PeerRun:
    """A run of nanoGPT's train.py."""

    out_dir: Path
    output: TimedOutput

    @property
    def checkpoint(self) -> Path:
        return self.out_dir / "ckpt.pt"

    @property
    def best_at_s(self) -> float:
        """When it began to write its last checkpoint, the best one."""
        return save_times_s(self.output.lines)[-1]


def as_flags(settings: Flags) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]


@dataclass(frozen=True)
class NanoGPT:
    """A scratch copy of nanoGPT."""

    root: Path

    @classmethod
    def copy(cls, checkout: Path, place: Path) -> NanoGPT:
        shutil.copytree(
            checkout, place, ignore=shutil.ignore_patterns(".git", "out*", "*.bin", "__pycache__")
        )
        return cls(place)

    def digest(self) -> str:
        """Identifies the version of nanoGPT, by train.py and model.py."""
        content = (self.root / "train.py").read_bytes() + (self.root / "model.py").read_bytes()
        return hashlib.sha256(content).hexdigest()[:12]

    def add_data(self, name: str, prepared: Path) -> None:
        """The same tokens in nanoGPT's layout."""
        dataset = open_dataset(prepared)
        assert dataset.manifest.dtype == "uint16", "nanoGPT reads nothing else"
        folder = self.root / "data" / name
        folder.mkdir(parents=True, exist_ok=True)
        for split in ("train", "val"):
            shutil.copyfile(prepared / f"{split}.bin", folder / f"{split}.bin")
        (folder / "meta.pkl").unlink(missing_ok=True)
        if dataset.manifest.vocab_size != _DEFAULT_VOCABULARY:
            (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": dataset.manifest.vocab_size}))

    def train(
        self,
        name: str,
        caches: Path,
        settings: Flags,
        config: str = "",
        seed: int = 1337,
        memory: bool = False,
        enough: Callable[[list[TimedLine]], bool] = lambda lines: False,
    ) -> PeerRun:
        """`python train.py [config] --key=value …`; `memory`: and print the peak of it at the end."""
        out = self.root / name
        command = [sys.executable, *(["-c", _RUN_AND_PRINT_MEMORY] if memory else []), self._script(seed)]
        command += [config] if config else []
        command += as_flags({**settings, "out_dir": out})
        return PeerRun(out, run_timed(command, self.root, cache_environment(caches), enough))

    def _script(self, seed: int) -> str:
        """train.py, or a copy with another seed in it."""
        if seed == 1337:
            return "train.py"
        text = (self.root / "train.py").read_text(encoding="utf-8")
        assert text.count(_SEED_LINE) == 1, "this train.py sets its seed in another way"
        changed = self.root / f"train-{seed}.py"
        changed.write_text(text.replace(_SEED_LINE, _SEED_LINE.replace("1337", str(seed))), encoding="utf-8")
        return changed.name


def load_nanogpt_model(checkout: Path) -> Any:
    """Its model.py as a module."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt_model"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


# --- nanoGPT's log ---

_ITERATION = re.compile(r"iter (\d+): loss (\S+), time ([\d.]+)ms")
_EVALUATION = re.compile(r"step (\d+): train loss \S+, val loss (\S+)")
_MEMORY = re.compile(r"peak memory (\d+)")


def iterations(lines: Sequence[TimedLine]) -> list[PeerIteration]:
    found = ((line, _ITERATION.match(line.text)) for line in lines)
    return [PeerIteration(int(m[1]), float(m[2]), float(m[3]), line.at_s) for line, m in found if m]


def evaluations(lines: Sequence[TimedLine]) -> list[PeerEvaluation]:
    found = ((line, _EVALUATION.match(line.text)) for line in lines)
    return [PeerEvaluation(int(m[1]), float(m[2]), line.at_s) for line, m in found if m]


def save_times_s(lines: Sequence[TimedLine]) -> list[float]:
    return [line.at_s for line in lines if line.text.startswith("saving checkpoint")]


def peak_bytes(lines: Sequence[TimedLine]) -> int | None:
    found = [m for line in lines if (m := _MEMORY.match(line.text))]
    return int(found[-1][1]) if found else None


def interval_ms(lines: Sequence[TimedLine], warm_up: int) -> list[float]:
    """Milliseconds per update, by wall clock from one log line to the next.

    The printed times agree if it logs every iteration; otherwise they are of one iteration that did not
    synchronise with the device. Intervals with an evaluation in them are left out.
    """
    stops = {one.number for one in evaluations(lines)}
    logged = [one for one in iterations(lines) if one.number >= warm_up]
    return [
        1000 * (after.at_s - before.at_s) / (after.number - before.number)
        for before, after in pairwise(logged)
        if stops.isdisjoint(range(before.number + 1, after.number + 1))
    ]


def iterations_s(lines: Sequence[TimedLine]) -> float:
    """The time of all iterations, with those that evaluated or compiled counted as steady ones."""
    ms = interval_ms(lines, warm_up=1)
    return float(np.median(ms)) * iterations(lines)[-1].number / 1000 if ms else 0.0


def is_past_best(lines: list[TimedLine], patience: int) -> bool:
    """Whether the last `patience` evaluations were all worse than an earlier one."""
    losses = [one.val_loss for one in evaluations(lines)]
    return len(losses) > patience and min(losses[-patience:]) > min(losses[:-patience])


# --- nanochat ---

# Its base_train.py needs a tokenizer, parquet files and more packages; its model and optimizer do not. The
# step is that of base_train.py at 92d63d4: forward, backward, optimizer, zero_grad, loss.item(). Batches are
# random tokens that are already on the device, which can only make it faster.
_NANOCHAT_SCRIPT = """
import json, sys, time
import torch
depth, T, B, vocabulary, updates, device = json.loads(sys.argv[1])
from nanochat.gpt import GPT, GPTConfig
from nanochat.flash_attention import USE_FA3
width = -(-depth * 64 // 128) * 128
heads = width // 128
with torch.device("meta"):
    model = GPT(GPTConfig(sequence_len=T, vocab_size=vocabulary, n_layer=depth, n_head=heads, n_kv_head=heads,
                          n_embd=width, window_pattern="SSSL" if USE_FA3 else "L"))
model.to_empty(device=device)
model.init_weights()
parameters = sum(p.numel() for p in model.parameters())
cuda = torch.device(device).type == "cuda"
model = torch.compile(model, dynamic=False, disable=not cuda)
optimizer = model.setup_optimizer()
seconds = []
for update in range(updates):
    x, y = torch.randint(vocabulary, (2, B, T), device=device)
    if cuda: torch.cuda.synchronize()
    started = time.perf_counter()
    loss = model(x, y)
    loss.backward()
    optimizer.step()
    model.zero_grad(set_to_none=True)
    loss.item()
    if cuda: torch.cuda.synchronize()
    seconds.append(time.perf_counter() - started)
print(json.dumps({"seconds": seconds, "parameters": parameters, "flash_attention_3": USE_FA3,
                  "peak_bytes": torch.cuda.max_memory_allocated() if cuda else None}))
"""


@dataclass(frozen=True)
class NanochatTimes:
    """Seconds of every update of nanochat's model."""

    seconds: list[float]
    parameters: int
    flash_attention_3: bool
    peak_bytes: int | None


def time_nanochat(
    checkout: Path, caches: Path, device: str, updates: int, depth: int, T: int, B: int, vocabulary: int
) -> NanochatTimes:
    """Times steps of nanochat's model and optimizer, imported from its checkout."""
    arguments = json.dumps([depth, T, B, vocabulary, updates, device])
    settings = cache_environment(caches) | {
        "PYTHONPATH": str(checkout.resolve()),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    watched = run_timed([sys.executable, "-c", _NANOCHAT_SCRIPT, arguments], caches, settings)
    return NanochatTimes(**json.loads(watched.lines[-1].text))
