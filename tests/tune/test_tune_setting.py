"""A tuned run is the same run: only its speed may differ. And the file that says so."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeConfig
from tune_machines import GPT2, SMALL, FakeMachine, cpu_machine, gpu_machine, saturating_speed

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.flags import parse_duration
from glassgpt.recipe import build_config, read_recipe
from glassgpt.record import journal
from glassgpt.training.session import train
from glassgpt.tune import tuning as tuning_module
from glassgpt.tune.ranking import summarize_trials
from glassgpt.tune.speed_settings import SpeedSettings, apply_setting, describe_dimension, tuned_config_fields
from glassgpt.tune.trial_run import inspect_machine, prepare_trial_setup
from glassgpt.tune.tuning import TuneOptions, Tuning, check_tunable, tuned_file_notes
from glassgpt.tune.tuning import check_tune_options as option_problems
from glassgpt.validate import find_config_problems


def losses(config: TrainConfig) -> tuple[list[float], list[float]]:
    """Of every update and of every evaluation."""
    run = train(config)
    records = list(journal.read(run.out_dir / journal.FILE_NAME))
    return (
        [record["loss"] for record in records if record["kind"] == "step"],
        [record["loss"] for record in records if record["kind"] == "eval"],
    )


@pytest.mark.parametrize("batch", [{"batch_size": 6}, {"batch_size": None, "batch_tokens": 96}])
def test_the_losses_are_those_of_the_automatic_choice(
    tiny: MakeConfig, tmp_path: Path, batch: dict[str, Any]
) -> None:
    """Twenty updates of twelve sequences, in float32 and without dropout."""
    steps = None if "batch_tokens" in batch else 2
    asked = tiny("asked", gradient_accumulation_steps=steps, eval_interval=10, eval_iters=3, **batch)
    context = inspect_machine(prepare_trial_setup(asked, None))
    updates, evaluations = losses(asked)
    assert len(updates) == 20
    settings = [
        *(SpeedSettings(micro_batch=size) for size in context.micro_batches),
        SpeedSettings(micro_batch=4, attention="manual"),
        SpeedSettings(micro_batch=12, checkpointing=True),
    ]
    for number, setting in enumerate(settings):
        tuned = replace(context.config_with(asked, setting), out_dir=str(tmp_path / f"tuned{number}"))
        assert find_config_problems(tuned) == []
        found, evaluated = losses(tuned)
        assert found == pytest.approx(updates, abs=1e-5), setting
        assert evaluated == pytest.approx(evaluations, abs=1e-5), setting


def test_a_setting_says_everything_there_is_to_choose() -> None:
    setting = SpeedSettings(micro_batch=24, attention="flash", kernels=True, graph=False, checkpointing=True)
    tuned = apply_setting(GPT2, setting, 480, 12, "cuda")
    assert (tuned.batch_size, tuned.gradient_accumulation_steps) == (24, 20)
    assert (tuned.attention, tuned.kernels, tuned.graph, tuned.compile) == ("flash", "triton", "off", "off")
    assert tuned.activation_checkpointing
    on_cpu = apply_setting(SMALL, SpeedSettings(micro_batch=6, compile=True), 12, 12, "cpu")
    assert (on_cpu.kernels, on_cpu.graph, on_cpu.compile) == ("auto", "auto", "on")


def test_nothing_else_of_the_run_changes() -> None:
    tuned = apply_setting(GPT2, SpeedSettings(micro_batch=24), 480, 12, "cuda")
    changed = {name for name, value in dataclasses.asdict(tuned).items() if value != getattr(GPT2, name)}
    assert changed <= set(tuned_config_fields("cuda"))
    assert tuned.block_size * (tuned.batch_size or 0) * (tuned.gradient_accumulation_steps or 0) == 491_520


def test_batch_tokens_are_kept() -> None:
    tuned = apply_setting(TrainConfig(batch_tokens=32_768), SpeedSettings(micro_batch=16), 32, 32, "cuda")
    assert (tuned.batch_tokens, tuned.batch_size, tuned.gradient_accumulation_steps) == (32_768, 16, None)
    assert find_config_problems(tuned) == []


def test_as_much_is_evaluated_as_before() -> None:
    """nanoGPT's eval_iters counts micro-batches: 20 x 12 x 64 tokens."""
    tuned = apply_setting(replace(SMALL, eval_iters=20), SpeedSettings(micro_batch=4), 12, 12, "cpu")
    assert (tuned.eval_iters, tuned.eval_tokens) == (None, 15_360)


def test_every_dimension_has_a_description() -> None:
    one = SpeedSettings(micro_batch=1)
    other = SpeedSettings(
        micro_batch=1, attention="flash", kernels=True, graph=True, data_on_card=True, checkpointing=True,
        compile=True, threads=2,
    )  # fmt: skip
    names = list(one.differences(other))
    assert len(names) == len(dataclasses.fields(SpeedSettings)) - 1
    for name in names:
        assert describe_dimension(one, name) != describe_dimension(other, name)


# --- the file ---


def tuning_of(config: TrainConfig = GPT2) -> Tuning:
    on_cpu = config is SMALL
    context = cpu_machine() if on_cpu else gpu_machine()
    speed = (lambda setting: 2e4 if setting.threads == 1 else 1e4) if on_cpu else saturating_speed()
    machine = FakeMachine(context, speed)
    return Tuning(config, context, summarize_trials(machine.run_search(config)), 90.0, machine.now)


def test_the_file_says_the_tuned_config(tmp_path: Path) -> None:
    tuning = tuning_of()
    text = tuning_module.tuned_file_text(
        tuning.tuned, GPT2, "gpt2_124m", tuned_config_fields("cuda"), tuned_file_notes(tuning)
    )
    path = tmp_path / "tuned.toml"
    path.write_text(text)
    recipe = read_recipe(path)
    assert build_config(recipe, {}) == tuning.tuned
    assert recipe.about == "gpt2_124m, tuned for this machine"
    measured = text.partition("# --- measured ---\n")[2].partition("\n\n")[0].splitlines()
    assert measured[0] == f"batch_size = {tuning.tuned.batch_size}  # was 12"
    assert 'attention = "cudnn"  # was auto' in measured
    assert "n_layer = 12" not in measured
    assert tuning.result.summary in text


def test_threads_are_a_setting_of_the_tuned_run() -> None:
    tuning = tuning_of(SMALL)
    assert tuning.tuned.threads == 1
    assert "threads = 1  # was not set" in tuning_module.tuned_file_text(
        tuning.tuned, SMALL, "small", tuned_config_fields("cpu"), tuned_file_notes(tuning)
    )


def test_a_name_cannot_break_the_file(tmp_path: Path) -> None:
    name = 'my "run"\\x'
    text = tuning_module.tuned_file_text(SMALL, SMALL, name, (), ())
    path = tmp_path / "t.toml"
    path.write_text(text)
    assert read_recipe(path).about == f"{name}, tuned for this machine"


def test_a_file_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = [str(tuning_module.write_tuned_file(f"# {n}", "", False)) for n in range(3)]
    assert written == ["tuned.toml", "tuned-2.toml", "tuned-3.toml"]
    assert Path("tuned.toml").read_text() == "# 0"
    assert str(tuning_module.write_tuned_file("# 9", "", True)) == "tuned.toml"
    assert Path("tuned.toml").read_text() == "# 9"
    assert str(tuning_module.write_tuned_file("# 1", "mine.toml", False)) == "mine.toml"
    with pytest.raises(UserError, match="exists: choose another name"):
        tuning_module.write_tuned_file("# 2", "mine.toml", False)
    tuning_module.write_tuned_file("# 2", "mine.toml", True)
    assert Path("mine.toml").read_text() == "# 2"
    assert len(list(tmp_path.iterdir())) == 4


def test_output_paths_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.toml").mkdir()
    assert "is a folder" in tuning_module.check_output_path("folder.toml", True)[0]
    assert "there is no folder" in tuning_module.check_output_path("missing/x.toml", False)[0]
    assert "must end in .toml" in tuning_module.check_output_path("x.txt", False)[0]
    assert tuning_module.check_output_path("x.toml", False) == []


# --- options ---


def test_budgets() -> None:
    texts = {"90s": 90, "2m": 120, "90": 90, "1.5m": 90, "1h": 3600, "0.5": 0.5, " 3 min": 180, "10 sec": 10}
    for text, seconds in texts.items():
        assert parse_duration(text) == seconds, text
    for text in ("", "0", "0s", "-5", "s", "1d", "nan", "inf", "1e3", "25h", "9" * 400):
        assert parse_duration(text) is None, text


def test_all_bad_options_are_reported() -> None:
    problems = option_problems(TuneOptions(budget="soon", vocab_size=1))
    assert len(problems) == 2
    assert "--budget=soon" in problems[0]
    assert "--vocab_size=1" in problems[1]


def test_what_cannot_be_tuned() -> None:
    with pytest.raises(UserError) as error:
        check_tunable(TrainConfig(eval_only=True, init_from="resume", n_head=0))
    assert len(error.value.problems) == 3


def test_the_json_document() -> None:
    import json

    document = json.loads(json.dumps(tuning_of().as_dict()))
    assert document["chosen"] in document["trials"]
    assert document["settings"]["batch_size"] == document["chosen"]["setting"]["micro_batch"]
    assert document["ground"]["tokens"] == 491_520
    assert {"verdict", "tokens_per_s", "update_ms", "peak_bytes", "mfu"} <= document["chosen"].keys()
