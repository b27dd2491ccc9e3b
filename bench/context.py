"""What all rows share: the options, a scratch folder, the data of both trainers, copies of the peers."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import glass
from bench.evaluator import score_glass, score_nanogpt
from bench.glass import GlassRun
from bench.mdn import prepare_mdn
from bench.peers import Flags, NanoGPT, PeerRun
from bench.results import LossByContext, Result
from glassgpt.data.dataset import open_dataset
from glassgpt.data.manifest import MANIFEST_FILE
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.training.probe import describe_machine


class MissingOption(Exception):
    """A row needs an option that was not given."""


@dataclass(frozen=True)
class BenchOptions:
    """The command line; see __main__.py for what each means."""

    device: str
    out: Path
    nanogpt: Path | None = None
    nanochat: Path | None = None
    shakespeare: Path | None = None
    mdn: Path | None = None
    rounds: int = 3
    updates: int | None = None
    seeds: Sequence[int] = (1337, 1, 2)
    batch: int = 64
    fp8: bool = False
    warm: bool = True
    seconds: float = 90.0
    step_ms: float | None = None
    rates: Sequence[float] = ()
    target: float | None = None
    patience: int = 4
    preset: str = ""
    ours: Sequence[str] = ()
    tiny: bool = False


# With --tiny: every row runs on any machine in seconds, to test it.
TINY_SETTINGS = {
    "n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "batch_size": 4,
    "gradient_accumulation_steps": 1, "compile": False,
}  # fmt: skip
TINY_UPDATE_TOKENS = 4 * 32  # of an update


class BenchContext:
    """Data and copies are prepared on first use."""

    def __init__(self, options: BenchOptions, scratch: Path) -> None:
        self.options, self.scratch = options, scratch
        self._names = 0

    # --- places ---

    def fresh_dir(self, name: str) -> Path:
        """An unused path in the scratch folder: as a cache, a cold start."""
        self._names += 1
        return self.scratch / f"{self._names:03}-{name}"

    @functools.cached_property
    def nanogpt(self) -> NanoGPT:
        if self.options.nanogpt is None:
            raise MissingOption("--nanogpt PATH: a checkout of nanoGPT")
        return NanoGPT.copy(self.options.nanogpt, self.fresh_dir("nanoGPT"))

    @functools.cached_property
    def shakespeare(self) -> Path:
        """The prepared text; nanoGPT has the same in its layout as `shakespeare_char`."""
        source = self.options.shakespeare
        if source is None:
            raise MissingOption("--shakespeare FILE: tinyshakespeare's text, or a prepared folder")
        if not (source / MANIFEST_FILE).is_file():
            out = self.fresh_dir("shakespeare")
            prepare(PrepareOptions("shakespeare_char", source=str(source), out_dir=str(out)), progress=False)
            source = out
        return self._for_both("shakespeare_char", source)

    @functools.cached_property
    def mdn(self) -> Path:
        """The prepared documents; nanoGPT has the same in its layout as `mdn`."""
        if self.options.tiny:  # a vocabulary of 50,304 is not tiny
            return self._for_both("mdn", self.shakespeare)
        if self.options.mdn is None:
            raise MissingOption("--mdn FILE: mdn.jsonl.xz, or a folder that bench.mdn prepared")
        return self._for_both("mdn", prepare_mdn(self.options.mdn, self.fresh_dir("mdn")))

    def _for_both(self, name: str, prepared: Path) -> Path:
        if self.options.nanogpt is not None:
            self.nanogpt.add_data(name, prepared)
        return prepared.resolve()

    # --- running ---

    def run_nanogpt(self, caches: Path, settings: Flags, config: str = "", **more: Any) -> PeerRun:
        machine = {"device": self.options.device} | (TINY_SETTINGS if self.options.tiny else {})
        run = self.nanogpt.train(
            self.fresh_dir("nanogpt").name, caches, {**settings, **machine}, config, **more
        )
        self.log(f"nanoGPT   {run.output.wall_s:7.1f} s")
        return run

    def run_glass(self, preset: str, data: Path, caches: Path, settings: Flags) -> GlassRun:
        length = {"max_iters": 40} if self.options.tiny else {}
        machine = {"device": self.options.device, "data_dir": data} | (
            TINY_SETTINGS if self.options.tiny else {}
        )
        overrides = dict(setting.split("=", 1) for setting in self.options.ours)
        run = glass.run_glass_train(
            preset, self.fresh_dir(preset), caches, {**length, **settings, **machine, **overrides}
        )
        self.log(f"GlassGPT  {run.wall_s:7.1f} s  {preset}")
        return run

    # --- scoring ---

    def score_nanogpt(self, run: PeerRun, data: Path) -> LossByContext:
        return score_nanogpt(run.checkpoint, self.nanogpt.root, self._val(data), self.options.device)

    def score_glass(self, run: GlassRun, data: Path, context: int, which: str = "best") -> LossByContext:
        """At its own context, and at the baseline's, `context`, if that is shorter."""
        return score_glass(run.out_dir, self._val(data), self.options.device, context, which)

    def _val(self, data: Path) -> np.ndarray:
        return open_dataset(data).tokens("val")

    # --- reporting ---

    def log(self, text: str) -> None:
        print(f"  {time.strftime('%H:%M:%S')}  {text}", flush=True)

    @functools.cached_property
    def device_type(self) -> str:
        return self.options.device.partition(":")[0]

    @functools.cached_property
    def machine(self) -> str:
        about: Any = describe_machine(self.options.device)
        threads = f", {torch.get_num_threads()} threads" if self.device_type == "cpu" else ""
        return f"{about['device']['name']}{threads}, torch {torch.__version__}"

    def make_result(self, row: str, unit: str, **found: Any) -> Result:
        details: dict[str, Any] = {"nanogpt_digest": self.nanogpt.digest()} if self.options.nanogpt else {}
        details |= {"ours": list(self.options.ours)} if self.options.ours else {}
        found["details"] = found.get("details", {}) | details
        if self.options.tiny:
            found["objection"] = "tiny models, only to test that it works"
        return Result(row=row, device=self.device_type, machine=self.machine, unit=unit, **found)
