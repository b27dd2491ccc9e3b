"""How often the rules about learning are right: on many runs of random length, noise and evaluation interval,
healthy ones and ones with a fault."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from log_checks import parse_log
from run_logs import make_run_log, make_steps

from glassgpt.config import ConfigValue
from glassgpt.explain.explanation import explain
from glassgpt.explain.registry import FAILURE_RULES, LEARNING_RULES
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import Floats, RunLog

RUNS = 25  # of each kind
LOG_INTERVAL = 10
Curves = tuple[Floats, Floats]  # training and validation loss without noise
Change = Callable[[Floats, Floats, float, np.random.Generator], Curves]


def random_run(change: Change, seed: int, **settings: ConfigValue) -> RunLog:
    """A loss that falls by a power law; `change` gets the time from 0 to 1, that loss, and its floor."""
    rng = np.random.default_rng(seed)
    updates = int(rng.choice([1000, 2000, 5000]))
    interval = int(updates / rng.choice([4, 8, 20, 40])) // LOG_INTERVAL * LOG_INTERVAL
    at = np.arange(0, updates + 1, LOG_INTERVAL)
    first, floor = float(rng.choice([4.2, 10.9])), float(rng.uniform(1.3, 3.2))
    speed, exponent = updates * rng.uniform(0.005, 0.03), rng.uniform(0.5, 0.9)
    train, val = change(at / updates, floor + (first - floor) / (1 + at / speed) ** exponent, floor, rng)
    batch_std, eval_iters = float(rng.choice([0.02, 0.06, 0.15])), int(rng.choice([20, 200]))
    eval_std, evaluated = batch_std / np.sqrt(eval_iters), at[:: interval // LOG_INTERVAL]
    losses = [
        np.interp(evaluated, at, curve) + rng.normal(0, eval_std, len(evaluated)) for curve in (train, val)
    ]
    return make_run_log(
        make_steps(at.tolist(), 20.0, (train + rng.normal(0, batch_std, len(at))).tolist()),
        list(zip(evaluated.tolist(), losses[0].tolist(), losses[1].tolist(), strict=True)),
        evaluated[1:].tolist(),
        {"max_iters": updates, "eval_iters": eval_iters, "dataset": "own", **settings},
    )


def count_findings(change: Change, **settings: ConfigValue) -> Counter[str]:
    """By severity and by id."""
    counts: Counter[str] = Counter()
    for seed in range(RUNS):
        analysis = Analysis(random_run(change, seed, **settings))
        for rule in (*FAILURE_RULES, *LEARNING_RULES):
            if (finding := rule(analysis)) is not None:
                counts.update((finding.severity, finding.id))
    return counts


def healthy(time: Floats, loss: Floats, floor: float, rng: np.random.Generator) -> Curves:
    return loss, loss * (1 + 0.03 * time)


def flat(time: Floats, loss: Floats, floor: float, rng: np.random.Generator) -> Curves:
    curve = floor + 8 * np.exp(-40 * time)
    return curve, curve + 0.02


def unchanged(time: Floats, loss: Floats, floor: float, rng: np.random.Generator) -> Curves:
    return np.full(len(time), 3.0), np.full(len(time), 3.01)


def with_odd_batches(time: Floats, loss: Floats, floor: float, rng: np.random.Generator) -> Curves:
    odd = loss.copy()
    odd[rng.integers(60, len(loss), 3)] += rng.uniform(1, 4, 3)
    return odd, loss


def overfitted(time: Floats, loss: Floats, floor: float, rng: np.random.Generator) -> Curves:
    rise = np.maximum(0, time - 0.4) * rng.uniform(0.3, 1.0) * floor
    return loss - 0.4 * floor * np.maximum(0, time - 0.3), loss + rise


def exploded(time: Floats, loss: Floats, floor: float, rng: np.random.Generator) -> Curves:
    start = rng.uniform(0.3, 0.8)
    rise = np.where(time > start, rng.uniform(10, 50) * np.exp((start - time) / 0.04), 0.0)
    return loss + rise, loss + rise


def test_no_alarm_about_a_run_without_a_fault() -> None:
    for kind in (healthy, flat):
        counts = count_findings(kind)
        assert (counts["problem"], counts["warning"]) == (0, 0), kind.__name__
    tuned = count_findings(
        lambda time, *_: (np.full(len(time), 3.0), np.full(len(time), 3.01)), init_from="gpt2"
    )
    assert (tuned["problem"], tuned["warning"], tuned["underfit-capacity"]) == (0, 0, 0)


def test_no_alarm_where_the_step_time_wanders() -> None:
    """All rules, on healthy runs of machines that wander by up to 20%."""
    alarms = []
    for seed in range(60):
        run = random_run(healthy if seed % 4 else flat, 1000 + seed)
        rng, steps = np.random.default_rng(seed), run.steps
        decay, spread = [(0.0, 0.1), (0.9, 0.1), (0.99, 0.1), (0.99, 0.2), (0.999, 0.2)][seed % 5]
        noise = rng.normal(0, spread * np.sqrt(1 - decay**2), len(steps))
        for at in range(1, len(noise)):
            noise[at] += decay * noise[at - 1]
        evaluates = np.isin(steps.iteration, [one.iteration or 0 for one in run.evals])
        ms = 20 * np.exp(noise) + 60 * evaluates + 3000 * (steps.iteration == 0)
        findings = explain(replace(run, steps=replace(steps, ms=ms))).findings
        alarms += [(seed, one.id) for one in findings if one.severity in ("warning", "problem")]
    assert not alarms


def test_odd_batches_are_only_mentioned() -> None:
    counts = count_findings(with_odd_batches)
    assert (counts["problem"], counts["warning"], counts["loss-explosion"]) == (0, 0, 0)
    assert counts["loss-spike"] >= 0.9 * RUNS


def test_faults_are_found() -> None:
    counts = count_findings(overfitted)
    assert counts["overfitting"] >= 0.85 * RUNS
    assert counts["still-improving"] == counts["plateau"] == 0
    counts = count_findings(exploded)
    assert counts["loss-explosion"] >= 0.95 * RUNS
    assert counts["divergence"] == counts["loss-spike"] == 0


def test_a_loss_that_may_not_be_a_language_model_s() -> None:
    """Regression reaches 0 within a few epochs, an autoencoder 0.00006 on held-out data: no leak."""
    regression = [f"Epoch {at}/60 Loss: {45.3 * math.exp(-at / 2) + 0.0004:.4f}" for at in range(1, 61)]
    encoder = [
        f"Epoch {at} train_loss: {0.09 * math.exp(-at / 2) + 5e-5:.6f} val_loss: {6e-5:.6f}"
        for at in range(1, 31)
    ]
    for lines in (regression, encoder):
        findings = explain(parse_log("\n".join(lines) + "\n")).findings
        assert [one.id for one in findings if one.severity != "info"] == []


def test_a_term_that_grows_is_no_crash() -> None:
    """The loss of a VAE whose second term is raised slowly, and a change of the data at iteration 600."""
    annealed = [3 * math.exp(-at / 50) + 1 + min(1, at / 600) * 1.2 for at in range(0, 1000, 10)]
    changed = [2 + 5 * math.exp(-at / 80) if at < 600 else 3.1 - 3e-4 * at for at in range(0, 1200, 10)]
    for losses, key in ((annealed, "divergence.title"), (changed, "divergence.title.jumped")):
        lines = [f"step {10 * row} loss {loss:.4f}" for row, loss in enumerate(losses)]
        findings = explain(parse_log("\n".join(lines) + "\n")).findings
        (finding,) = [one for one in findings if one.severity != "info"]
        assert (finding.severity, finding.text["title"][0].key) == ("warning", key)
        assert "learning rate" not in finding.title


def test_a_metric_that_improves_is_no_overfitting() -> None:
    """Whisper: its word error rate falls while the loss on held-out speech rises; lines have no numbers."""
    lines = []
    for at in range(1, 21):
        lines.append(f"{{'loss': {1.2 * at**-0.9:.4f}, 'learning_rate': 1e-05, 'epoch': {at / 2}}}")
        if at % 4 == 0:
            wer = 60 * at**-0.3
            lines.append(f"{{'eval_loss': {0.5 + 0.01 * at}, 'eval_wer': {wer:.3f}, 'epoch': {at / 2}}}")
    findings = explain(parse_log("\n".join(lines) + "\n")).findings
    finding = next(one for one in findings if one.id == "overfitting")
    assert (finding.severity, finding.values["name"]) == ("info", "eval_wer")
