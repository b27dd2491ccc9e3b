"""Every setting explains itself, and what is wrong with the values is explicit with a way out."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from glassgpt.cli.command import make_parser
from glassgpt.config import (
    TrainConfig,
    dataset_folder,
    effective_activation,
)
from glassgpt.flags import coerce_value, field_types
from glassgpt.schedule import schedule_of
from glassgpt.validate import find_config_problems

few = settings(max_examples=60, deadline=None)


# --- the comments are the help


def test_help_explains_every_setting_with_its_default() -> None:
    parser = make_parser("glass train", TrainConfig)
    explanations = {action.dest: str(action.help) for action in parser._actions}
    for field in dataclasses.fields(TrainConfig):
        text, _, default = explanations[field.name].partition(" (default: ")
        assert len(text) >= 15, field.name
        if default:
            value = coerce_value(field.name, default.strip(")"), field_types(TrainConfig)[field.name])
            assert value == field.default
        else:
            assert field.default in ("", False), field.name
    assert len(set(explanations.values())) == len(explanations)
    assert "5% of max_iters, at most 2000. (default: none)" in " ".join(parser.format_help().split())


# --- what is wrong


def problems(**values: Any) -> list[str]:
    return find_config_problems(TrainConfig(**values))


def test_the_defaults_are_in_order() -> None:
    assert problems() == []


def test_a_bad_value_is_named_with_the_fix(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"block_size": 0}, "--block_size=0 must be greater than 0"),
        ({"batch_size": -1}, "--batch_size=-1 must be greater than 0"),
        ({"learning_rate": 0.0, "min_lr": 0.0}, "--learning_rate=0.0 must be greater than 0"),
        ({"warmup_iters": -1}, "--warmup_iters=-1 must be 0 or more"),
        ({"grad_clip": -0.5}, "--grad_clip=-0.5 must be 0 or more"),
        ({"dropout": 1.0}, "--dropout=1.0 must be at least 0 and below 1"),
        ({"beta2": 1.5}, "--beta2=1.5 must be at least 0 and below 1"),
        ({"wsd_decay_fraction": 0.0}, "--wsd_decay_fraction=0.0 must be above 0 and at most 1"),
        ({"learning_rate": 1e-4, "min_lr": 1e-3}, "--min_lr=0.001 is above --learning_rate=0.0001"),
        ({"device": "tpu"}, "--device=tpu is not one of auto, cpu, cuda, cuda:N, mps"),
        ({"n_embd": 100, "n_head": 12}, "--n_embd=100 is not divisible by --n_head=12; try --n_embd=96 or"),
        ({"n_embd": 5, "n_head": 12}, "try --n_embd=12"),
        ({"arch": "modern", "n_embd": 36, "n_head": 12}, "even head size, not --n_embd / --n_head = 3"),
        ({"batch_tokens": 1000, "block_size": 256}, "try --batch_tokens=1024"),
        ({"batch_tokens": 3, "block_size": 256}, "try --batch_tokens=256"),
        (
            {"batch_tokens": 4096, "batch_size": 12, "gradient_accumulation_steps": 40},
            "is 491520 tokens, not --batch_tokens=4096; leave one of them out",
        ),
        ({"batch_tokens": 4096, "batch_size": 3}, "leave --batch_size out to have it chosen"),
        (
            {"batch_tokens": 4096, "gradient_accumulation_steps": 3},
            "leave --gradient_accumulation_steps out",
        ),
    ]
    for values, expected in cases:
        with subtests.test(repr(values)):
            (problem,) = problems(**values)
            assert expected in problem


def test_zero_is_a_value_where_it_means_off() -> None:
    assert problems(warmup_iters=0, min_lr=0.0, grad_clip=0.0, patience=0, sample_tokens=0, seed=0) == []
    assert problems(probe_seconds=0.0, weight_decay=0.0, dropout=0.0) == []


def test_settings_that_agree_are_no_contradiction() -> None:
    assert problems(batch_tokens=8192, batch_size=2, gradient_accumulation_steps=4) == []


def test_all_problems_are_reported_at_once() -> None:
    found = problems(n_layer=0, n_head=-1, dropout=2.0, device="abacus")
    assert [line.split("=")[0] for line in found] == ["--n_layer", "--n_head", "--dropout", "--device"]


def test_shape_and_batch_are_reported_together() -> None:
    assert len(problems(n_embd=100, batch_tokens=1000)) == 2


@few
@given(st.integers(1, 4000), st.integers(1, 64))
def test_the_width_it_suggests_is_right(n_embd: int, n_head: int) -> None:
    assume(n_embd % n_head)
    (problem,) = problems(n_embd=n_embd, n_head=n_head)
    widths = [int(width) for width in re.findall(r"(?:try|or) --n_embd=(\d+)", problem)]
    assert len(widths) == len(set(widths)) == (1 if n_embd < n_head else 2)
    for width in widths:
        assert problems(n_embd=width, n_head=n_head) == []


@few
@given(st.integers(1, 100_000), st.integers(1, 2048))
def test_the_batch_it_suggests_is_right(batch_tokens: int, block_size: int) -> None:
    assume(batch_tokens % block_size)
    (problem,) = problems(batch_tokens=batch_tokens, block_size=block_size)
    suggested = int(problem.rpartition("=")[2])
    assert problems(batch_tokens=suggested, block_size=block_size) == []


# --- what follows


@pytest.mark.parametrize(("max_iters", "warmup"), [(100, 5), (19, 0), (40_000, 2000), (600_000, 2000)])
def test_warm_up_is_a_twentieth_and_at_most_2000(max_iters: int, warmup: int) -> None:
    assert schedule_of(TrainConfig(max_iters=max_iters)).warmup_iters == warmup


def test_what_is_said_is_not_derived() -> None:
    explicit = TrainConfig(
        warmup_iters=0, lr_decay_iters=7, min_lr=0.0, activation="gelu_new", data_dir="elsewhere"
    )
    assert schedule_of(explicit).warmup_iters == 0
    assert schedule_of(explicit).decay_iters == 7
    assert schedule_of(explicit).min_lr == 0.0
    assert effective_activation(explicit) == "gelu_new"
    assert dataset_folder(explicit) == Path("elsewhere")


def test_what_is_not_said_is_derived() -> None:
    config = TrainConfig(max_iters=123, learning_rate=5e-3, dataset="mine")
    assert schedule_of(config).decay_iters == 123
    assert schedule_of(config).min_lr == pytest.approx(5e-4)
    assert dataset_folder(config) == Path("data/mine")
    assert effective_activation(config) == "gelu"
    assert effective_activation(dataclasses.replace(config, arch="modern")) == "relu2"


def test_a_dataset_is_a_name_in_data_or_the_path_of_a_folder_that_holds_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def found(dataset: str, data_dir: str = "") -> Path:
        return dataset_folder(TrainConfig(dataset=dataset, data_dir=data_dir))

    Path("texts/mine").mkdir(parents=True)
    assert found("texts/mine") == Path("data/texts/mine")  # there is no dataset in it
    Path("texts/mine/manifest.json").touch()
    assert found("texts/mine") == found("./texts/mine/") == Path("texts/mine")
    assert found(f"{tmp_path}/texts/mine") == found("~/texts/mine") == tmp_path / "texts/mine"
    assert found("/nowhere/mine") == Path("/nowhere/mine")  # never data/nowhere/mine
    Path("data/texts/mine").mkdir(parents=True)
    Path("data/texts/mine/train.bin").touch()  # nanoGPT's meaning comes first
    assert found("texts/mine") == Path("data/texts/mine")
    assert found("data/texts/mine") == Path("data/texts/mine")
    assert found("texts/mine", data_dir="~/else") == tmp_path / "else"


def test_what_to_take_over_needs_something_to_take_it_from() -> None:
    (problem,) = find_config_problems(TrainConfig(init_state="all"))
    assert problem == "--init_state=all needs --init_from=RUN"
    assert find_config_problems(TrainConfig(init_state="all", init_from="runs/other")) == []


def test_sharding_goes_with_neither_a_loss_scaler_nor_8_bit_floats() -> None:
    found = problems(shard=True, dtype="float16", fp8=True)
    assert [problem.partition(" ")[0] for problem in found] == ["--shard=True"] * 2
    assert problems(shard=True, dtype="bfloat16") == []
    (problem,) = problems(rank_timeout=0.0)
    assert "--rank_timeout=0.0 must be greater than 0" in problem
