"""glass plan: does not import torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from glassgpt.cli.command import console, print_help, recipe_named, wants_help
from glassgpt.config import DEVICE, TrainConfig
from glassgpt.errors import UserError
from glassgpt.flags import check_settings, parse_flags
from glassgpt.plan.plan_options import PlanOptions, check_options
from glassgpt.recipe import DEFAULT_PRESET, Recipe, combine

if TYPE_CHECKING:
    from glassgpt.plan.target import Target

Made = TypeVar("Made")


@dataclass(frozen=True)
class _Flags(PlanOptions, TrainConfig):
    """Everything that may be said after `glass plan`."""


def plan(words: list[str]) -> int:
    if wants_help(words):
        return print_help(PlanOptions, "glass plan [PRESET|FILE] [--key=value ...]", _ABOUT)
    typed = _take_apart(words)
    if typed.options.cards:
        _check_alone(typed)
        return _recommend(typed.options.json)
    asked = _read(typed)
    from glassgpt.plan.dataset_size import find_text
    from glassgpt.plan.planning import make_plan
    from glassgpt.show.terminal.plan_view import print_plan

    config, target, options = asked.config, asked.target, asked.options
    if options.hours is not None:
        return _propose(asked, options.hours)
    made = make_plan(config, target, find_text(config), options.price)
    if options.json:
        print(json.dumps(made.as_dict()))
    else:
        print_plan(made, asked.name, console())
    return 0


def _recommend(as_json: bool) -> int:
    from rich.progress import track

    from glassgpt.plan.recommended import CARDS, recommendations
    from glassgpt.show.terminal.plan_view import print_recommendations

    err = console(stderr=True)
    rows = recommendations(track(CARDS, "planning", console=err, transient=True, disable=not err.is_terminal))
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print_recommendations(rows, console())
    return 0


def _propose(asked: _Asked, hours: float) -> int:
    from glassgpt.plan.dataset_size import find_text
    from glassgpt.plan.propose import propose
    from glassgpt.show.terminal.plan_view import print_proposal

    options = asked.options
    text = find_text(asked.config)
    proposal = propose(asked.config, asked.target, text, hours, options.price, asked.says_context)
    if options.out:
        _write(options.out, proposal.as_toml())
    if options.json:
        print(json.dumps(proposal.as_dict()))
    else:
        print_proposal(proposal, console(), options.out)
    return 0


_ABOUT = """Any setting of `glass train` may be given too: glass plan gpt2_124m --gpu=rtx4070 --block_size=512

Nothing is trained, and no GPU is needed."""


@dataclass(frozen=True)
class _Typed:
    """The words, taken apart."""

    names: list[str]
    settings: dict[str, str]
    options: PlanOptions
    problems: list[str]


def _take_apart(words: list[str]) -> _Typed:
    names, flags, problems = parse_flags(words, _Flags)
    own_names = {field.name for field in fields(PlanOptions)}
    own, more = check_settings({name: flags.pop(name) for name in own_names & flags.keys()}, PlanOptions)
    options = PlanOptions(**own)  # type: ignore[arg-type]
    return _Typed(names, flags, options, problems + more + check_options(options))


@dataclass(frozen=True)
class _Asked:
    name: str
    config: TrainConfig
    target: Target
    options: PlanOptions
    says_context: bool  # by a flag


def _read(typed: _Typed) -> _Asked:
    """What to plan, for what; all problems at once."""
    from glassgpt.plan.target import find_target, together

    options, problems = typed.options, list(typed.problems)
    recipe = recipe_named(typed.names, problems, DEFAULT_PRESET)
    device = _device_said(recipe, typed)
    target = _unless_wrong(
        problems,
        lambda: together(find_target(options.gpu, device), options.gpus, options.nodes, options.network),
    )
    kind = None if target is None else target.device_type
    config = _unless_wrong(problems, lambda: combine(recipe or Recipe("", "", {}), typed.settings, kind))
    if config is not None and options.hours is not None:
        problems += _unlike_a_proposal(config, typed)
    if problems or recipe is None or target is None or config is None:
        raise UserError(problems)
    return _Asked(recipe.name, config, target, options, "block_size" in typed.settings)


def _unlike_a_proposal(config: TrainConfig, typed: _Typed) -> list[str]:
    """What --hours cannot heed."""
    from glassgpt.plan.propose import PROPOSED

    problems = []
    if config.init_from != "scratch":
        problems.append(f"--hours proposes a model to begin with, and --init_from={config.init_from} has one")
    if config.eval_only:
        problems.append("--hours proposes a run that trains, and --eval_only=True does not: leave one out")
    ours = [f"--{name}" for name in typed.settings if name in PROPOSED]
    if ours:
        problems.append(f"--hours proposes {', '.join(ours)} itself: leave out what you say, or --hours")
    return problems


def _device_said(recipe: Recipe | None, typed: _Typed) -> str:
    """By the preset, file or flags; what is no device is a problem that combine() tells."""
    settings = {} if recipe is None else {**recipe.settings, **typed.settings}
    device = str(settings.get("device", "auto"))
    return device if DEVICE.fullmatch(device) else "auto"


def _check_alone(typed: _Typed) -> None:
    """The table of cards is of a run of its own: nothing else has a say in it."""
    others = [*typed.names, *(f"--{name}" for name in typed.settings)]
    if typed.options != PlanOptions(cards=True, json=typed.options.json):
        others += ["other options"]
    problems = list(typed.problems)
    if others:
        problems.append(f"--cards is a table by itself: leave out {', '.join(others)}")
    if problems:
        raise UserError(problems)


def _unless_wrong(problems: list[str], make: Callable[[], Made]) -> Made | None:
    try:
        return make()
    except UserError as error:
        problems += error.problems
        return None


def _write(out: str, text: str) -> None:
    from glassgpt.paths import user_path

    path = user_path(out)
    if os.path.lexists(path):
        raise UserError(f"--out={out} is there already; name another file")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out={out} cannot be written: {error.strerror}") from None
