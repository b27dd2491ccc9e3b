"""Whole logs as trainers print them, with one fault planted in each, or none: their findings."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from glassgpt.explain.explanation import Explanation, explain
from glassgpt.i18n import say, translate
from glassgpt.record.finding import Finding
from glassgpt.runs.lines import LogLine
from glassgpt.runs.recognise import read_log

Course = Callable[[int], float]
HEADER = """Overriding config with config/train_shakespeare_char.py:
eval_interval = {every}
log_interval = {log_every}
gradient_accumulation_steps = 1
batch_size = 64
block_size = 256
max_iters = {updates}
learning_rate = 1e-3
lr_decay_iters = {updates}
warmup_iters = 100
tokens per iteration will be: 16,384
found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)
Initializing a new model from scratch
number of parameters: 10.65M
"""


def healthy(iteration: int) -> float:
    return 1.3 + 2.87 / (1 + iteration / 100)


def explained(text: str) -> Explanation:
    return explain(read_log([LogLine(line) for line in text.splitlines()], "run.log"))


def one(text: str, name: str) -> Finding:
    matching = [finding for finding in explained(text).findings if finding.id == name]
    assert len(matching) == 1, [finding.id for finding in explained(text).findings]
    return matching[0]


def names(text: str) -> set[str]:
    return {finding.id for finding in explained(text).findings}


def verdict(text: str) -> str:
    return " ".join(explained(text).verdict)


def nanogpt(
    updates: int = 2000,
    every: int = 250,
    log_every: int = 10,
    loss: Course = healthy,
    val: Course = healthy,
    ms: Course = lambda at: 33.0,
    first_ms: float = 9000.0,
    eval_ms: float = 1800.0,
    save_ms: float = 0.0,
    header: bool = True,
) -> str:
    noise = random.Random(0)
    lines = [HEADER.format(every=every, log_every=log_every, updates=updates)] if header else []
    for at in range(updates + 1):
        evaluates = at % every == 0
        if evaluates:
            lines.append(f"step {at}: train loss {loss(at):.4f}, val loss {val(at):.4f}\n")
            if save_ms and at:
                lines.append("saving checkpoint to out\n")
        if at % log_every == 0:
            time = ms(at) + evaluates * (eval_ms + bool(at) * save_ms) + (first_ms if at == 0 else 0)
            scatter = noise.gauss(0, 0.005 * loss(at)) if math.isfinite(loss(at)) and at else 0.0
            lines.append(f"iter {at}: loss {loss(at) + scatter:.4f}, time {time:.2f}ms, mfu -100.00%\n")
    return "".join(lines)


def llmc(updates: int = 200, every: int = 50, loss: Course = healthy, mfu: float = 40.0) -> str:
    lines = [
        "| train data pattern    | data.bin |\n| total batch size      | 32768 |\n",
        "| micro batch size B    | 4 |\n| sequence length T     | 1024 |\n| val_max_steps         | 20 |\n",
        f"| val_loss_every        | {every} |\n| max_steps             | {updates} |\n",
        "| peak TFlops           | 165.2 |\n",
        f"val loss {loss(0):.6f}\n",
    ]
    for at in range(1, updates + 1):
        lines.append(
            f"step {at:4d}/{updates} | loss {loss(at):.6f} (+0.1z)| norm 0.5000 (+0.1z)| lr 6.00e-04 | "
            f"80.00 ms | {mfu:.1f}% bf16 MFU | 409600 tok/s\n"
        )
        if at % every == 0:
            lines.append(f"val loss {loss(at):.6f}\n")
    return "".join(lines)


def trainer(losses: list[float], norms: list[float]) -> str:
    return "".join(
        f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 5e-05, 'epoch': {0.1 * number:.1f}}}\n"
        for number, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=1)
    )


# --- no fault ---


def test_healthy_runs_have_no_serious_finding() -> None:
    for text in (nanogpt(), llmc(), trainer([healthy(20 * at) for at in range(60)], [1.0] * 60)):
        assert not [
            finding for finding in explained(text).findings if finding.severity in ("problem", "warning")
        ]


# --- a learning rate that is far too high from the first update on ---


@pytest.mark.parametrize("back_at", [None, 500])
def test_a_loss_that_explodes_with_the_first_updates(back_at: int | None) -> None:
    def course(at: int) -> float:
        is_high = at > 0 and (back_at is None or at < back_at)
        return 900 / (1 + at / 300) if is_high else healthy(at)

    text = nanogpt(loss=course, val=course)
    finding = one(text, "loss-explosion")
    assert finding.severity == "problem"
    assert finding.at == 10
    assert finding.text["advice"][0].key.startswith("divergence.advice.lower")
    assert finding.text["title"][0].key.endswith("lasting" if back_at is None else "recovered")
    assert not names(text) & {"loss-scale", "overfitting", "divergence"}
    early = "\n".join(line for line in text.splitlines()[:19])  # three logged losses are enough
    assert early.count("\niter ") == 4
    assert one(early, "loss-explosion").at == 10


# --- evaluating all the time ---


@pytest.mark.parametrize("log_every", [1, 10])
def test_an_evaluation_at_every_iteration(log_every: int) -> None:
    text = nanogpt(updates=300, every=1, log_every=log_every)
    finding = one(text, "eval-spikes")
    values = finding.values
    assert finding.severity == "warning"
    assert finding.text["title"][0].key == "eval-spikes.title.every_iteration"
    assert (values["timed_iterations"], values["median_ms"]) == (300 // log_every, 1833.0)
    assert [message.key for message in finding.text["advice"]] == ["eval-spikes.advice.half_as_often"]
    assert f"Most important: {finding.title}." in verdict(text)


def test_without_the_settings_its_cost_is_not_guessed() -> None:
    finding = one(nanogpt(updates=300, every=1, log_every=1, header=False), "eval-spikes")
    assert finding.severity == "warning"
    assert "%" not in finding.evidence + finding.advice


def test_an_evaluation_at_every_logged_iteration() -> None:
    finding = one(nanogpt(updates=1000, every=10), "eval-spikes")
    assert finding.text["title"][0].key == "eval-spikes.title.every_logged_iteration"
    assert finding.severity == "advice"
    rare = nanogpt(updates=50_000, every=5000, log_every=5000)
    assert one(rare, "eval-spikes").severity == "info"


def test_llm_c_stops_its_clock_while_it_evaluates() -> None:
    finding = one(llmc(every=1), "eval-spikes")
    assert finding.severity == "warning"
    assert (finding.values["evaluations"], finding.values["iterations"]) == (201, 200)
    assert "eval-spikes" not in names(llmc(every=2))


def test_the_first_evaluation_costs_no_more_than_its_iteration() -> None:
    """nanoGPT does not save there, so the others take longer."""
    text = nanogpt(updates=1000, save_ms=20_000.0)
    values, eval_s = one(text, "eval-spikes").values, 4 * 21.8 + 10.8  # its first iteration took 10.8 s
    run_s = eval_s + 1001 * 0.033
    assert values["evaluations"] == 5
    assert values["eval_s"] == pytest.approx(eval_s)
    assert values["run_s"] == pytest.approx(run_s)
    assert values["eval_share"] == pytest.approx(eval_s / run_s)


# --- losses ---


def test_a_validation_loss_that_no_text_allows() -> None:
    text = nanogpt(
        loss=lambda at: 0.003 + 4.17 * math.exp(-at / 60), val=lambda at: 0.003 + 4.17 * math.exp(-at / 60)
    )
    finding = one(text, "leaked-data")
    assert (finding.at, finding.values["eval_iteration"], finding.values["val_loss"]) == (2000, 2000, 0.003)
    assert finding.severity == "problem"
    assert "plateau" not in names(text)
    assert "leaked-data" not in names(nanogpt(val=lambda at: 0.28 + 3.9 / (1 + at / 50)))  # games of chess


def test_losses_of_exactly_zero_stand_for_no_numbers() -> None:
    text = trainer([2.5] * 5 + [0.0] * 45, [1.0] * 5 + [math.nan] * 45)
    finding = one(text, "loss-nan")
    assert finding.values == {"zero_losses": 45, "logged_losses": 50, "last_nonzero_loss": 2.5}
    assert say("loss-nan.evidence.zeros_norms_nan") in finding.text["evidence"]
    assert "plateau" not in names(text)
    rounded = trainer([max(0.0, 2.5 - at / 10) for at in range(30)], [1.0] * 30)
    assert "loss-nan" not in names(rounded)  # it came down to that


def test_a_learning_rate_that_is_far_too_low() -> None:
    finding = one(nanogpt(loss=lambda at: 4.17 - 0.1 * at / 2000), "plateau")
    assert (finding.severity, finding.text["title"][0].key) == ("problem", "plateau.title.hardly_learnt")
    assert (finding.values["vocab_size"], finding.values["chance_loss"]) == (65, math.log(65))
    early = nanogpt(updates=200, loss=lambda at: 4.17 - 0.1 * at / 200)
    assert "plateau" not in names(early)  # it has only warmed up


# --- time, memory, speed ---


def test_a_clock_that_was_set_back_makes_no_negative_times() -> None:
    text = nanogpt(ms=lambda at: -3_600_000.0 if at == 1230 else 33.0)
    facts = explained(text).facts
    assert facts.estimated_total_s == pytest.approx((2001 * 33 + 9 * 1800 + 9000) / 1000)
    assert not any("-" in part for part in verdict(text).split() if part[-1:] in "%.")


@pytest.mark.parametrize("mfu", [128.0, 99.0])
def test_more_than_the_card_can_do(mfu: float) -> None:
    text = llmc(mfu=mfu)
    assert ("mfu-impossible" in names(text)) == (mfu > 100)
    if mfu > 100:
        finding = one(text, "mfu-impossible")
        assert finding.values["mfu_percent"] == 128
        assert finding.values["peak_flops_per_s"] == finding.claims["peak of the MFU"]
        assert finding.values["peak_flops_per_s"] == pytest.approx(165e12, abs=5e11)
        assert finding.values["flops_per_s"] == pytest.approx(211e12, abs=5e11)


def test_memory_that_ran_out_on_the_way() -> None:
    lines = nanogpt().splitlines(keepends=True)
    message = "WARNING: CUDA out of memory. Tried to allocate 512.00 MiB; retrying\n"
    caught = "".join([*lines[:100], message, *lines[100:]])
    finding = one(caught, "oom")
    assert (finding.severity, finding.claims) == ("warning", {})
    assert finding.text["title"][0].key == "oom.title.continued"
    assert one("".join([*lines[:100], message]), "oom").severity == "problem"


def test_a_loss_that_jumped_counts_for_more_than_batches_seen_again() -> None:
    first = nanogpt(updates=1000).replace("max_iters = 1000", "max_iters = 2000")
    lines = nanogpt(loss=lambda at: healthy(at) + 0.5 * math.exp(5 - at / 200)).splitlines(keepends=True)
    header = HEADER.format(every=250, log_every=10, updates=2000)
    header = header.replace("Initializing a new model from scratch", "Resuming training from out")
    begin = next(number for number, line in enumerate(lines) if line.startswith("step 1000:"))
    text = first + header + "".join(lines[begin:])
    assert {"resume-jump", "resume-replays-data"} <= names(text)
    (jump,) = (finding for finding in explained(text).findings if finding.id == "resume-jump")
    assert translate("verdict.most_important", title=jump.title) in verdict(text)


def test_lightning_says_that_it_is_over() -> None:
    bars = "".join(
        f"Epoch 0: {at}%|###  | {at}/100 [00:05<00:05, 9.8it/s, v_num=3, train_loss={healthy(at):.3f}]\n"
        for at in range(1, 101)
    )
    assert explained(bars + "`Trainer.fit` stopped: `max_epochs=1` reached.\n").facts.ended == "finished"
    assert (
        explained(
            bars.replace("/100 [", "/200 [") + "`Trainer.fit` stopped: `max_steps=100` reached.\n"
        ).facts.ended
        == "finished"
    )


def test_an_llm_c_run_has_its_article() -> None:
    assert verdict(llmc()).startswith("An llm.c run ")
    assert verdict(nanogpt()).startswith("A nanoGPT run ")


@pytest.mark.parametrize("changes", [True, False])
def test_a_batch_that_grows_is_no_slower_machine(changes: bool) -> None:
    """Megatron's line says the batch; where that stays, slower iterations are a slower machine."""
    text = "".join(
        f" [2025-03-01 10:00:00] iteration {at:8d}/     300 | elapsed time per iteration (ms): "
        f"{1500.0 if at < 200 else 3000.0} | learning rate: 3.0E-04 | global batch size: "
        f"{512 if changes and at >= 200 else 256:5d} | lm loss: {healthy(at):.6E} | grad norm: 1.000 |\n"
        for at in range(1, 301)
    )
    assert ("batch-changed" in names(text)) == changes
    assert ("throughput-drift" in names(text)) == (not changes)
    if changes:
        finding = one(text, "batch-changed")
        assert (finding.at, finding.values["batches"]) == (200, ["1: 256", "200: 512"])


def test_overfitting_with_a_line_for_many_iterations() -> None:
    """Hugging Face's Trainer: ten lines to an evaluation are few, and the losses fall between them."""
    lines = []
    for at in range(10, 601, 10):
        lines.append(
            f"{{'loss': {3 * math.exp(-at / 150):.4f}, 'grad_norm': 1.0, 'epoch': {at / 200:.2f}}}\n"
        )
        lines.append(f" {at // 6:2d}%|#   | {at}/600 [00:10<05:00,  1.2it/s]\n")
        if at % 60 == 0:
            val = 1.8 + 0.5 * math.exp(-at / 80) + max(0, at - 180) / 800
            lines.append(f"{{'eval_loss': {val:.4f}, 'epoch': {at / 200:.2f}}}\n")
            lines.append(f" {at // 6:2d}%|#   | {at}/600 [00:10<05:00,  1.2it/s]\n")
    finding = one("".join(lines), "overfitting")
    assert (finding.values["best_loss"], finding.values["end_loss"]) == (1.8527, 2.3253)
    assert finding.values["rise"] == pytest.approx(2.3253 - 1.8527)
    assert finding.values["share_after_best"] == pytest.approx(0.7, abs=0.005)  # 420 of 600


def test_lightnings_bar_of_each_epoch() -> None:
    """Only the last state of each epoch's bar is left; the validation loss in it is the latest."""
    text = "".join(
        f"Epoch {epoch}: 100%|####| 100/100 [00:10<00:00, 9.85it/s, v_num=3, "
        f"train_loss={3 * math.exp(-epoch / 3):.3f}, val_loss={1.8 + 0.05 * abs(epoch - 6):.3f}]\n"
        for epoch in range(20)
    )
    facts = explained(text).facts
    assert (facts.iterations_logged, facts.last_iteration, facts.segments) == (20, 2000, 1)
    assert (facts.best_val_loss, facts.best_val_step, facts.final_val_loss) == (1.8, 700, 2.45)
    assert "overfitting" in names(text)


# --- how it ended ---


def test_a_checkpoint_that_the_process_crashed_in_is_none() -> None:
    """Two saves over one file: the second broke, and the first is gone with it."""
    error = "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 8704 vs 8598\n"
    text = nanogpt(updates=750, save_ms=50.0) + "step 1000: train loss 1.5, val loss 1.6\n"
    text += "saving checkpoint to out\nTraceback (most recent call last):\n" + error
    crashed = one(text, "crashed")
    assert crashed.values["broken_iteration"] == 1000
    assert not {"saved_iteration", "lost_iterations"} & crashed.values.keys()


def test_a_plan_is_a_number_of_iterations() -> None:
    """nanochat's last iteration of 50 is 49: the verdict and the finding say 50."""
    lines = [
        f"step {at:05d}/00050 ({2 * at:.2f}%) | loss: {healthy(at):.6f} | lrm: 1.00 | dt: 100.00ms | "
        f"tok/sec: 5,242 | mfu: 1.00 | total time: {at / 600:.2f}m"
        for at in range(20)
    ]
    early = one("\n".join(lines), "ended-early")
    assert early.values["planned_iterations"] == 50
    assert "50" in verdict("\n".join(lines))


def test_warnings_of_the_program_that_matter_are_named() -> None:
    said = "WARNING: Flash Attention 3 not available, using PyTorch SDPA fallback\n"
    other = "WARNING: Using a boolean value is deprecated\n"
    warning = one(said + other + nanogpt(), "program-warning")
    assert warning.values["warnings"] == 1
    assert (warning.severity, list(warning.lines)) == ("info", [1])
    assert "program-warning" not in names(other + nanogpt())
