"""The options of `glass plan`. In a separate module, because every `glass` command imports it.

glass plan gpt2_124m --gpu=rtx4070
glass plan gpt2_124m --gpu=h100 --gpus=8 --hours=24 --out=day.toml
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt.estimate.cluster import DEFAULT_NETWORK_GB_S
from glassgpt.i18n import check_language


@dataclass(frozen=True)
class PlanOptions:
    """Know before you start: memory, time, loss, data and schedule of a run, and what is wrong with it.

    PRESET and FILE as in `glass train`. Its settings may be given too: --block_size=512. Nothing is
    trained, and no GPU is needed.
    """

    # The card to plan for, e.g. rtx4070, "RTX 4070 Ti", h100, m3-max; cpu; auto: this machine.
    gpu: str = "auto"
    # Measure instead of guessing: run a few micro-batches of this run here, in a separate process. Takes some
    # ten seconds. With --gpus one card is measured, and communication is computed.
    probe: bool = False
    # Cards per machine that train together, one process each.
    gpus: int = 1
    # Machines that train together, each with that many cards.
    nodes: int = 1
    # With --nodes: GB/s from each machine to the others, e.g. 1.25 for Ethernet with 10 Gbit/s, 400 for eight
    # ports of InfiniBand NDR.
    network: float = DEFAULT_NETWORK_GB_S
    # Instead of planning a run, propose the model, batch and updates with the lowest expected loss in so many
    # hours.
    hours: float | None = None
    # With --hours: also write the proposal to this file, ready for `glass train FILE`.
    out: str = ""
    # Recommended settings for common cards, as a table.
    cards: bool = False
    # Price of one machine per hour, in any currency, to estimate the cost of the run.
    price: float | None = None
    # Language: en, hi or ar; empty: that of the locale.
    lang: str = ""
    # Print everything as one JSON document.
    json: bool = False
    # Print the JSON Schema of that document.
    schema: bool = False


_MAX_HOURS = 10 * 365 * 24
_MAX_VALUES = {"gpus": 1024, "nodes": 65_536, "network": 1e6, "price": 1e9}
_MIN_NETWORK_GB_S = 1e-6


def check_plan_options(options: PlanOptions) -> list[str]:
    problems: list[str] = []
    for name, max_value in _MAX_VALUES.items():
        value = getattr(options, name)
        if value is not None and value > max_value:
            problems.append(f"--{name}={value:g} is too large: at most {max_value:,.0f}")
    if 0 < options.network < _MIN_NETWORK_GB_S:
        problems.append(f"--network={options.network:g} is too small; it is in GB/s")
    if options.network != DEFAULT_NETWORK_GB_S and options.nodes == 1:
        problems.append(f"--network={options.network:g} is between machines: it needs --nodes")
    for name in ("hours", "price", "gpus", "nodes", "network"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            problems.append(f"--{name}={value:g} must be greater than 0")
    if options.hours is not None and options.hours > _MAX_HOURS:
        problems.append(f"--hours={options.hours:g} is longer than ten years")
    check_language(options.lang, problems)
    if options.probe and options.hours is not None:
        problems.append("--probe measures one run, and --hours compares many: leave one of them out")
    if options.out and not options.out.endswith(".toml"):
        problems.append(f"--out={options.out} must end in .toml, as `glass train` requires")
    if options.out and options.hours is None:
        problems.append("--out needs --hours: without it there is no proposal to write")
    return problems
