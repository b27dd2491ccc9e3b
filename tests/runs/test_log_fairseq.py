"""fairseq: JSON and simple lines, validation sets, saves, and what base its loss has."""

from __future__ import annotations

import json
import math

import pytest
from log_checks import parse_log, parse_logs

from glassgpt.compare.compared_run import make_compared_runs
from glassgpt.compare.differences import run_perplexity
from glassgpt.explain.explanation import explain
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import RunLog


def _stamp(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"[2024-07-03 {10 + int(minutes // 60):02d}:{int(minutes % 60):02d}:{rest:06.3f}]".replace(
        ".", ","
    )


def json_log(updates: int = 2000, per_epoch: int = 500) -> str:
    """A Hydra run: a line every 100 updates of 2 s, two evaluations of 30 s and a save of 10 s per epoch."""
    lines, at_s = [], 0.0

    def add(tag: str, text: str) -> None:
        lines.append(f"{_stamp(at_s)}[{tag}][INFO] - {text}")

    add("fairseq_cli.train", f"{{'_name': None, 'common': {{'_name': None}}, 'max_update': {updates}}}")
    add("fairseq_cli.train", "num. shared model params: 94,371,712 (num. trained: 94,371,712)")
    for at in range(100, updates + 1, 100):
        at_s += 200
        epoch = (at - 1) // per_epoch + 1
        if at % 400 == 0:
            add(
                "fairseq.trainer",
                "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 4.0",
            )
        add(
            "train_inner",
            f'{{"epoch": {epoch}, "update": {at / per_epoch:.3f}, "loss": "{400 - at / 10:.3f}", '
            f'"nll_loss": "4.1", "ups": "0.5", "num_updates": "{at}", "lr": "1e-05", "gnorm": "2.5", '
            f'"train_wall": "195", "wall": "{at_s:.0f}"}}',
        )
        if at % per_epoch == 0:
            for subset in ("dev-other", "dev-clean"):
                add("fairseq_cli.train", f'begin validation on "{subset}" subset')
                at_s += 30
                values = {
                    "loss": f"{50 - at / 100:.3f}",
                    "nll_loss": "0.5",
                    "wer": "20.4",
                    "num_updates": f"{at}",
                }
                named = json.dumps({f"{subset}_{name}": value for name, value in values.items()})
                add(subset, f'{{"epoch": {epoch}, {named[1:]}')
            at_s += 10
            where = f"(epoch {epoch} @ {at} updates, score 20.4) (writing took 10.000000216 seconds)"
            add("fairseq.checkpoint_utils", f"Saved checkpoint exp/checkpoint_best.pt {where}")
            add(
                "train",
                f'{{"epoch": {epoch}, "train_loss": "300", "train_num_updates": "{at}", "train_wall": "9"}}',
            )
    add("fairseq_cli.train", f"done training in {at_s:.1f} seconds")
    return "\n".join(lines) + "\n"


def test_json_lines() -> None:
    run_log = parse_log(json_log())
    assert run_log.trainer.id == "fairseq"
    assert run_log.steps.iteration.tolist() == list(range(100, 2001, 100))
    assert run_log.steps.loss[[0, -1]].tolist() == [390, 200]
    assert run_log.steps.grad_norm[0] == 2.5
    assert run_log.steps.ms[1:] == pytest.approx([2000] * 19)
    assert (run_log.setup.planned_iterations, run_log.setup.parameters) == (2000, 94_371_712)
    # Of two validation sets the first; its time is that between two lines' stamps.
    evals = [(one.iteration, one.val_loss, one.ms) for one in run_log.evals]
    assert evals == [(at, 50 - at / 100, 30_000) for at in (500, 1000, 1500, 2000)]
    saves = [(one.iteration, round(one.blocking_ms or 0)) for one in run_log.checkpoints]
    assert saves == [(at, 10_000) for at in (500, 1000, 1500, 2000)]
    analysis = Analysis(run_log)
    assert (analysis.exit_status, run_log.setup.wall_s) == ("finished", 4280.0)
    assert analysis.facts.best_val_step == 2000


def test_skipped_updates_are_a_share_of_the_updates_not_of_the_lines() -> None:
    finding = next(one for one in explain(parse_log(json_log())).findings if one.id == "skipped-steps")
    assert finding.values["skipped_updates"] == 5
    assert finding.values["skipped_share"] == pytest.approx(5 / 2000)


def test_a_loss_that_holds_more_than_its_perplexity_is_no_cross_entropy() -> None:
    line = (
        "2023-06-28 18:40:31 | INFO | train_inner | epoch 001: {at} / 900 loss={loss}, gate=6.4, ppl={ppl}, "
        "num_updates={at}, lr=1e-05, gnorm=2.5, wall={at}\n"
    )
    for ppl, base in (("22.63", 2.0), ("1", None)):
        run_log = parse_log("".join(line.format(at=at, loss=4.5, ppl=ppl) for at in range(50, 501, 50)))
        assert run_log.trainer.loss_base == base
        assert bool(run_log.own_metrics) == (base is None)


def test_parameters_of_experts_and_of_the_rest() -> None:
    line = "2024-07-03 10:00:00 | INFO | fairseq_cli.train | num. {kind} model params: {count:,} (trained: 1)"
    both = [line.format(kind=kind, count=count) for kind, count in
            (("non-expert", 140_921_856), ("expert", 28_371_456))]  # fmt: skip
    first, _, *rest = json_log().splitlines(keepends=True)
    text = "".join([first, *(f"{one}\n" for one in both), *rest])
    assert parse_log(text).setup.parameters == 140_921_856 + 28_371_456


def test_each_start_is_a_run() -> None:
    first, second = parse_logs(json_log() + json_log(updates=1000).rpartition("[fairseq_cli.train]")[0])
    assert (first.last_line, second.first_line) == (len(json_log().splitlines()), first.last_line + 1)
    assert [len(one.evals) for one in (first, second)] == [4, 2]
    assert [one.event_counts.get("scaler-overflow") for one in (first, second)] == [5, 2]


def test_a_resume_continues_the_run() -> None:
    begin, *rest = json_log().splitlines()
    loaded = "2024-07-03 12:00:00 | INFO | fairseq.trainer | Loaded checkpoint a.pt (epoch 4 @ 1500 updates)"
    cut = [line for line in rest if '"num_updates": "2000"' not in line and "done training" not in line]
    later = [line for line in rest if '"num_updates": "1' not in line and '"num_updates": "2000"' in line]
    run_log = parse_log("\n".join([begin, *cut[:-6], begin, loaded, *later]) + "\n")
    assert [one.resumed for one in run_log.segments] == [False, True]


def _simple(inner: bool, criterion: str) -> str:
    values = {
        "smoothed": ("loss{0}9.80{n}{1}nll_loss{0}8.89", "loss 9.39{n} | nll_loss 8.33 | ppl 321.26"),
        "plain": ("loss{0}9.80{n}{1}ppl{0}893.1", "loss 9.39{n} | ppl 669.9"),
    }[criterion]
    lines = []
    for n in range(1, 4):
        at, stamp = 350 * n, f"2020-03-23 11:{10 + n}:00 | INFO | "
        step = values[0].format("=", ", ", n=n)
        if inner:
            lines.append(
                f"{stamp}train_inner | epoch 00{n}:    300 / 350 {step}, num_updates={at - 50}, lr=0.0001"
            )
        lines.append(f"| epoch 00{n} | valid on 'valid' subset  1000 / 1311 loss=1.60")  # a bar
        lines.append(
            f"{stamp}valid | epoch 00{n} | valid on 'valid' subset | {values[1].format(n=n)} | "
            f"num_updates {at}"
        )
        mean = values[0].format(" ", " | ", n=n)
        lines.append(f"{stamp}train | epoch 00{n} | {mean} | wps 31194.9 | num_updates {at} | lr 0.0001")
    return "\n".join(lines) + "\n"


def test_the_mean_of_an_epoch_is_a_step_only_where_there_are_no_others() -> None:
    run_log = parse_log(_simple(inner=True, criterion="smoothed"))
    assert run_log.trainer.id == "fairseq"
    assert run_log.steps.iteration.tolist() == [300, 650, 1000]
    by_epoch = parse_log(_simple(inner=False, criterion="smoothed"))
    assert by_epoch.steps.iteration.tolist() == [350, 700, 1050]
    assert by_epoch.steps.loss.tolist() == [9.801, 9.802, 9.803]
    for one in (run_log, by_epoch):
        evals = [(evaluation.iteration, evaluation.val_loss) for evaluation in one.evals]
        assert evals == [(350, 9.391), (700, 9.392), (1050, 9.393)]


@pytest.mark.parametrize("criterion", ["plain", "smoothed"])
def test_a_perplexity_is_a_power_of_two_and_only_of_a_cross_entropy(criterion: str) -> None:
    run_log: RunLog = parse_log(_simple(inner=True, criterion=criterion))
    assert run_log.trainer.loss_base == (2.0 if criterion == "plain" else None)
    assert parse_log(json_log()).trainer.loss_base is None
    perplexity = run_perplexity(make_compared_runs([run_log], None)[0][0], 9.388)
    assert perplexity == (pytest.approx(2**9.388) if criterion == "plain" else None)
    assert math.isclose(2**9.388, 670, rel_tol=1e-3)


def test_the_best_loss_of_an_excerpt_was_made_before_it() -> None:
    train = "| epoch 0{} | loss 6.343 | nll_loss 4.984 | ppl 31.65 | wps 164346 | num_updates {} | wall 230\n"
    valid = "| epoch 0{} | valid on 'valid' subset | loss {} | ppl 142.39 | num_updates {} | best {}\n"
    text = train.format(7, 700) + valid.format(7, 8.3, 700, 4.46)
    text += train.format(8, 800) + valid.format(8, 8.4, 800, 4.46)
    run_log = parse_log(text)
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(None, 4.46), (700, 8.3), (800, 8.4)]
    assert run_log.steps.tokens_per_s.tolist() == [164_346] * 2
    at_start = train.format(1, 100) + valid.format(1, 8.3, 100, 8.3) + train.format(2, 200)
    assert len(parse_log(at_start + valid.format(2, 8.4, 200, 8.3)).evals) == 2


def test_an_overflow_that_the_text_before_a_quotation_speaks_of_is_none() -> None:
    scale = "| WARNING: overflow detected, setting loss scale to: 0.{}\n"
    line = "| epoch 027 | loss 6.343 | ppl 81.2 | num_updates 10198 | wall 23080\n"
    text = f"Training fails after {scale.format(5)}```\n{line}{scale.format(25)}{scale.format(125)}```\n"
    assert parse_log(text).event_counts == {"scaler-overflow": 2}


def test_the_mean_of_an_epoch_at_the_begin_of_an_excerpt_is_no_step() -> None:
    train = "| epoch 002 | loss 9.803 | nll_loss 8.89 | wps 31194.9 | num_updates 695 | wall 9786\n"
    inner = (
        "| epoch 003: {at} / 356 loss={loss}, nll_loss=8.44, wpb=40000, wps=20000, "
        "num_updates={at}, wall={at}\n"
    )
    run_log = parse_log(train + "".join(inner.format(at=at, loss=9.44) for at in range(700, 1100, 100)))
    assert run_log.steps.iteration.tolist() == [700, 800, 900, 1000]
    assert run_log.steps.loss.tolist() == [9.44] * 4
    alone = parse_log(inner.format(at=700, loss=9.44))
    assert alone.steps.ms.tolist() == [2000.0]  # 40,000 words at 20,000 a second
