"""glass plan: does not import torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from glassgpt.cli.command import make_console, print_help, recipe_from_names, wants_help
from glassgpt.config import DEVICE_PATTERN, TrainConfig
from glassgpt.errors import UserError
from glassgpt.flags import check_settings, parse_flags
from glassgpt.plan.plan_options import PlanOptions, check_plan_options
from glassgpt.recipe import DEFAULT_PRESET, Recipe, build_config

if TYPE_CHECKING:
    from glassgpt.plan.target import PlanTarget

Result = TypeVar("Result")


@dataclass(frozen=True)
class _PlanFlags(PlanOptions, TrainConfig):
    """Everything that may be said after `glass plan`."""


def plan(words: list[str]) -> int:
    if wants_help(words):
        return print_help(PlanOptions, "glass plan [PRESET|FILE] [--key=value ...]", _HELP_TEXT)
    typed = _parse_words(words)
    if typed.options.cards:
        _check_cards_flag_alone(typed)
        return _recommend(typed.options.json)
    asked = _resolve_request(typed)
    from glassgpt.plan.dataset_size import find_dataset_info
    from glassgpt.plan.planning import make_plan
    from glassgpt.show.terminal.plan_view import print_plan

    config, target, options = asked.config, asked.target, asked.options
    if options.hours is not None:
        return _propose(asked, options.hours)
    made = make_plan(config, target, find_dataset_info(config), options.price)
    if options.json:
        print(json.dumps(made.as_dict()))
    else:
        print_plan(made, asked.name, make_console())
    return 0


def _recommend(as_json: bool) -> int:
    from rich.progress import track

    from glassgpt.plan.recommended import COMMON_CARDS, recommend_for_cards
    from glassgpt.show.terminal.plan_view import print_recommendations

    err = make_console(stderr=True)
    rows = recommend_for_cards(
        track(COMMON_CARDS, "planning", console=err, transient=True, disable=not err.is_terminal)
    )
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print_recommendations(rows, make_console())
    return 0


def _propose(asked: _PlanRequest, hours: float) -> int:
    from glassgpt.plan.dataset_size import find_dataset_info
    from glassgpt.plan.propose import propose
    from glassgpt.show.terminal.plan_view import print_proposal

    options = asked.options
    text = find_dataset_info(asked.config)
    proposal = propose(asked.config, asked.target, text, hours, options.price, asked.has_block_size_flag)
    if options.out:
        _write(options.out, proposal.as_toml())
    if options.json:
        print(json.dumps(proposal.as_dict()))
    else:
        print_proposal(proposal, make_console(), options.out)
    return 0


_HELP_TEXT = """Any setting of `glass train` may be given too: glass plan gpt2_124m --gpu=rtx4070 --block_size=512

Nothing is trained, and no GPU is needed."""


@dataclass(frozen=True)
class _PlanWords:
    """The words, taken apart."""

    names: list[str]
    settings: dict[str, str]
    options: PlanOptions
    problems: list[str]


def _parse_words(words: list[str]) -> _PlanWords:
    names, flags, problems = parse_flags(words, _PlanFlags)
    own_names = {field.name for field in fields(PlanOptions)}
    own, more = check_settings({name: flags.pop(name) for name in own_names & flags.keys()}, PlanOptions)
    options = PlanOptions(**own)  # type: ignore[arg-type]
    return _PlanWords(names, flags, options, problems + more + check_plan_options(options))


@dataclass(frozen=True)
class _PlanRequest:
    name: str
    config: TrainConfig
    target: PlanTarget
    options: PlanOptions
    has_block_size_flag: bool  # by a flag


def _resolve_request(typed: _PlanWords) -> _PlanRequest:
    """What to plan, for what; all problems at once."""
    from glassgpt.plan.target import find_target, with_cluster

    options, problems = typed.options, list(typed.problems)
    recipe = recipe_from_names(typed.names, problems, DEFAULT_PRESET)
    device = _device_said(recipe, typed)
    target = _collect_problems(
        problems,
        lambda: with_cluster(find_target(options.gpu, device), options.gpus, options.nodes, options.network),
    )
    kind = None if target is None else target.device_type
    config = _collect_problems(
        problems, lambda: build_config(recipe or Recipe("", "", {}), typed.settings, kind)
    )
    if config is not None and options.hours is not None:
        problems += _conflicts_with_hours(config, typed)
    if problems or recipe is None or target is None or config is None:
        raise UserError(problems)
    return _PlanRequest(recipe.name, config, target, options, "block_size" in typed.settings)


def _conflicts_with_hours(config: TrainConfig, typed: _PlanWords) -> list[str]:
    """What --hours cannot heed."""
    from glassgpt.plan.propose import PROPOSED_SETTINGS

    problems = []
    if config.init_from != "scratch":
        problems.append(f"--hours proposes a model to begin with, and --init_from={config.init_from} has one")
    if config.eval_only:
        problems.append("--hours proposes a run that trains, and --eval_only=True does not: leave one out")
    ours = [f"--{name}" for name in typed.settings if name in PROPOSED_SETTINGS]
    if ours:
        problems.append(f"--hours proposes {', '.join(ours)} itself: leave out what you say, or --hours")
    return problems


def _device_said(recipe: Recipe | None, typed: _PlanWords) -> str:
    """By the preset, file or flags; what is no device is a problem that combine() tells."""
    settings = {} if recipe is None else {**recipe.settings, **typed.settings}
    device = str(settings.get("device", "auto"))
    return device if DEVICE_PATTERN.fullmatch(device) else "auto"


def _check_cards_flag_alone(typed: _PlanWords) -> None:
    """The table of cards is of a run of its own: nothing else has a say in it."""
    others = [*typed.names, *(f"--{name}" for name in typed.settings)]
    if typed.options != PlanOptions(cards=True, json=typed.options.json):
        others += ["other options"]
    problems = list(typed.problems)
    if others:
        problems.append(f"--cards is a table by itself: leave out {', '.join(others)}")
    if problems:
        raise UserError(problems)


def _collect_problems(problems: list[str], make: Callable[[], Result]) -> Result | None:
    try:
        return make()
    except UserError as error:
        problems += error.problems
        return None


def _write(out: str, text: str) -> None:
    from glassgpt.files import expand_user_path

    path = expand_user_path(out)
    if os.path.lexists(path):
        raise UserError(f"--out={out} is there already; name another file")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out={out} cannot be written: {error.strerror}") from None
