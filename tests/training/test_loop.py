"""The loop: what happens when, why it ends, and that looking changes nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import (
    MakeConfig,
    assert_same_tensors,
    capture_learners,
    choices,
    files_under,
    inject_non_finite,
    last_tensors,
    records,
    resume,
    run_evals,
    run_losses,
    weights,
)

from glassgpt.config import first_checkpoint_iter
from glassgpt.data.dataset import open_dataset
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.record.journal import FILE_NAME
from glassgpt.record.run_dir import CHECKPOINTS_DIR
from glassgpt.training import loop
from glassgpt.training.checkpoint.checkpoints import (
    committed_paths,
    list_checkpoints,
    load_latest_intact,
    read_checkpoint,
)
from glassgpt.training.evaluate import EvalResult
from glassgpt.training.session import train


def kept_iters(run_dir: str) -> list[int]:
    return [read_checkpoint(path).iter for path in committed_paths(Path(run_dir))]


def saved(run_dir: str) -> list[int]:
    return [record["iter"] for record in records(run_dir, "checkpoint")]


# --- iterations ---


@pytest.mark.parametrize(
    ("max_iters", "evaluations"), [(25, [0, 10, 20, 25]), (20, [0, 10, 20]), (3, [0, 3]), (1, [0, 1])]
)
def test_max_iters_is_the_number_of_updates(tiny: MakeConfig, max_iters: int, evaluations: list[int]) -> None:
    config = tiny(max_iters=max_iters)
    run = train(config)
    assert (run.reason, run.exit_code, run.iter) == ("finished", 0, max_iters)
    assert [record["iter"] for record in records(run.out_dir, "step")] == list(range(1, max_iters + 1))
    evals = records(run.out_dir, "eval")
    assert [record["iter"] for record in evals if record["split"] == "train"] == evaluations
    assert [record["iter"] for record in evals if record["split"] == "val"] == evaluations
    end = records(run.out_dir, "end")[-1]
    assert (end["iter"], end["reason"]) == (max_iters, "finished")
    assert load_latest_intact(run.out_dir)[0].iter == max_iters


def test_a_log_line_every_interval_and_one_for_the_rest(tiny: MakeConfig) -> None:
    every, config = tiny("every", max_iters=11), tiny("some", max_iters=11, log_interval=4)
    train(every)
    train(config)
    losses = run_losses(every.out_dir)
    steps = records(config.out_dir, "step")
    assert [(record["iter"], record["updates"]) for record in steps] == [(4, 4), (8, 4), (11, 3)]
    for record in steps:
        last, count = record["iter"], record["updates"]
        assert record["loss"] == losses[last]
        mean = sum(losses[last - i] for i in range(count)) / count
        assert record["loss_mean"] == pytest.approx(mean, rel=1e-12)
        assert record["tokens"] == last * 4 * 8


def test_looking_more_or_less_often_changes_nothing(tiny: MakeConfig) -> None:
    settings = {"max_iters": 12, "dropout": 0.2, "gradient_accumulation_steps": 2}
    configs = [
        tiny("a", eval_interval=100, log_interval=1, **settings),
        tiny("b", eval_interval=1, log_interval=1, checkpoint_interval=1, **settings),
        tiny("c", eval_interval=5, log_interval=3, sample_tokens=5, eval_tokens=64, **settings),
    ]
    for config in configs:
        train(config)
    a, b, c = (config.out_dir for config in configs)
    assert run_losses(a) == run_losses(b)
    assert run_losses(c).items() <= run_losses(a).items()
    assert run_evals(a).items() <= run_evals(b).items()
    tensors = [{name: last_tensors(out)[name] for name in ("model", "optimizer")} for out in (a, b, c)]
    assert_same_tensors(tensors[0], tensors[1])
    assert_same_tensors(tensors[0], tensors[2])


def test_it_learns(tiny: MakeConfig) -> None:
    for arch in ("gpt2", "modern"):
        config = tiny(arch, arch=arch, max_iters=150, eval_interval=50)
        run = train(config)
        evals = run_evals(run.out_dir)
        assert evals[0, "val"] == pytest.approx(math.log(20), abs=0.4)  # uniform over the characters
        assert run.best_val_loss < 1.7
        assert run.best_val_loss == min(loss for (_, split), loss in evals.items() if split == "val")


# --- evaluating ---


def test_eval_only_evaluates_and_writes_no_checkpoint(tiny: MakeConfig) -> None:
    config = tiny(eval_only=True)
    run = train(config)
    assert (run.reason, run.exit_code, run.iter) == ("evaluated", 0, 0)
    assert set(run_evals(config.out_dir)) == {(0, "train"), (0, "val")}
    assert records(config.out_dir, "step") == []
    assert committed_paths(Path(config.out_dir)) == []


def test_eval_only_of_a_run_evaluates_its_last_checkpoint(tiny: MakeConfig) -> None:
    config = tiny(max_iters=7)
    train(config)
    before = run_evals(config.out_dir)
    checkpoints = {path: path.read_bytes() for path in files_under(Path(config.out_dir) / CHECKPOINTS_DIR)}
    run = resume(config, eval_only=True)
    assert (run.reason, run.iter) == ("evaluated", 7)
    again = [record for record in records(config.out_dir, "eval") if record["process"] == 1]
    assert {(record["iter"], record["split"]): record["loss"] for record in again} == {
        key: loss for key, loss in before.items() if key[0] == 7
    }
    assert {
        path: path.read_bytes() for path in files_under(Path(config.out_dir) / CHECKPOINTS_DIR)
    } == checkpoints


def test_sampled_evaluations_are_closed_by_the_whole_split(tiny: MakeConfig, tiny_data: Path) -> None:
    whole = len(open_dataset(tiny_data).tokens("val")) - 1
    config = tiny(max_iters=12, eval_tokens=64)
    train(config)
    evals = [record for record in records(config.out_dir, "eval") if record["split"] == "val"]
    assert [(r["iter"], r["tokens"], r["whole_split"]) for r in evals] == [
        (0, 64, False),
        (10, 64, False),
        (12, 64, False),
        (12, whole, True),
    ]
    exact = tiny("exact", max_iters=12)
    train(exact)
    last = [record for record in records(exact.out_dir, "eval") if record["split"] == "val"][-1]
    assert evals[-1]["loss"] == last["loss"]
    assert last["whole_split"]
    assert len(records(exact.out_dir, "eval")) == 6  # nothing is evaluated twice
    assert "evenly spaced" in choices(config.out_dir)["eval_tokens"][1]
    assert choices(exact.out_dir)["eval_tokens"] == (whole, "the whole validation split, every time")


def test_eval_iters_are_nanogpts(tiny: MakeConfig) -> None:
    config = tiny(max_iters=1, eval_iters=3)
    train(config)
    assert records(config.out_dir, "eval")[0]["tokens"] == 3 * 4 * 8


# --- scripted evaluations ---

Script = Callable[[Sequence[Sequence[float]]], None]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Script:
    """The next run's evaluations are scripted: one list of window losses each."""

    def install(script: Sequence[Sequence[float]]) -> None:
        answers = iter([losses for losses in script for _ in ("train", "val")])

        def evaluate(*_: Any, **__: Any) -> EvalResult:
            losses = np.array(next(answers))
            return EvalResult(float(losses.mean()), 8 * len(losses), losses, np.full(len(losses), 8))

        monkeypatch.setattr(loop, "evaluate", evaluate)

    return install


def around(loss: float) -> list[float]:
    """Four windows of different difficulty."""
    return [loss - 0.5, loss - 0.1, loss + 0.2, loss + 0.4]


def test_it_stops_when_nothing_gets_better(tiny: MakeConfig, scripted: Script) -> None:
    scripted([around(loss) for loss in (3.0, 2.0, 2.5, 2.4, 2.3, 2.2, 2.1)])
    run = train(tiny(max_iters=60, patience=3))
    assert (run.reason, run.exit_code, run.iter) == ("stopped early", 0, 40)
    assert run.best_val_loss == pytest.approx(2.0)
    assert run.best_iter == 10
    assert kept_iters(str(run.out_dir)) == [10, 40]


def test_a_gain_starts_the_count_anew(tiny: MakeConfig, scripted: Script) -> None:
    scripted([around(loss) for loss in (3.0, 2.0, 2.5, 2.4, 1.9, 2.1, 2.1, 2.1)])
    run = train(tiny(max_iters=100, patience=3))
    assert (run.reason, run.iter, run.best_iter) == ("stopped early", 70, 40)


def test_gains_within_noise_do_not_count(tiny: MakeConfig, scripted: Script) -> None:
    """Each is a little better on average than the best before, but only because of one lucky window."""
    lucky = [[2.0 + 0.9, 2.0, 2.0, 2.0 - 0.9 - 0.01 * k] for k in range(1, 9)]
    scripted([[2.0, 2.0, 2.0, 2.0], *lucky])
    run = train(tiny(max_iters=80, patience=4))
    assert (run.reason, run.iter) == ("stopped early", 40)
    assert run.best_iter == 40  # the best is the best all the same
    assert list_checkpoints(run.out_dir).best == read_checkpoint(committed_paths(run.out_dir)[-1])


def test_small_steps_add_up_to_a_gain(tiny: MakeConfig, scripted: Script) -> None:
    """The reference stays where the last real gain was: slow progress is progress."""
    noise = [0.0, 0.03, -0.03, 0.0]
    script = [[2.0 - 0.005 * k + (n if k else 0.0) for n in noise] for k in range(9)]
    scripted(script)
    run = train(tiny(max_iters=80, patience=4))
    assert run.reason == "finished"


def test_without_patience_it_never_stops_early(tiny: MakeConfig, scripted: Script) -> None:
    scripted([around(2.0 + k) for k in range(7)])
    assert train(tiny(max_iters=60)).reason == "finished"


def test_patience_survives_a_resume(tiny: MakeConfig, scripted: Script) -> None:
    losses = [around(loss) for loss in (3.0, 2.0, 2.5, 2.4, 2.3, 2.2, 2.1)]
    config = tiny(max_iters=60, patience=3)
    scripted(losses)
    train(tiny(max_iters=30, patience=3))
    scripted(losses[4:])
    run = resume(config)
    assert (run.reason, run.iter, run.best_iter) == ("stopped early", 40, 10)


def test_a_real_run_that_overfits_stops(tiny: MakeConfig) -> None:
    config = tiny(n_embd=48, learning_rate=2e-2, max_iters=2000, eval_interval=20, patience=2, decay_lr=False)
    run = train(config)
    assert run.reason == "stopped early"
    assert run.iter < 1000
    val = {at: loss for (at, split), loss in run_evals(config.out_dir).items() if split == "val"}
    assert run.best_val_loss == min(val.values())
    top = list_checkpoints(run.out_dir).best
    assert top is not None
    assert top.iter == run.best_iter == min(val, key=lambda at: val[at])


# --- saving ---


def test_a_checkpoint_at_every_evaluation_by_default(tiny: MakeConfig, scripted: Script) -> None:
    scripted([around(loss) for loss in (3.0, 2.0, 2.5, 2.4, 2.3)])
    config = tiny(max_iters=35)
    train(config)
    assert saved(config.out_dir) == [10, 20, 30, 35]
    assert kept_iters(config.out_dir) == [10, 35]


def test_checkpoints_have_an_interval_of_their_own(tiny: MakeConfig, scripted: Script) -> None:
    scripted([around(loss) for loss in (1.0, 2.0, 2.5)])  # nothing after the start is a best
    config = tiny(max_iters=17, eval_interval=10, checkpoint_interval=4, keep_checkpoints=2)
    train(config)
    assert saved(config.out_dir) == [4, 8, 12, 16, 17]
    assert kept_iters(config.out_dir) == [16, 17]


def test_the_best_is_saved_whatever_the_interval(tiny: MakeConfig, scripted: Script) -> None:
    scripted([around(loss) for loss in (3.0, 1.0, 2.5)])
    config = tiny(max_iters=17, eval_interval=10, checkpoint_interval=7)
    train(config)
    assert saved(config.out_dir) == [7, 10, 14, 17]
    assert kept_iters(config.out_dir) == [10, 17]
    assert [record["best"] for record in records(config.out_dir, "checkpoint")] == [False, True, False, False]


@pytest.mark.parametrize("interval", [None, 4, 30])
def test_the_first_checkpoint_comes_when_it_is_said_to(
    tiny: MakeConfig, scripted: Script, interval: int | None
) -> None:
    scripted([around(loss) for loss in (3.0, 2.0, 1.0)])
    config = tiny(max_iters=20, eval_interval=10, checkpoint_interval=interval)
    train(config)
    assert saved(config.out_dir)[0] == first_checkpoint_iter(config)


def test_only_the_best_and_the_last_without_always_save(tiny: MakeConfig, scripted: Script) -> None:
    scripted([around(loss) for loss in (3.0, 2.5, 2.7, 2.0, 2.2, 2.1)])
    config = tiny(max_iters=50, always_save_checkpoint=False)
    train(config)
    assert saved(config.out_dir) == [10, 30, 50]
    assert kept_iters(config.out_dir) == [30, 50]


# --- not finite ---


@pytest.mark.parametrize("log_interval", [1, 5, 100])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_that_is_not_finite_ends_the_run_before_harm_is_done(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, what: str, log_interval: int
) -> None:
    config = tiny(max_iters=40, log_interval=log_interval, checkpoint_interval=4, keep_checkpoints=2)
    learners = capture_learners(monkeypatch)
    before = inject_non_finite(monkeypatch, 17, what)
    run = train(config)
    assert (run.reason, run.exit_code, run.iter) == ("not finite", 3, 17)
    end = records(config.out_dir, "end")[-1]
    assert (end["iter"], end["exit_code"], end["bad_iter"]) == (17, 3, 18)
    assert end["last_checkpoint"] == str(Path(config.out_dir) / CHECKPOINTS_DIR / "00000016")
    norms = end["recent_grad_norms"]
    assert 1 < len(norms) <= 20
    assert sum(not math.isfinite(norm) for norm in norms) == 1
    assert_same_tensors({"model": weights(learners[0])}, {"model": before})

    assert kept_iters(config.out_dir)[-1] == 16
    assert max(saved(config.out_dir)) == 16
    assert not any(tensor.isnan().any() for tensor in last_tensors(config.out_dir)["model"].values())

    lines = (Path(config.out_dir) / FILE_NAME).read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if line["kind"] == "step"]  # as text: no revival
    assert "NaN" not in "".join(lines)
    if what == "loss":
        assert steps[-1]["loss_mean"] == "nan"
    # The bad update is the last that counts, however many were tried after it: 4 sequences of 8 tokens each.
    assert (steps[-1]["iter"], steps[-1]["tokens"]) == (18, 18 * 4 * 8)
    if log_interval == 1:
        assert steps[-1]["grad_norm"] in ("nan", "inf")
        assert steps[-1]["loss"] == "nan" or what == "gradient"
    assert all(isinstance(step["loss"], float) for step in steps[:-1])


def test_after_that_it_can_go_on_from_before(tiny: MakeConfig) -> None:
    config, plain = tiny(max_iters=20), tiny("plain", max_iters=20)
    train(plain)
    with pytest.MonkeyPatch.context() as patch:
        inject_non_finite(patch, 17, "loss")
        assert train(config).exit_code == 3
    assert resume(config).exit_code == 0
    assert run_losses(config.out_dir) == run_losses(plain.out_dir)
    assert_same_tensors(last_tensors(config.out_dir), last_tensors(plain.out_dir))


def test_bad_at_once_there_is_no_checkpoint_to_name(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject_non_finite(monkeypatch, 0, "loss")
    run = train(tiny())
    assert (run.exit_code, run.iter) == (3, 0)
    assert records(run.out_dir, "end")[-1]["last_checkpoint"] is None


@pytest.mark.parametrize("max_iters", [18, 20])
def test_bad_at_the_very_end_is_noticed_too(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, max_iters: int
) -> None:
    inject_non_finite(monkeypatch, 17, "loss")
    run = train(tiny(max_iters=max_iters, log_interval=100))
    assert (run.reason, run.exit_code, run.iter) == ("not finite", 3, 17)
    assert kept_iters(str(run.out_dir)) == [10]


# --- the sample at the end ---


def test_a_sample_closes_the_run(tiny: MakeConfig) -> None:
    config = tiny(max_iters=3, sample_tokens=30)
    train(config)
    (sample,) = records(config.out_dir, "sample")
    assert len(sample["text"]) == 30
    train(tiny("again", max_iters=3, sample_tokens=30))
    assert records(tiny("again").out_dir, "sample")[0]["text"] == sample["text"]


def test_a_text_without_line_breaks_can_be_sampled_too(tiny: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "flat.txt").write_text("glass houses see the light " * 60)
    options = PrepareOptions(str(tmp_path / "flat.txt"), out_dir=str(tmp_path / "flat"))
    prepare(options, print_line=lambda line: None, progress=False)
    config = tiny(data_dir=str(tmp_path / "flat"), max_iters=3, sample_tokens=30)
    assert train(config).exit_code == 0
    assert len(records(config.out_dir, "sample")[0]["text"]) == 30


def test_biases_that_an_architecture_does_not_have_are_not_silently_left_out(tiny: MakeConfig) -> None:
    config = tiny(arch="modern", bias=True, max_iters=1)
    train(config)
    assert choices(config.out_dir)["bias"] == (False, "modern has none; --arch=gpt2 can have them")
    without = tiny("without", arch="modern", max_iters=1)
    train(without)
    assert "bias" not in choices(without.out_dir)
