"""glass plan: memory, time and loss of a run before it starts. Does not import torch.

glass plan gpt2_124m --gpu=rtx4070 --block_size=512
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from glassgpt.cli.command import command, make_console, print_json, recipe_from_names
from glassgpt.config import DEVICE_PATTERN, TrainConfig
from glassgpt.errors import UserError, collect_problems, raise_if_any
from glassgpt.files import expand_user_path
from glassgpt.flags import check_settings, parse_flags
from glassgpt.i18n import preferred_language, use_language
from glassgpt.plan.plan_options import PlanOptions, check_plan_options
from glassgpt.recipe import DEFAULT_PRESET, Recipe, build_config

if TYPE_CHECKING:
    from glassgpt.estimate.measured_speed import ProbeResult
    from glassgpt.plan.target import PlanTarget


@dataclass(frozen=True)
class _PlanFlags(PlanOptions, TrainConfig):
    """All flags of `glass plan`: its options and the settings of a run."""


@dataclass(frozen=True)
class _PlanRequest:
    name: str
    config: TrainConfig
    target: PlanTarget
    options: PlanOptions
    has_block_size_flag: bool


@command("glass plan [PRESET|FILE]", PlanOptions, _PlanFlags)
def plan(words: list[str]) -> int:
    names, flags, problems = parse_flags(words, _PlanFlags)
    option_names = {field.name for field in fields(PlanOptions)}
    values, option_problems = check_settings(
        {name: flags.pop(name) for name in option_names & flags.keys()}, PlanOptions
    )
    options = PlanOptions(**values)  # type: ignore[arg-type]
    problems += option_problems + check_plan_options(options)
    if options.cards:
        others = [*names, *(f"--{name}" for name in flags)]
        if options != PlanOptions(cards=True, json=options.json, lang=options.lang):
            others += ["other options"]
        if others:
            problems.append(f"--cards is a table by itself: leave out {', '.join(others)}")
        raise_if_any(problems)
        return _print_recommendations(options.json)
    with use_language(options.lang or preferred_language()):
        request = _resolve_request(names, flags, options, problems)
        return _plan(request) if options.hours is None else _propose(request, options.hours)


def _plan(request: _PlanRequest) -> int:
    from glassgpt.plan.dataset_info import find_dataset_info
    from glassgpt.plan.planning import make_plan
    from glassgpt.show.terminal.plan_view import print_plan

    options, target = request.options, request.target
    if options.probe:
        target = replace(target, probe=_probe(request))
    made = make_plan(request.config, target, find_dataset_info(request.config), options.price)
    if options.json:
        print_json(made.as_dict())
    else:
        print_plan(made, request.name, make_console())
    return 0


def _resolve_request(
    names: list[str], flags: dict[str, str], options: PlanOptions, problems: list[str]
) -> _PlanRequest:
    """Which config to plan, on which cards; all problems at once."""
    from glassgpt.estimate.local_history import read_rows
    from glassgpt.plan.propose import PROPOSED_SETTINGS
    from glassgpt.plan.target import find_target, with_cluster

    recipe = recipe_from_names(names, problems, DEFAULT_PRESET)
    device = "auto" if recipe is None else str({**recipe.settings, **flags}.get("device", "auto"))
    if not DEVICE_PATTERN.fullmatch(device):
        device = "auto"  # build_config reports it
    target: PlanTarget | None = None
    config: TrainConfig | None = None
    with collect_problems(problems):
        target = with_cluster(find_target(options.gpu, device), options.gpus, options.nodes, options.network)
    with collect_problems(problems):
        device_type = None if target is None else target.device_type
        config = build_config(recipe or Recipe("", "", {}), flags, device_type)
    if config is not None and options.hours is not None:
        if config.init_from != "scratch":
            problems.append(
                f"--hours proposes a model to begin with, and --init_from={config.init_from} has one"
            )
        if config.eval_only:
            problems.append(
                "--hours proposes a run that trains, and --eval_only=True does not: leave one out"
            )
        proposed = [f"--{name}" for name in flags if name in PROPOSED_SETTINGS]
        if proposed:
            problems.append(
                f"--hours proposes {', '.join(proposed)} itself: leave out these flags, or --hours"
            )
    if problems or recipe is None or target is None or config is None:
        raise UserError(problems)
    if target.is_local and config.history == "on":
        target = replace(target, history=read_rows())
    return _PlanRequest(recipe.name, config, target, options, "block_size" in flags)


def _probe(request: _PlanRequest) -> ProbeResult:
    """--probe: a few updates of the run, in a separate process. What goes wrong there is an answer too."""
    from glassgpt.estimate.measured_speed import ProbeResult
    from glassgpt.tune.trial_runner import PROBE_TIMED_S, probe_plan

    target, config = request.target, request.config
    if not target.is_local:
        return ProbeResult("not here", f"measures this machine, and {target.name} was named: leave out --gpu")
    if config.eval_only:
        return ProbeResult("not here", "measures updates, and --eval_only=True does none")
    err = make_console(stderr=True)
    err.print(
        f"probing {target.name}: {PROBE_TIMED_S:.0f} s of updates of this run in a separate process, "
        "some ten seconds in all",
        style="dim",
        soft_wrap=True,
    )
    probe = probe_plan(
        replace(config, device=target.device_type if config.device == "auto" else config.device)
    )
    err.print(f"probed for {probe.took_s:.0f} s", style="dim")
    return probe


def _propose(request: _PlanRequest, hours: float) -> int:
    """--hours=H: the best model that trains in H hours, printed or written to --out."""
    from glassgpt.plan.dataset_info import find_dataset_info
    from glassgpt.plan.propose import propose
    from glassgpt.show.terminal.plan_view import print_proposal

    options, config = request.options, request.config
    dataset = find_dataset_info(config)
    proposal = propose(config, request.target, dataset, hours, options.price, request.has_block_size_flag)
    if options.out:
        path = expand_user_path(options.out)
        if os.path.lexists(path):
            raise UserError(f"--out={options.out} exists already; name another file")
        try:
            path.write_text(proposal.as_toml(), encoding="utf-8")
        except OSError as error:
            raise UserError(f"--out={options.out} cannot be written: {error.strerror}") from None
    if options.json:
        print_json(proposal.as_dict())
    else:
        print_proposal(proposal, make_console(), options.out)
    return 0


def _print_recommendations(as_json: bool) -> int:
    """--cards: what common cards can train."""
    from rich.progress import track

    from glassgpt.estimate.cards import COMMON_CARDS
    from glassgpt.plan.propose import recommend_for_cards
    from glassgpt.show.terminal.plan_view import print_recommendations

    err = make_console(stderr=True)
    cards = track(COMMON_CARDS, "planning", console=err, transient=True, disable=not err.is_terminal)
    rows = recommend_for_cards(cards)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_recommendations(rows, make_console())
    return 0
