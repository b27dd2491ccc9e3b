"""Note 003: "why is the loss on the CPU worse". Not because of the CPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
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


def claim(comparison: Comparison, id: str) -> str:
    (finding,) = [one for one in comparison.verdict if one.id == id]
    return " ".join((finding.sentence, *finding.details))


def test_hardware_is_not_the_cause(comparison: Comparison) -> None:
    text = claim(comparison, "hardware-not-cause")
    assert "Hardware is not the cause" in text
    for setting in ("n_layer (4 / 6)", "n_embd (128 / 384)", "block_size (64 / 256)", "dropout (0 / 0.2)"):
        assert setting in text


def test_the_gpu_run_ended_past_its_best(comparison: Comparison) -> None:
    text = claim(comparison, "past-best")
    assert text.startswith("B's last loss, 1.7000, is worse than its best: 1.4600 at iteration 1,750.")
    assert "overfits" in text
    assert "from 1.1000 to 0.6200" in text


def test_what_makes_the_gpu_run_better(comparison: Comparison) -> None:
    text = claim(comparison, "better-because")
    assert "B has 10.65M parameters, A 0.80M (13.4x)" in text
    assert "256 tokens" in text
    assert "16,384 tokens per iteration, A 768" in text
    assert "More iterations are not the cause" in claim(comparison, "iterations-not-cause")


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
    at_tokens = comparison.aligned["tokens"].points[-1]
    assert at_tokens.at == 1_536_000
    assert at_tokens.losses[1] is not None
    assert at_tokens.losses[1].low == 2.08  # the GPU run was between its first two evaluations


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
