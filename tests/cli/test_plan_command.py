"""The command `glass plan`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from glassgpt.cli import main
from glassgpt.cli.command import make_console
from glassgpt.cli.plan_command import plan
from glassgpt.config import TrainConfig
from glassgpt.estimate.cards import resolve_card_name
from glassgpt.estimate.local_history import HistoryRow, append_row
from glassgpt.estimate.machine_facts import Origin, facts_record
from glassgpt.estimate.measured_speed import ProbeResult, work_key
from glassgpt.plan.dataset_info import find_dataset_info, known_dataset_info
from glassgpt.plan.planned_spec import make_run_spec
from glassgpt.plan.propose import PROPOSED_SETTINGS, propose
from glassgpt.plan.target import find_target, target_of_card
from glassgpt.recipe import build_config, find_recipe


def test_it_prints_a_page_without_torch() -> None:
    code = (
        "import sys; from glassgpt.cli import main; code = main(['plan', 'gpt2_124m', '--gpu=rtx4070']); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for word in ("memory", "up to", "tokens/s", "loss", "checkpoints", "kWh"):
        assert word in done.stdout


def test_all_problems_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "nothing", "--gpu=rtx9999", "--hours=-1", "--n_layer=0", "--colour=red"]) == 2
    errors = capsys.readouterr().err
    for part in ("nothing is neither", "--gpu=rtx9999", "RTX 4090", "--hours=-1", "--n_layer=0", "--colour"):
        assert part in errors


def test_a_model_too_large_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "gpt2_124m", "--gpu=rtx4070", "--n_layer=48", "--n_embd=1600", "--n_head=25"]
    assert main([*words, "--batch_size=1"]) == 2
    assert "it fits with" in capsys.readouterr().err


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "shakespeare_char", "--gpu=h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"]["name"] == "H100 SXM5"


def test_hours_write_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "day.toml"
    words = ["plan", "gpt2_124m", "--gpu=rtx4090", "--hours=24", f"--out={place}"]
    assert main(words) == 0
    assert "glass train" in capsys.readouterr().out
    assert main(["plan", str(place), "--gpu=rtx4090"]) == 0
    assert main(words) == 2  # it is there already
    assert main(["plan", "--out=x.toml"]) == 2


def test_settings_that_hours_proposes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpu=rtx4070", "--hours=1", "--n_layer=3", "--max_iters=5"]) == 2
    assert "--hours proposes --n_layer, --max_iters itself" in capsys.readouterr().err


def test_a_block_size_flag_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt2_124m", "--dataset=shakespeare_char", "--gpu=rtx4070", "--hours=1"]) == 0
    assert "block_size = 256" in capsys.readouterr().out
    assert main(["plan", "--gpu=rtx4070", "--hours=1", "--block_size=512"]) == 0
    assert "block_size = 512" in capsys.readouterr().out


def test_proposed_settings_are_listed() -> None:
    """--hours changes no other setting."""
    config = build_config(find_recipe("gpt2_124m"), {}, "cuda")
    best = propose(
        config,
        target_of_card(resolve_card_name("rtx4070").card, "asked for"),
        known_dataset_info("openwebtext"),
        3.0,
    ).best
    changed = {name for name, value in asdict(config).items() if value != getattr(best.config, name)}
    assert changed <= {*PROPOSED_SETTINGS}


def test_out_expands_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # bash leaves --out=~/day.toml as it is
    assert main(["plan", "--gpu=rtx4070", "--hours=1", "--out=~/day.toml"]) == 0
    assert (tmp_path / "day.toml").is_file()


def test_a_plan_for_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "shakespeare_char_cpu", "--gpu=cpu"]) == 0
    assert "ms of matmuls" in capsys.readouterr().out


def test_bad_flags(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--hours=1e300"], "longer than ten years"),
        (["--hours=1", "--out=/nowhere/at/all/x.toml"], "cannot be written"),
        (["--hours=1", "--out=foo.txt"], "must end in .toml"),
        (["--hours=1", "--init_from=gpt2"], "--hours proposes a model"),
        (["--hours=1", "--eval_only"], "--hours proposes a run that trains"),
        (["--gpu="], "--gpu is empty"),
        (["--gpu=8xH100"], "--gpu=H100 --gpus=8"),
        (["--gpu=h100", "--price=1e308"], "--price=1e+308 is too large"),
        (["--gpu=h100", "--nodes=2", "--network=1e300"], "--network=1e+300 is too large"),
        (["--gpu=h100", "--nodes=2", "--network=5e-324"], "it is in GB/s"),
        (["--gpu=h100", "--batch_size=1e300"], "--batch_size must be below 2^63"),
        (["--gpu=h100", "--n_layer=1e300"], "--n_layer must be below 2^63"),
    ]
    for words, part in cases:
        with subtests.test(repr(words)):
            gpu = [] if words[0].startswith("--gpu") else ["--gpu=rtx4090"]
            assert main(["plan", "gpt2_124m", *gpu, *words]) == 2
            assert part in capsys.readouterr().err


def test_the_table_of_cards_does_not_probe_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def probe(*arguments: object) -> None:
        raise AssertionError("this machine was probed")

    for name in ("local_cpu_target", "local_target"):
        monkeypatch.setattr(f"glassgpt.plan.target.{name}", probe)
    monkeypatch.setattr("glassgpt.estimate.cards.COMMON_CARDS", ("RTX 4090",))
    assert main(["plan", "--cards", "--json"]) == 0
    assert [row["card"] for row in json.loads(capsys.readouterr().out)] == ["RTX 4090"]
    assert main(["plan", "gpt2_124m", "--cards", "--n_layer=2", "--price=1"]) == 2
    errors = capsys.readouterr().err
    assert "--cards is a table by itself: leave out gpt2_124m, --n_layer, other options" in errors


def test_the_table_of_cards_shows_progress_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("glassgpt.estimate.cards.COMMON_CARDS", ("RTX 4090", "H200"))
    shown = Console(file=StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(
        "glassgpt.cli.plan_command.make_console",
        lambda stderr=False: shown if stderr else make_console(),
    )
    assert main(["plan", "--cards", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert "100%" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_absurdly_many_iterations_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "shakespeare_char", "--gpu=a100", "--max_iters=1e18"]) == 0
    assert "overfit" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["CPU", " cpu "])
def test_gpu_is_case_insensitive(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"--gpu={name}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"]["device_type"] == "cpu"


@pytest.mark.parametrize(
    "words", [["--cards"], ["gpt2_124m", "--gpu=rtx4070", "--hours=24"], ["--gpu=rtx4070"]]
)
def test_a_narrow_terminal_truncates_nothing(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # docs/settings-for-your-card.md has all cards; here those with the longest names and figures.
    some = ("RTX 2060 6GB", "B200", "Apple M2 Pro 19-core GPU")
    monkeypatch.setattr("glassgpt.estimate.cards.COMMON_CARDS", some)
    narrow = Console(width=30, highlight=False)
    monkeypatch.setattr("glassgpt.cli.plan_command.make_console", lambda stderr=False: narrow)
    assert plan(words) == 0
    output = capsys.readouterr().out
    assert "…" not in output
    assert all(len(line) <= 30 for line in output.splitlines() if set(line.strip()) <= set("█░"))


def test_small_figures_and_singulars(capsys: pytest.CaptureFixture[str]) -> None:
    """1 layer of 8 channels at 8 tokens: 6 x (65 x 8 + 12 x 64 + 3 x 8) + 12 x 8 x 8 = 8,640 FLOP."""
    shape = ["--n_layer=1", "--n_head=1", "--n_embd=8", "--block_size=8"]
    assert main(["plan", "shakespeare_char", "--gpu=h100", "--max_iters=1", *shape]) == 0
    output = capsys.readouterr().out
    assert "0.00864 MFLOP/token" in output
    assert "1 update, " in output


# --- measured ---

TINY = [
    "plan",
    "shakespeare_char_cpu",
    "--gpu=cpu",
    "--n_layer=1",
    "--n_embd=16",
    "--n_head=1",
    "--dtype=float32",
]


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """The configs that are probed; each runs 100 tokens/s."""
    found: list[TrainConfig] = []

    def probe(config: TrainConfig) -> ProbeResult:
        found.append(config)
        target = find_target("cpu")
        spec = make_run_spec(config, target, known_dataset_info("shakespeare_char"))
        facts = facts_record(target.facts("float32"), known_dataset_info("shakespeare_char"), Origin())
        return ProbeResult(
            "ran", update_s=(spec.batch.tokens / 100,) * 3, micro_steps=1, timed_s=3.0, took_s=9.0,
            eval_tokens_per_s=300.0, start_s=5.0, peak_bytes=321 * 2**20, work=work_key(spec.workload),
            facts=facts,
        )  # fmt: skip

    monkeypatch.setattr("glassgpt.tune.trial_runner.probe_plan", probe)
    return found


def test_a_probe_is_announced_and_used(probed: list[TrainConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--probe", "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["measured"]["tokens_per_s"][1] == pytest.approx(100)
    assert document["time"]["pace"]["mid"] == pytest.approx(100)
    assert document["time"]["start_s"] == 5.0
    assert document["memory"]["measured"] == 321 * 2**20
    assert document["probe"]["micro_batches"] == 3
    assert "probing" in printed.err
    assert [config.device for config in probed] == ["cpu"]
    assert main([*TINY, "--probe"]) == 0
    page = capsys.readouterr().out
    assert "321 MiB resident" in page
    assert "measured here: 3 micro-batches in 3.0 s" in page


def test_a_card_that_is_not_here_is_not_probed(
    probed: list[TrainConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "gpt2_124m", "--gpu=rtx4070", "--probe", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["probe"]["outcome"] == "not here"
    assert document["measured"] is None
    assert document["time"] is not None  # as estimated
    assert probed == []
    assert main(["plan", "gpt2_124m", "--gpu=rtx4070", "--probe", "--hours=2"]) == 2
    assert "--probe" in capsys.readouterr().err


def test_finished_runs_are_used_unless_history_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLASSGPT_CACHE_DIR", str(tmp_path))
    config = build_config(
        find_recipe("shakespeare_char_cpu"),
        {"n_layer": "1", "n_embd": "16", "n_head": "1", "dtype": "float32"},
        "cpu",
    )
    target = find_target("cpu")
    spec = make_run_spec(config, target, find_dataset_info(config))
    row = HistoryRow(
        machine=target.name, work=work_key(spec.workload), flops_per_token=spec.flops_per_token, ranks=1,
        threads=2, tokens_per_s=777.0, seconds=60.0, updates=100, peak_flops_per_s=1e11,
        peak_bytes=345 * 2**20, start_s=4.5, busy_cores=0.0, torch="2", glassgpt="0", day="2026-11-18",
    )  # fmt: skip
    assert append_row(row)

    def measured(*more: str) -> dict[str, Any] | None:
        assert main([*TINY, "--json", *more]) == 0
        found: dict[str, Any] | None = json.loads(capsys.readouterr().out)["measured"]
        return found

    used = measured()
    assert used is not None
    assert (used["source"], used["tokens_per_s"][1], used["start_s"]) == ("history", 777.0, 4.5)
    assert measured("--threads=2") == used
    assert measured("--threads=1") is None
    assert measured("--history=off") is None
    assert main(["plan", "gpt2_124m", "--gpu=rtx4070", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] is None
