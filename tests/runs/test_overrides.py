"""Settings from flags and config files, for logs that do not say them."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_logs import make_run_log, make_steps

from glassgpt.errors import UserError
from glassgpt.runs.overrides import RunOverrides, apply_overrides, is_override_flag, parse_overrides


def test_flags_by_letter() -> None:
    a, b = parse_overrides(["--a.n_layer=12", "--b.parameters=33M", "--b.learning-rate", "3e-4"], runs=2)
    assert a == RunOverrides({}, {"n_layer": 12})
    assert b == RunOverrides({}, {"parameters": 33_000_000, "learning_rate": 3e-4})


@pytest.mark.parametrize(
    ("text", "value"),
    [("33M", 33_000_000), ("1.5B", 1_500_000_000), ("0.8m", 800_000), ("124475904", 124_475_904)],
)
def test_sizes_with_units(text: str, value: int) -> None:
    (given,) = parse_overrides([f"--a.parameters={text}"], runs=1)
    assert given.from_flags["parameters"] == value


def test_all_problems_at_once() -> None:
    arguments = [
        "--a.nlayer=3",
        "--b.d_model=3",
        "--c.n_layer=2",
        "--a.n_head=x",
        "--a.parameters=0",
        "--a.dtype",
    ]
    with pytest.raises(UserError) as caught:
        parse_overrides(arguments, runs=2)
    text = str(caught.value)
    assert len(caught.value.problems) == 6
    assert "--a.nlayer; did you mean --a.n_layer?" in text
    assert "did you mean --b.n_embd?" in text
    assert "--c.n_layer is for run C, but there are only 2" in text
    assert "--a.n_head=x is not a number" in text
    assert "--a.parameters=0 must be greater than 0" in text
    assert "--a.dtype needs a value" in text


def test_sizes_are_positive(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "n_layer=-5",
        "n_layer=0",
        "batch_size=-12",
        "vocab_size=-3",
        "vocab_size=0",
        "gradient_accumulation_steps=0",
        "learning_rate=-1e-3",
        "eval_iters=0",
        "max_iters=-1",
        "world_size=0",
        "batch_tokens=-1k",
        "n_layer=9999999999999999",
        "parameters=9999999T",
    ]
    for flag in cases:
        with subtests.test(flag):
            with pytest.raises(UserError) as caught:
                parse_overrides([f"--b.{flag}"], runs=2)
            (problem,) = caught.value.problems
            assert problem.startswith(f"--b.{flag} ")


def test_a_size_without_end() -> None:
    with pytest.raises(UserError, match=r"--a\.parameters is not a finite number"):
        parse_overrides([f"--a.parameters={'9' * 400}k"], runs=1)


def test_what_may_be_nothing_may_be() -> None:
    (given,) = parse_overrides(
        ["--a.dropout=0", "--a.weight_decay=0", "--a.warmup_iters=0", "--a.seed=0"], runs=1
    )
    assert set(given.from_flags.values()) == {0}


def test_settings_that_do_not_fit_our_own_model_are_still_a_logs() -> None:
    (given,) = parse_overrides(["--a.n_embd=100", "--a.n_head=7", "--a.min_lr=1"], runs=1)
    assert given.from_flags == {"n_embd": 100, "n_head": 7, "min_lr": 1.0}


def test_a_config_file_with_a_negative_size(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("n_layer = -3\n")
    with pytest.raises(UserError, match="n_layer=-3 must be greater than 0"):
        parse_overrides([f"--a.config={path}"], runs=1)


def test_a_name_like_none_says_what_there_is() -> None:
    with pytest.raises(UserError, match="it takes the settings of `glass train`"):
        parse_overrides(["--a.zzzzqqq=1"], runs=1)


def test_what_is_given_is_told_from_other_arguments() -> None:
    assert is_override_flag("--a.n_layer=12")
    assert is_override_flag("--b.config")
    assert not is_override_flag("--json")
    assert not is_override_flag("--gpu=a.b")
    assert not is_override_flag("run.log")
    with pytest.raises(UserError, match="is not a setting of a run"):
        parse_overrides(["--json"], runs=1)


def test_a_config_file_of_nanogpts(tmp_path: Path) -> None:
    path = tmp_path / "train_x.py"
    path.write_text("n_embd = 384\nbatch_size = 16\nmax_iters = 10 * 100\n")
    (given,) = parse_overrides([f"--a.config={path}"], runs=1)
    assert given.from_config["n_embd"] == 384
    assert given.from_config["max_iters"] == 1000
    assert given.from_config["n_layer"] == 12  # the default that the file relies on
    assert given.from_config["gradient_accumulation_steps"] == 40  # nanoGPT's
    assert "device" not in given.from_config  # auto says nothing


def test_a_config_file_with_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("n_layr = 3\n")
    with pytest.raises(UserError, match="n_layer"):
        parse_overrides([f"--a.config={path}", "--a.n_head=2"], runs=1)


def test_flags_beat_the_log_and_the_log_beats_the_file() -> None:
    run_log = make_run_log(make_steps([0, 1]), settings={"n_layer": 6, "n_head": 6})
    given = RunOverrides(
        {"n_layer": 12, "n_head": 12, "n_embd": 768}, {"n_layer": 4, "parameters": 5, "tokenizer": "gpt2"}
    )
    setup = apply_overrides(run_log, given).setup
    assert setup.settings == {"n_layer": 4, "n_head": 6, "n_embd": 768}
    assert setup.parameters == 5
    assert setup.data == {"tokenizer": "gpt2"}


def test_nothing_given_changes_nothing() -> None:
    run_log = make_run_log(make_steps([0, 1]), settings={"n_layer": 6})
    assert apply_overrides(run_log, RunOverrides()).setup == run_log.setup
