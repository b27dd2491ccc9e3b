"""Note 003: "why is the loss on the CPU worse". Not because of the CPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compared_runs import find_claim
from note_003 import cpu_log, gpu_log

from glassgpt.compare import Comparison, compare
from glassgpt.runs.reading import read_run_log


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder: Path = tmp_path_factory.mktemp("note_003")
    runs = []
    for name, text in (("cpu.log", cpu_log()), ("gpu.log", gpu_log())):
        (folder / name).write_text(text)
        run_log = read_run_log(str(folder / name))
        runs.append(run_log)
    return compare(runs)


def test_hardware_is_not_the_cause(comparison: Comparison) -> None:
    settings = str(find_claim(comparison, "hardware-not-cause").values["settings"]).split(", ")
    expected = {"n_layer (4 / 6)", "n_embd (128 / 384)", "block_size (64 / 256)", "dropout (0 / 0.2)"}
    assert expected <= set(settings)


def test_the_gpu_run_ended_past_its_best(comparison: Comparison) -> None:
    past_best = find_claim(comparison, "past-best")
    assert [message.key for message in past_best.detail_messages] == ["compare.past-best.reason.overfits"]
    values = past_best.values
    assert (values["run"], values["last"], values["best"], values["at"]) == ("B", 1.7, 1.46, 1750)
    assert (values["then"], values["now"]) == (1.1, 0.62)


def test_what_makes_the_gpu_run_better(comparison: Comparison) -> None:
    because = find_claim(comparison, "better-because")
    causes = {message.key.rpartition(".")[2]: message.values for message in because.detail_messages}
    assert because.labels == ("B", "A")
    assert (causes["model_size"]["better_size"], causes["model_size"]["worse_size"]) == ("10.65M", "0.80M")
    assert causes["model_size"]["factor"] == pytest.approx(13.4, abs=0.05)
    assert (causes["context"]["better_size"], causes["context"]["worse_size"]) == (256, 64)
    assert (causes["batch"]["better_tokens"], causes["batch"]["worse_tokens"]) == (16_384, 768)
    assert find_claim(comparison, "iterations-not-cause").labels == ("B", "A")


def test_what_each_run_did(comparison: Comparison) -> None:
    derived = [side.analysis for side in comparison.runs]
    assert [one.tokens_seen for one in derived] == [1_536_000, 81_920_000]
    assert [one.facts.last_iteration for one in derived] == [2000, 5000]
    cpu, gpu = (side.best for side in comparison.runs)
    assert cpu == (1.89, 2000)
    assert gpu == (1.46, 1750)


def test_losses_at_equal_points(comparison: Comparison) -> None:
    at_iterations = comparison.aligned["iterations"].points[-1]
    assert at_iterations.at == 2000
    cpu, gpu = at_iterations.losses
    assert cpu is not None
    assert gpu is not None
    assert (cpu.loss, gpu.loss) == (1.89, 1.47)
    # The GPU run was between its first two evaluations then: only its training loss was measured.
    at_tokens = comparison.aligned["tokens"]
    assert at_tokens.kind == "training"
    assert at_tokens.points[-1].at <= 1_536_000
    assert at_tokens.points[-1].losses[1] is not None
    assert at_tokens.points[-1].losses[1].loss in comparison.runs[1].log.steps.loss.tolist()


def test_the_noise_is_that_of_twenty_batches(comparison: Comparison) -> None:
    noise = comparison.runs[0].noise
    assert noise is not None
    assert noise.eval_tokens == 20 * 12 * 64
    assert 0.01 < noise.std < 0.02


def test_the_conclusions_come_in_the_order_of_the_docs(comparison: Comparison) -> None:
    page = (Path(__file__).parents[2] / "docs/compare.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([\w-]+)` \|", page.partition("\n## The verdict\n")[2], re.M)
    places = [documented.index(one.id) for one in comparison.verdict]
    assert places == sorted(places)
