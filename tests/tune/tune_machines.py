"""Machines that only exist in tests: every trial takes the time and finds the speed that the test wants."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.tune.results import Trial, TrialResults
from glassgpt.tune.search import Budget, Search, TrialEvent
from glassgpt.tune.speed_settings import SpeedSettings, TuneContext

GIB = 2**30
GPT2 = TrainConfig(batch_size=12, gradient_accumulation_steps=40)
SMALL = TrainConfig(
    n_layer=4, n_head=4, n_embd=128, block_size=64, batch_size=12, gradient_accumulation_steps=1,
    max_iters=2000,
)  # fmt: skip


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def gpu_machine(**changes: Any) -> TuneContext:
    """An H200 about to train GPT-2 124M, 480 sequences an update."""
    sequences = changes.get("sequences", 480)
    automatic_settings = tuple(
        SpeedSettings(micro_batch=n, attention="cudnn", kernels=True, graph=n <= 16, data_on_card=True)
        for n in divisors(sequences)
    )
    settings: dict[str, Any] = {
        "device_type": "cuda", "device": "cuda", "device_name": "H200", "torch": "2.11", "dtype": "bfloat16",
        "vocab_size": 50304, "parameters": 124_000_000, "n_layer": 12, "block_size": 1024, "sequences": 480,
        "updates": 600_000, "flops_per_token": 854_800_000, "peak": 989e12, "peak_source": "table",
        "free_bytes": 139 * GIB, "data": "owt", "data_bytes": 10**9, "usable_cores": 16.0, "threads": 16,
        "busy_cores": 0.0, "automatic_batch": 12, "automatic_settings": automatic_settings,
        "dropout": False, "float8": False,
    }  # fmt: skip
    return TuneContext(**settings | changes)


def cpu_machine(**changes: Any) -> TuneContext:
    """Two cores about to train nanoGPT's README model."""
    automatic_settings = tuple(SpeedSettings(micro_batch=n, attention="manual") for n in divisors(12))
    settings: dict[str, Any] = {
        "device_type": "cpu", "device": "cpu", "device_name": "EPYC", "dtype": "bfloat16", "vocab_size": 65,
        "parameters": 804_096, "n_layer": 4, "block_size": 64, "sequences": 12, "updates": 2000,
        "flops_per_token": 5_168_640, "peak": 67e9, "free_bytes": 20 * GIB, "usable_cores": 2.0, "threads": 2,
        "automatic_batch": 12, "automatic_settings": automatic_settings,
    }  # fmt: skip
    return gpu_machine(**settings | changes)


class FakeMachine:
    """`speed`: tokens/s of a setting. `peak`: bytes, or None where it runs out of memory."""

    def __init__(
        self,
        context: TuneContext,
        speed: Callable[[SpeedSettings], float],
        *,
        peak: Callable[[SpeedSettings], int | None] = lambda setting: GIB,
        ends: Callable[[SpeedSettings], str] = lambda setting: "ran",
        noise: float = 0.0,
        trial_s: float = 3.5,
        compile_s: float = 25.0,
        kept_s: float | None = None,
        drift: Callable[[float], float] = lambda now: 1.0,
        updates_done: int = 0,
    ) -> None:
        """`kept_s`: what compiling takes the second time, if that is less. `updates_done`: in a trial at
        least, so that it takes longer where they are slow."""
        self.context, self.speed, self.peak, self.ends = context, speed, peak, ends
        self.noise, self.trial_s, self.compile_s, self.drift = noise, trial_s, compile_s, drift
        self.updates_done = updates_done
        self.recompile_s = compile_s if kept_s is None else kept_s
        self.now = 0.0
        self.measured_settings: list[SpeedSettings] = []
        self._draw = random.Random(0)

    def measure(self, setting: SpeedSettings, limit_s: float) -> Trial:
        assert limit_s > 0, "a trial without time"
        first = 0.1
        if setting.compile:
            first = self.recompile_s if setting in self.measured_settings else self.compile_s
        self.measured_settings.append(setting)
        tokens = self.context.trial_micro_steps(setting) * setting.micro_batch * self.context.block_size
        wall = self.trial_s + first + self.updates_done * tokens / self.speed(setting)
        end = self.ends(setting)
        if wall > limit_s or end == "hung":
            self.now += limit_s
            return Trial(outcome="hung", wall_s=limit_s, why=f"no answer after {limit_s:.0f} s")
        self.now += wall
        if end != "ran":
            return Trial(outcome=end, wall_s=wall, why="that is why")  # type: ignore[arg-type]
        peak = self.peak(setting)
        if peak is None:
            return Trial(outcome="out of memory", wall_s=wall)
        seconds = self.context.tokens_per_update / self.speed(setting) * self.drift(self.now)
        times = tuple(seconds * (1 + self.noise * self._draw.gauss(0, 1)) for _ in range(20))
        return Trial(outcome="ran", update_s=times, first_s=first, peak_bytes=peak, wall_s=wall)

    def run_search(
        self,
        config: TrainConfig = GPT2,
        budget_s: float = 90.0,
        fixed: Collection[str] = (),
        on_event: Callable[[TrialEvent], None] = lambda step: None,
    ) -> TrialResults:
        budget = Budget(budget_s, started_at=0.0, clock=lambda: self.now)
        return Search(config, self.context, self.measure, budget, fixed, on_event).run()

    def best_speed_of_all(self, names: Collection[str]) -> float:
        """The best speed of all combinations of what is open."""
        values: dict[str, list[Any]] = {
            "attention": ["cudnn", "flash", "efficient"], "kernels": [True, False], "graph": [True, False],
        }  # fmt: skip
        settings = [replace(one) for one in self.context.automatic_settings]
        for name in names:
            settings = [replace(one, **{name: value}) for one in settings for value in values[name]]
        return max(self.speed(one) for one in settings if self.peak(one) is not None)


def saturating_speed(
    half: float = 6.0, top: float = 600e3, **factors: float
) -> Callable[[SpeedSettings], float]:
    """Tokens/s that grow with the micro-batch towards `top`; `cudnn=0.9` is what that part makes of it."""

    def speed(setting: SpeedSettings) -> float:
        rate = top * setting.micro_batch / (setting.micro_batch + half)
        rate *= factors.get(setting.attention, 1.0)
        rate *= factors.get("kernels" if setting.kernels else "plain", 1.0)
        rate *= factors.get("graph" if setting.graph else "no_graph", 1.0)
        rate *= factors.get("compiled", 1.0) if setting.compile else 1.0
        return rate * (factors.get("checkpointing", 0.75) if setting.checkpointing else 1.0)

    return speed
