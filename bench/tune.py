"""How good is the choice of `glass tune`? Compared with a grid of all settings, measured by the same trials.

    python -m bench.tune gpt2_124m --set data_dir=data/fineweb_edu
    python -m bench.tune shakespeare_char_cpu --grid micro_batch,attention,threads,compile
    python -m bench.tune gpt2_124m --set batch_tokens=524288 --grid micro_batch --sizes 4,8,16,32,64 --no-tune

First tune within its budget, then the whole grid, then tune's choice and the grid's fastest in turns, since a
machine drifts. The table has every setting; the last line is one JSON document, whose `ratio` is what the
choice reaches of the best.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.format import format_bytes, format_count, format_ms, format_percent_value
from glassgpt.recipe import build_config, find_recipe
from glassgpt.tune.results import Trial, run_tokens_per_s, summarize_updates
from glassgpt.tune.speed_settings import SpeedSettings, TuneContext
from glassgpt.tune.trial_runner import TrialRunner
from glassgpt.tune.tuning import Tuning, describe_setting, tune

GRID_DIMENSIONS = ("micro_batch", "attention", "kernels", "graph", "checkpointing", "compile", "threads")
_LIMIT_S = 240.0  # of one trial


@dataclass(frozen=True)
class GridPoint:
    """A setting of the grid and what became of it. `speed`: tokens/s over the run, as tune compares them."""

    setting: SpeedSettings
    trial: Trial
    tokens_per_s: float


def grid_settings(ctx: TuneContext, names: Sequence[str], sizes: Sequence[int]) -> list[SpeedSettings]:
    """Every combination of the dimensions named, around what a run would decide for each micro-batch."""
    chosen = [n for n in sizes or ctx.micro_batches if n in ctx.micro_batches]
    base = chosen if "micro_batch" in names else [ctx.automatic_batch]
    values = {name: _values(ctx, name) for name in names if name != "micro_batch"}
    found: dict[SpeedSettings, None] = {}
    for number in base:
        for combination in itertools.product(*values.values()):
            changes: dict[str, Any] = dict(zip(values, combination, strict=True))
            setting = dataclasses.replace(ctx.automatic_setting_at(number), **changes)
            if not (setting.compile and (setting.kernels or setting.graph)):
                found[setting] = None
    # Another number of threads is another process: all with the same number come together.
    return sorted(found, key=lambda setting: setting.threads or 0)


def _values(ctx: TuneContext, name: str) -> list[Any]:
    on_card = ctx.device_type == "cuda"
    if name == "attention":
        formula = ["manual"] if ctx.block_size <= 256 else []
        return ["cudnn", "flash", "efficient"] if on_card else ["sdpa", *formula]
    if name == "threads":
        return [None, *range(1, ctx.threads)] if ctx.device_type == "cpu" else [None]
    return [False, True] if on_card or name in ("checkpointing", "compile") else [False]


def measure_grid(
    runner: TrialRunner, ctx: TuneContext, settings: Iterable[SpeedSettings], limit_s: float
) -> list[GridPoint]:
    found = []
    end = time.monotonic() + limit_s
    for setting in settings:
        if time.monotonic() > end:
            print(f"the grid is cut off after {limit_s:.0f} s", flush=True)
            break
        trial = runner.measure(setting, _LIMIT_S)
        stats = summarize_updates([trial])
        keeps = stats is not None and (stats.peak_bytes or 0) <= ctx.usable_bytes
        speed = run_tokens_per_s(ctx, setting, stats) if stats is not None and keeps else 0.0
        found.append(GridPoint(setting, trial, speed))
        print(f"{describe_setting(ctx, setting):<60} {_in_words(found[-1])}", flush=True)
    return found


def _in_words(point: GridPoint) -> str:
    if point.trial.outcome != "ran":
        return f"{point.trial.outcome} {point.trial.why}"
    return f"{format_count(point.tokens_per_s)} tokens/s" if point.tokens_per_s else "no headroom"


def measure_in_turns(
    runner: TrialRunner, ctx: TuneContext, settings: Sequence[SpeedSettings], rounds: int
) -> dict[SpeedSettings, float]:
    """The speed of each, measured again, one after the other and from the beginning."""
    trials: dict[SpeedSettings, list[Trial]] = {setting: [] for setting in settings}
    for number in range(rounds):
        # There and back: a card that has just worked hard is slower at first.
        for setting in list(trials)[:: -1 if number % 2 else 1]:
            trials[setting].append(runner.measure(setting, _LIMIT_S))
    speeds = {}
    for setting, done in trials.items():
        stats = summarize_updates(done)
        speeds[setting] = run_tokens_per_s(ctx, setting, stats) if stats is not None else 0.0
    return speeds


def grid_table(ctx: TuneContext, found: Sequence[GridPoint]) -> str:
    lines = ["| setting | tokens/s | ms | MFU | peak |", "|---|---:|---:|---:|---:|"]
    for point in sorted(found, key=lambda point: -point.tokens_per_s):
        name, trial = describe_setting(ctx, point.setting), point.trial
        if trial.outcome != "ran":
            lines.append(f"| {name} | {trial.outcome} | | | |")
            continue
        seconds = median(trial.update_s)
        rate = ctx.tokens_per_update / seconds
        mfu = format_percent_value(100 * rate * ctx.flops_per_token / ctx.peak) if ctx.peak else ""
        peak = "" if trial.peak_bytes is None else format_bytes(trial.peak_bytes)
        lines.append(f"| {name} | {format_count(rate)} | {format_ms(seconds * 1000)} | {mfu} | {peak} |")
    return "\n".join(lines)


def grid_document(
    ctx: TuneContext,
    tuning: Tuning | None,
    found: Sequence[GridPoint],
    again: Mapping[SpeedSettings, float],
    ratio: float | None,
) -> dict[str, Any]:
    best = max(again, key=lambda setting: again[setting])
    rows = [
        {
            **dataclasses.asdict(point.setting),
            "outcome": point.trial.outcome,
            "tokens_per_s": point.tokens_per_s or None,
            "peak_bytes": point.trial.peak_bytes,
        }
        for point in found
    ]
    return {
        "row": "tune",
        "machine": ctx.device_name,
        "tokens_per_update": ctx.tokens_per_update,
        "settings": len(found),
        "best": dataclasses.asdict(best),
        "best_tokens_per_s": again[best],
        "chosen": None if tuning is None else dataclasses.asdict(tuning.result.chosen.setting),
        "took_s": None if tuning is None else tuning.took_s,
        "ratio": ratio,
        "points": rows,
    }


def main(arguments: list[str] | None = None) -> int:
    asked = make_parser().parse_args(arguments)
    changes = dict(text.split("=", 1) for text in asked.set)
    recipe = find_recipe(asked.preset)
    with TrialRunner() as runner:
        kind = runner.device_type(str({**recipe.settings, **changes}.get("device", "auto")), _LIMIT_S)
        config = build_config(recipe, changes, kind)
        tuning = None if asked.no_tune else _tuned(config, runner, asked.budget)
        ctx = runner.inspect_machine(config, None, _LIMIT_S, _LIMIT_S)
        runner.timed_s = asked.seconds
        settings = grid_settings(ctx, asked.grid.split(","), asked.sizes)
        found = measure_grid(runner, ctx, settings, asked.limit)
        order = sorted(found, key=lambda point: -point.tokens_per_s)
        chosen = None if tuning is None else tuning.result.chosen.setting
        finalists = [point.setting for point in order[: asked.finalists] if point.tokens_per_s]
        runner.timed_s = asked.finalist_seconds
        again = measure_in_turns(runner, ctx, [*finalists, *([chosen] if chosen else [])], asked.rounds)
        best = max(again, key=lambda setting: again[setting])
        for setting, speed in again.items():
            mark = {chosen: "  chosen"}.get(setting, "") + ("  best" if setting == best else "")
            print(f"again: {describe_setting(ctx, setting):<53} {format_count(speed)} tokens/s{mark}")
        ratio = None if chosen is None else again[chosen] / again[best]
    print(f"\n{grid_table(ctx, found)}")
    print(json.dumps(grid_document(ctx, tuning, found, again, ratio)))
    return 0


def _tuned(config: TrainConfig, runner: TrialRunner, budget_s: float) -> Tuning:
    tuning = tune(config, budget_s, runner)
    for row in tuning.result.rows:
        rate = f"{format_count(row.tokens_per_s)} tokens/s" if row.tokens_per_s else ""
        error = f"{row.stats.error:.1%}" if row.stats else ""
        words = describe_setting(tuning.context, row.setting)
        print(f"tune: {words:<54} {rate:>15} {error:>6} {row.trials} {row.verdict}", flush=True)
    print(f"{tuning.result.summary} ({tuning.took_s:.0f} s)", flush=True)
    return tuning


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("preset", help="a preset or a config file")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the run")
    add("--budget", type=float, default=90.0, help="seconds that tune gets")
    add("--no-tune", action="store_true", help="the grid alone")
    add("--grid", default="micro_batch,attention,kernels,graph", help=f"of {', '.join(GRID_DIMENSIONS)}")
    add("--sizes", type=int_list, default=(), help="micro-batches; default: all that divide the update")
    add("--seconds", type=float, default=1.5, help="of timed updates in each trial of the grid")
    add("--finalists", type=int, default=4, help="of the grid, that meet tune's choice again at the end")
    add("--finalist_seconds", type=float, default=4.0, help="long enough for a card to be as warm as ever")
    add("--rounds", type=int, default=4, help="in which they do, in turns")
    add("--limit", type=float, default=480.0, help="seconds after which the grid is cut off")
    return parser


def int_list(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
