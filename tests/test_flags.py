"""Flags, and one value at a time: what is a number, a switch or a word, and what to say of the rest."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from glassgpt import config
from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.flags import (
    EPOCHS_HINT,
    RESUME_HINT,
    SYNONYMS,
    TRAIN_HINTS,
    both_names_problem,
    check_settings,
    coerce_value,
    did_you_mean,
    field_types,
    parse_flags,
)
from glassgpt.recipe import build_config, find_recipe, read_recipe

# --- one value


def test_whole_numbers_come_in_many_ways(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, int]] = [
        ("1_000", 1000),
        ("1e4", 10_000),
        ("12", 12),
        ("+3", 3),
        ("-7", -7),
        ("2.0", 2),
        (1e4, 10_000),
        (5, 5),
    ]
    for text, number in cases:
        with subtests.test(repr(text)):
            found = coerce_value("--max_iters", text, int)
            assert found == number
            assert type(found) is int


@pytest.mark.parametrize(
    "text",
    [
        *("1.5", 1.5, "twelve", "", "nan", "inf", "-inf", "0x10", True, [1], {"a": 1}),
        *("1__0", "_1", "1_", "+-5", "9" * 5000),  # which only look like one
    ],
)
def test_what_is_no_whole_number_is_refused(text: Any) -> None:
    with pytest.raises(UserError, match=r"^--max_iters="):
        coerce_value("--max_iters", text, int)


@pytest.mark.parametrize(("text", "number"), [("1e-3", 1e-3), ("6E-4", 6e-4), (1, 1.0), ("0", 0.0)])
def test_numbers(text: Any, number: float) -> None:
    found = coerce_value("--learning_rate", text, float)
    assert found == number
    assert type(found) is float


def test_what_is_no_finite_number_is_refused(subtests: pytest.Subtests) -> None:
    for text in ("nan", "inf", "-inf", "1e999", "fast", "", True, None, [0.1]):
        with subtests.test(repr(text)), pytest.raises(UserError, match=r"^--learning_rate="):
            coerce_value("--learning_rate", text, float)


def test_a_whole_number_beyond_all_floats_is_refused() -> None:
    with pytest.raises(UserError, match=r"^--learning_rate="):
        coerce_value("--learning_rate", 10**400, float)


def test_true_for_a_switch_and_for_compile(subtests: pytest.Subtests) -> None:
    for yes in (True, "True", "true", "on", "yes", "1", 1):
        with subtests.test(repr(yes)):
            assert coerce_value("--bias", yes, bool) is True
            assert coerce_value("--compile", yes, field_types(TrainConfig)["compile"]) == "on"


def test_false_for_a_switch_and_for_compile(subtests: pytest.Subtests) -> None:
    for no in (False, "False", "FALSE", "off", "no", "0", 0):
        with subtests.test(repr(no)):
            assert coerce_value("--bias", no, bool) is False
            assert coerce_value("--compile", no, field_types(TrainConfig)["compile"]) == "off"


def test_compile_has_a_third_word() -> None:
    assert coerce_value("--compile", "AUTO", field_types(TrainConfig)["compile"]) == "auto"


def test_a_word_out_of_a_list_is_checked() -> None:
    with pytest.raises(UserError, match=r"^--arch=gpt3 is not one of gpt2, modern$"):
        coerce_value("--arch", "gpt3", field_types(TrainConfig)["arch"])
    with pytest.raises(UserError, match=r"^--compile=maybe is not one of auto, on, off$"):
        coerce_value("--compile", "maybe", field_types(TrainConfig)["compile"])
    with pytest.raises(UserError, match=r"^--arch=True is not one of"):
        coerce_value("--arch", True, field_types(TrainConfig)["arch"])


def test_none_takes_a_setting_back_to_derived(subtests: pytest.Subtests) -> None:
    for none in ("none", "None", "NONE", "", None):
        with subtests.test(repr(none)):
            assert coerce_value("--min_lr", none, field_types(TrainConfig)["min_lr"]) is None
            with pytest.raises(UserError):
                coerce_value("--n_layer", none, int)


# --- flags


def test_flags_in_every_form() -> None:
    words, flags, found = parse_flags(
        ["quickstart", "--n_layer=2", "--n-head", "4", "--bias", "--eval-only", "off", "--min_lr", "-1"],
        TrainConfig,
    )
    assert words == ["quickstart"]
    assert flags == {"n_layer": "2", "n_head": "4", "bias": "True", "eval_only": "off", "min_lr": "-1"}
    assert found == []


def test_a_switch_does_not_swallow_the_preset() -> None:
    words, flags, _ = parse_flags(["--bias", "quickstart"], TrainConfig)
    assert (words, flags) == (["quickstart"], {"bias": "True"})


def test_what_can_be_on_or_off_is_switched_on_by_its_name_and_still_takes_a_value() -> None:
    words, flags, found = parse_flags(["--compile", "quickstart", "--graph", "auto"], TrainConfig)
    assert (words, flags, found) == (["quickstart"], {"compile": "True", "graph": "auto"}, [])
    assert build_config(find_recipe("quickstart"), flags).compile == "on"


def test_flags_may_hold_equals_signs_and_be_empty() -> None:
    assert parse_flags(["--out_dir=a=b", "--data_dir="], TrainConfig)[1] == {"out_dir": "a=b", "data_dir": ""}


def test_flags_without_a_value_and_flags_given_twice() -> None:
    _, _, found = parse_flags(["--n_layer=1", "--n-layer=2", "--n_head", "--seed"], TrainConfig)
    assert found == [
        "--n_layer is given twice",
        "--n_head needs a value: --n_head=...",
        "--seed needs a value: --seed=...",
    ]


@pytest.mark.parametrize("flag", ["--bias=False", "--bias=no", "--bias=0"])
def test_switches_take_false(flag: str) -> None:
    _, flags, found = parse_flags([flag], TrainConfig)
    assert found == []
    assert build_config(find_recipe("gpt2_124m"), flags).bias is False


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("n_layr", "n_layer"),
        ("lerning_rate", "learning_rate"),
        ("max_iter", "max_iters"),
        ("blocksize", "block_size"),
    ],
)
def test_an_unknown_setting_gets_the_nearest_known_one(wrong: str, right: str, tmp_path: Path) -> None:
    _, found = check_settings({wrong: "1"}, TrainConfig)
    assert found == [f"unknown setting --{wrong}; did you mean --{right}?"]
    path = tmp_path / "mine.toml"
    path.write_text(f"{wrong} = 1")
    with pytest.raises(UserError) as caught:
        read_recipe(path)
    assert caught.value.problems == [f"unknown setting --{wrong} in {path}; did you mean --{right}?"]


def test_a_setting_like_no_other_gets_no_guess() -> None:
    assert did_you_mean("zzzzzz", TrainConfig.__annotations__) == "; --help lists them all"


def test_a_name_of_another_trainer_gets_ours(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("lr", "did you mean --learning_rate?"),
        ("num_steps", "did you mean --max_iters?"),
        ("max_seq_len", "did you mean --block_size?"),
        ("d_model", "did you mean --n_embd?"),
        ("depth", "did you mean --n_layer?"),
        ("heads", "did you mean --n_head?"),
        ("save_every", "did you mean --checkpoint_interval?"),
        ("bf16", "did you mean --dtype=bfloat16?"),
        ("gpu", "did you mean --device=cuda?"),
        ("resume", RESUME_HINT),
        ("ckpt", RESUME_HINT),
        ("epochs", EPOCHS_HINT),
        ("temperature", "it belongs to `glass sample`"),
    ]
    for invented, ours in cases:
        with subtests.test(invented):
            for arguments in ([f"--{invented}=1"], [f"--{invented}", "1"], [f"--{invented}"]):
                words, flags, problems = parse_flags(arguments, TrainConfig)
                assert (words, problems) == ([], [])
                assert check_settings(flags, TrainConfig)[1] == [f"unknown setting --{invented}; {ours}"]


def test_hints_name_settings_that_exist_and_replace_none() -> None:
    assert not TRAIN_HINTS.keys() & field_types(TrainConfig).keys()
    for hint in TRAIN_HINTS.values():
        flags = re.findall(r"--(\w+)(?:=([\w@]+))?", hint)
        assert flags or "glass sample" in hint
        for name, value in flags:
            kind = field_types(TrainConfig)[name]
            assert not value or coerce_value(name, value, kind) == value


# --- synonyms

SYNONYM_VALUES = [
    ("final_eval", False, "closing_eval", False),
    ("muon_lr", 0.01, "matrix_lr", 0.01),
    ("cuda_graph", False, "graph", "off"),
    ("cuda_graph", "auto", "graph", "auto"),
    ("fsdp", True, "shard", True),
    ("data_device", "cuda", "data_place", "card"),
    ("data_device", "gpu", "data_place", "card"),
    ("data_device", "cpu", "data_place", "memory"),
    ("data_device", "auto", "data_place", "auto"),
    ("document_masking", True, "documents", "apart"),
    ("document_masking", False, "documents", "joined"),
    ("kernels", "pytorch", "kernels", "plain"),
]


@pytest.mark.parametrize(("synonym", "value", "setting", "expected"), SYNONYM_VALUES)
def test_a_synonym_sets_its_setting(
    synonym: str, value: str | float, setting: str, expected: str | float, tmp_path: Path
) -> None:
    assert check_settings({synonym: value}, TrainConfig) == ({setting: expected}, [])
    words, flags, problems = parse_flags([f"--{synonym.replace('_', '-')}={value}", "mine"], TrainConfig)
    assert (words, problems, list(flags)) == (["mine"], [], [setting])
    assert check_settings(flags, TrainConfig) == ({setting: expected}, [])
    literal = str(value).lower() if isinstance(value, bool) else repr(value)
    (tmp_path / "mine.toml").write_text(f"{synonym} = {literal}")
    (tmp_path / "mine.py").write_text(f"{synonym} = {value!r}\nwandb_run_name = f'{{{synonym}}}'")
    for name in ("mine.toml", "mine.py"):
        assert find_recipe(str(tmp_path / name)).settings[setting] == expected


def test_a_bare_synonym_switches_its_setting_on() -> None:
    arguments = ["--fsdp", "--cuda_graph", "--document_masking", "--final-eval", "off", "quickstart"]
    words, flags, problems = parse_flags(arguments, TrainConfig)
    assert (words, problems) == (["quickstart"], [])
    expected = {"shard": True, "graph": "on", "documents": "apart", "closing_eval": False}
    assert check_settings(flags, TrainConfig) == (expected, [])
    assert parse_flags(["--muon_lr"], TrainConfig)[2] == ["--muon_lr needs a value: --muon_lr=..."]


TRAIN_SYNONYMS = {name: synonym for name, synonym in SYNONYMS.items() if name in field_types(TrainConfig)}


@pytest.mark.parametrize(("setting", "synonym"), TRAIN_SYNONYMS.items())
def test_both_names_of_a_setting_are_refused(setting: str, synonym: str, tmp_path: Path) -> None:
    both = both_names_problem(setting)
    assert f"--{setting} " in both
    assert f"--{synonym} " in both
    value = getattr(TrainConfig(), setting)
    for names in ((setting, synonym), (synonym, setting)):
        assert check_settings(dict.fromkeys(names, value), TrainConfig)[1] == [both]
        assert parse_flags([f"--{name}={value}" for name in names], TrainConfig)[2] == [both]
        path = tmp_path / "both.py"
        path.write_text("".join(f"{name} = {value!r}\n" for name in names))
        with pytest.raises(UserError) as caught:
            find_recipe(str(path))
        assert caught.value.problems == [both_names_problem(setting, f" in {path}, line 2")]


def test_synonyms_are_in_the_help_and_no_names_of_settings() -> None:
    source = Path(config.__file__).read_text()
    for setting, synonym in TRAIN_SYNONYMS.items():
        comment = re.search(rf"((?:    # .*\n)+)    {setting}: ", source)
        assert comment is not None, setting
        assert f"--{synonym}" in comment[1]
        assert synonym not in {*field_types(TrainConfig), *TRAIN_HINTS}


@dataclasses.dataclass(frozen=True)
class OtherOptions:
    """Of another command, which has nothing to do with training."""

    temperature: float = 1.0


def test_other_commands_get_no_hints_about_training() -> None:
    _, found = check_settings({"lr": "1", "temperature": "2"}, OtherOptions)
    assert found == ["unknown setting --lr; --help lists them all"]
    assert parse_flags(["--lr"], OtherOptions)[1:] == ({"lr": ""}, [])  # that it is unknown is said above
