"""What went wrong in a run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from learning_logs import (
    GLASSGPT,
    HF,
    add_noise,
    analyse,
    falling_losses,
    finding_text,
    gpu_run,
    require_finding,
)
from run_logs import make_run_log, make_steps

from glassgpt.config import ConfigValue
from glassgpt.explain.rules.gpu_memory import oom, parse_oom_message
from glassgpt.explain.rules.instability import divergence, loss_spike
from glassgpt.explain.rules.lost_work import best_overwritten, crashed, interrupted, never_checkpointed
from glassgpt.explain.rules.nonfinite import loss_nan, skipped_steps
from glassgpt.runs.run_log import EventKind, LogEvent, LoggedCheckpoint, LoggedSetup, RunLog
from glassgpt.runs.trainer import Trainer
from glassgpt.runs.trainers import BY_ID

NAN = math.nan
LLMC = BY_ID["llm.c"]
LITGPT = BY_ID["litgpt"]
BUILD = BY_ID["build-nanogpt"]


# --- not a number ---


def test_a_loss_that_breaks_on_a_phone() -> None:
    """Calm losses, then nan at 425, with log_interval 5 and checkpoints every 100."""
    losses = [*add_noise([3.35] * 85, 0.05), *[NAN] * 6]
    steps = make_steps(range(0, 455, 5), 1444.0, losses)
    one = require_finding(loss_nan(analyse(make_run_log(steps, checkpoints=[100, 200, 300, 400]))))
    assert one.severity == "problem"
    assert "iteration 425" in one.title
    assert "(iteration 420)" in one.evidence
    assert "since: 6" in one.evidence
    assert "stable" in one.explanation
    assert "iteration 400: resume from there" in one.advice
    assert "saved 36 s" in one.advice  # 25 iterations of 1444 ms


def test_a_loss_that_was_never_a_number() -> None:
    steps = make_steps(range(1, 100), 3600.0, [NAN] * 99, lr=[8.57e-7 * i for i in range(1, 100)])
    one = require_finding(loss_nan(analyse(make_run_log(steps, trainer=LLMC))))
    assert "first logged iteration, 1" in one.evidence
    assert "8.57e-07" in one.evidence
    assert "the learning rate is not the cause" in one.explanation
    assert "99% of the run" in one.advice


@pytest.mark.parametrize(("trainer", "first"), [(LLMC, 10), (HF, 1)])
def test_a_log_whose_first_loss_is_nan_may_have_had_updates(trainer: Trainer, first: int) -> None:
    """An excerpt, or the mean over the first interval."""
    run_log = make_run_log(make_steps(range(first, first + 50), loss=[NAN] * 50), trainer=trainer)
    assert "too few" in require_finding(loss_nan(analyse(run_log))).explanation
    overflowing = replace(run_log, event_counts={"scaler-overflow": 7})
    assert "overflows in this log: 7" in require_finding(loss_nan(analyse(overflowing))).explanation


def test_few_losses_are_not_called_stable() -> None:
    climbing = make_steps(range(4), loss=[1.8748, 2.5812, 2.7844, NAN])
    assert (
        "unstable, 1.8748 to 2.7844" in require_finding(loss_nan(analyse(make_run_log(climbing)))).explanation
    )
    few = make_steps(range(3), loss=[2.8, 2.7, NAN])
    assert "too few" in require_finding(loss_nan(analyse(make_run_log(few)))).explanation


def test_a_fault_without_warning_signs_is_not_answered_by_the_rate() -> None:
    steps = make_steps(range(60), loss=[*add_noise([3.0] * 50, 0.01), *[NAN] * 10])
    one = require_finding(loss_nan(analyse(make_run_log(steps, settings={"learning_rate": 6e-3}))))
    assert "no warning signs" in one.explanation
    assert "learning_rate" not in one.advice
    assert "Run the same iterations again" in one.advice


@pytest.mark.parametrize(
    ("losses", "norms", "stated", "word"),
    [
        ([3.0] * 40 + [3.1, 4.0, 6.0, 9.0, NAN], None, {}, "the run diverged"),
        ([3.0] * 44 + [NAN], [1.0] * 40 + [3.0, 9.0, 30.0, 90.0, NAN], {}, "gradient norms grew"),
        ([3.0] * 44 + [NAN], None, {"dtype": "float16"}, "float16"),
    ],
)
def test_causes_by_what_came_before(
    losses: list[float], norms: list[float] | None, stated: dict[str, ConfigValue], word: str
) -> None:
    steps = make_steps(range(45), loss=add_noise(losses, 0.01), grad_norm=norms or [NAN] * 45)
    one = require_finding(loss_nan(analyse(make_run_log(steps, settings={"learning_rate": 6e-3, **stated}))))
    assert word in one.explanation
    assert "learning_rate=0.002 instead of 0.006" in one.advice


def test_one_bad_loss_is_a_warning_and_a_bad_evaluation_a_problem() -> None:
    steps = make_steps(range(30), loss=[3.0] * 10 + [math.inf] + [3.0] * 19)
    assert require_finding(loss_nan(analyse(make_run_log(steps)))).severity == "warning"
    run_log = make_run_log(make_steps(range(30), loss=[3.0] * 30), evals=[(0, 3.0, 3.0), (20, 3.0, NAN)])
    assert "1 of 2 evaluations, the first after iteration 20" in finding_text(loss_nan(analyse(run_log)))


def test_a_missing_loss_is_not_nan() -> None:
    assert loss_nan(analyse(make_run_log(make_steps(range(30))))) is None


# --- spikes and divergence ---


def test_spikes_are_found_and_the_largest_shown() -> None:
    losses = falling_losses(600)
    for row, height in ((200, 1.0), (300, 2.0), (301, 1.5), (400, 0.6), (500, 0.8)):
        losses[row] += height
    one = require_finding(loss_spike(analyse(make_run_log(make_steps(range(0, 6000, 10), loss=losses)))))
    assert one.title.endswith(": 4")
    first, second, third = (one.evidence.index(f"Iteration {at}:") for at in ("3,000", "2,000", "5,000"))
    assert first < second < third
    assert "recovered at iteration 3,020" in one.evidence
    assert "4,000" not in one.evidence
    assert one.severity == "info"  # 50 of 6000 iterations


def test_a_hard_micro_batch_is_no_spike() -> None:
    losses = falling_losses(600)
    losses[300] += 2.0
    run_log = make_run_log(make_steps(range(600), loss=losses))
    assert loss_spike(analyse(run_log)) is not None
    assert loss_spike(analyse(replace(run_log, trainer=LITGPT))) is None


def test_noise_with_long_tails_is_no_spike() -> None:
    losses = np.random.default_rng(0).lognormal(0, 0.8, 2000).tolist()
    assert loss_spike(analyse(make_run_log(make_steps(range(2000), loss=losses)))) is None


def test_a_loss_that_rises_and_stays_has_diverged() -> None:
    """As with learning_rate 5e-3 on chess: down to 4.93 near 120, then 6.1 for good."""
    at = np.arange(0, 3400, 10)
    curve = np.interp(at, [0, 30, 120, 300, 500, 3400], [8.8, 5.8, 4.93, 5.95, 6.1, 6.1])
    steps = make_steps(at.tolist(), 196.0, add_noise(curve.tolist(), 0.01))
    run_log = make_run_log(steps, settings={"learning_rate": 5e-3, "warmup_iters": 100})
    one = require_finding(divergence(analyse(run_log)))
    assert one.severity == "problem"
    assert "fell to 5.0271 near iteration 110" in one.evidence
    assert "ended at 6.0998" in one.evidence
    assert "took 10m" in one.evidence  # about 3270 iterations of 196 ms
    assert "learning_rate=0.005 -> 0.001" in one.advice
    assert "warmup_iters=100" in one.advice
    assert loss_spike(analyse(run_log)) is None


def test_a_spike_is_no_divergence() -> None:
    losses = falling_losses(400)
    losses[200:230] = [5.0] * 30
    assert divergence(analyse(make_run_log(make_steps(range(400), loss=losses)))) is None


# --- skipped steps ---


def test_skipped_updates_are_counted() -> None:
    """All of them, also those that were too many to keep."""
    steps = make_steps(range(1000), loss=falling_losses(1000))
    one = require_finding(skipped_steps(analyse(make_run_log(steps, event_counts={"scaler-overflow": 300}))))
    assert one.severity == "warning"
    assert "300 skipped updates among 1,000 logged iterations (30%)" in one.evidence
    assert "scale halved" in one.explanation
    assert "bfloat16" in one.advice
    few = require_finding(skipped_steps(analyse(make_run_log(steps, event_counts={"scaler-overflow": 3}))))
    assert (few.severity, few.advice) == ("info", "")


def test_norms_that_are_not_finite_are_skipped_updates() -> None:
    norms = [math.inf, NAN, *[1.0] * 98]
    steps = make_steps(range(100), loss=falling_losses(100), grad_norm=norms)
    assert "1 skipped" in finding_text(skipped_steps(analyse(make_run_log(steps))))
    assert "2 skipped" in finding_text(
        skipped_steps(analyse(make_run_log(steps, settings={"dtype": "float16"})))
    )


# --- memory ---

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of "
    "39.38 GiB of which 18.12 MiB is free. Including non-PyTorch memory, this process has 39.35 GiB memory "
    "in use. Of the allocated memory 38.76 GiB is allocated by PyTorch, and 89.20 MiB is reserved by PyTorch "
    "but unallocated."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 4.10 GiB "
    "already allocated; 17.06 MiB free; 6.14 GiB reserved in total by PyTorch)"
)
MPS = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.0 GB, max "
    "allowed: 9.07 GB). Tried to allocate 256.00 MB on private pool."
)
GIB = 2**30


def test_messages_are_read() -> None:
    new, old, mps = parse_oom_message(NEW), parse_oom_message(OLD), parse_oom_message(MPS)
    assert (new.requested_bytes, new.capacity_bytes, new.allocated_bytes) == (
        64 * 2**20,
        39.38 * GIB,
        38.76 * GIB,
    )
    assert (new.free_bytes, new.process_bytes) == (18.12 * 2**20, 39.35 * GIB)
    assert (old.requested_bytes, old.capacity_bytes, old.allocated_bytes) == (
        20 * 2**20,
        7.79 * GIB,
        4.10 * GIB,
    )
    assert old.reserved_unallocated_bytes == pytest.approx(2.04 * GIB)
    assert (mps.capacity_bytes, mps.allocated_bytes, mps.requested_bytes) == (
        9.07 * GIB,
        8 * GIB,
        256 * 2**20,
    )
    assert parse_oom_message(NEW.replace("capacity", "capacty")).capacity_bytes == 39.38 * GIB
    assert parse_oom_message("you tried to allocate 4294967296 bytes").requested_bytes == 4 * GIB
    assert parse_oom_message("out of memory").requested_bytes is None


def out_of_memory(message: str, parameters: int | None = None, **stated: ConfigValue) -> RunLog:
    events = [LogEvent("oom", message, 80, 0)]
    run_log = make_run_log(make_steps([0], loss=[4.6]), settings=stated, events=events)
    return replace(run_log, setup=replace(run_log.setup, trained_parameters=parameters))


def test_a_model_that_fits_at_no_batch_size() -> None:
    shape = {
        "n_layer": 48,
        "n_head": 32,
        "n_embd": 2048,
        "block_size": 256,
        "batch_size": 16,
        "vocab_size": 65,
    }
    one = require_finding(oom(analyse(out_of_memory(NEW, 2_416_775_168, **shape))))
    assert one.severity == "problem"
    assert "2.42B parameters need 40.5 GiB" in one.evidence  # 18 bytes each
    assert "103% of the card" in one.evidence
    assert "no batch size helps" in one.explanation
    assert "n_layer=48 -> 43" in one.advice
    assert "Sharded over 2" in one.advice


def test_a_batch_that_would_have_fitted() -> None:
    message = NEW.replace("39.38", "11.60").replace("39.35", "11.50").replace("38.76", "11.20")
    shape = {"n_layer": 12, "n_embd": 768, "block_size": 1024, "batch_size": 32, "vocab_size": 50304}
    one = require_finding(
        oom(analyse(out_of_memory(message, 124_373_760, **shape, gradient_accumulation_steps=5)))
    )
    # 18 bytes x 124M = 2.1 GiB; 1024 x (32.8 x 12 x 768 + 10 x 50304) bytes = 0.77 GiB each: 11 in 8.9 GiB
    assert "2.1 GiB" in one.evidence
    assert "about 786 MiB" in one.evidence
    assert "batch_size=32 -> 8 should fit" in one.advice
    assert "gradient_accumulation_steps=5 -> 20" in one.advice


@pytest.mark.parametrize("name", ["n_layer", "n_embd", "block_size", "vocab_size", "batch_size"])
def test_absurd_sizes_are_survived(name: str) -> None:
    shape = {"n_layer": 48, "n_embd": 2048, "block_size": 256, "batch_size": 16, "vocab_size": 65}
    for value in (1e308, 10**30, -1, math.inf):
        run_log = out_of_memory(NEW, 2_416_775_168, **{**shape, name: value})
        assert "2.42B parameters" in require_finding(oom(analyse(run_log))).evidence


def test_what_else_a_message_tells() -> None:
    assert "expandable_segments:True" in finding_text(oom(analyse(out_of_memory(OLD))))
    shared = NEW.replace("39.35 GiB memory in use", "20.00 GiB memory in use")
    assert "Other processes held 19.4 GiB" in finding_text(oom(analyse(out_of_memory(shared))))
    assert "not how much there was" in finding_text(oom(analyse(out_of_memory("CUDA error: out of memory"))))


# --- interrupted ---


def stopped(
    kind: EventKind, words: str, last: int, saves: list[int], trainer: Trainer | None = None
) -> RunLog:
    steps = make_steps(range(0, last + 1, 10), 200.0, falling_losses(last // 10 + 1))
    run_log = make_run_log(steps, checkpoints=saves, events=[LogEvent(kind, words, 99, last)])
    return replace(run_log, trainer=trainer or run_log.trainer, setup=LoggedSetup(planned_iterations=5000))


def test_what_an_interrupt_cost() -> None:
    one = require_finding(
        interrupted(analyse(stopped("interrupt", "KeyboardInterrupt", 990, [250, 500, 750])))
    )
    assert "by hand" in one.title
    assert "iteration 990 of 5,000 (20%)" in one.evidence
    assert "iteration 750: 240 iterations are lost, 48 s" in one.evidence
    assert one.severity == "warning"
    assert "--init_from=resume" in one.advice


def test_who_ended_it() -> None:
    limit = "slurmstepd: error: *** JOB 1 ON g002 CANCELLED AT 2024-10-10T18:59:58 DUE TO TIME LIMIT ***"
    assert "time limit" in require_finding(interrupted(analyse(stopped("kill", limit, 500, [500])))).title
    term = "Signal 15 (SIGTERM) received by PID 1454088"
    one = require_finding(interrupted(analyse(stopped("interrupt", term, 500, [500]))))
    assert "from outside" in one.title
    assert one.severity == "info"


def test_all_is_lost_where_saves_would_show() -> None:
    one = require_finding(interrupted(analyse(stopped("interrupt", "KeyboardInterrupt", 990, []))))
    assert one.severity == "problem"
    assert "all of it is lost" in one.evidence
    silent = require_finding(interrupted(analyse(stopped("interrupt", "KeyboardInterrupt", 990, [], BUILD))))
    assert silent.severity == "warning"
    assert "what is lost is unknown" in silent.evidence
    assert "cannot resume" in silent.advice


def test_an_interrupt_of_an_earlier_attempt_is_not_this_runs() -> None:
    run_log = stopped("interrupt", "KeyboardInterrupt", 990, [500])
    assert interrupted(analyse(replace(run_log, last_step_line=4586))) is None


def test_a_checkpoint_of_nan_is_not_resumed() -> None:
    run_log = stopped("interrupt", "SIGTERM received", 990, [500], LLMC)
    run_log = replace(run_log, steps=replace(run_log.steps, loss=np.full(100, NAN)))
    one = require_finding(interrupted(analyse(run_log)))
    assert one.severity == "info"
    assert "Nothing worth keeping is lost" in one.evidence
    assert "Do not resume" in one.advice


def test_llm_c_shows_its_checkpoints() -> None:
    one = require_finding(interrupted(analyse(stopped("interrupt", "DUE TO TIME LIMIT", 750, [], LLMC))))
    assert one.severity == "problem"
    assert "all of it is lost" in one.evidence


def test_lines_are_not_called_iterations() -> None:
    run_log = stopped("interrupt", "KeyboardInterrupt", 990, [500], HF)
    one = require_finding(interrupted(analyse(replace(run_log, has_iteration_numbers=False))))
    assert "Logged iterations: 100" in one.evidence
    assert "5,000" not in one.evidence


def test_a_crash_says_what_and_what_it_cost() -> None:
    one = require_finding(crashed(analyse(stopped("traceback", "TypeError: string indices", 990, [750]))))
    assert "It had reached iteration 990 of 5,000" in one.evidence
    assert 'Line 99: "TypeError: string indices"' in one.evidence
    assert "240 iterations are lost" in one.evidence
    assert "resume from iteration 750" in one.advice
    opening = stopped("traceback", "Traceback (most recent call last):", 990, [750])
    assert "A traceback starts at line 99" in require_finding(crashed(analyse(opening))).evidence


def test_a_segmentation_fault_is_no_kill() -> None:
    run_log = replace(stopped("abort", "Segmentation fault (core dumped)", 990, [750]), ended="crashed")
    assert "segmentation fault" in require_finding(crashed(analyse(run_log))).title
    assert interrupted(analyse(run_log)) is None


def test_an_interruption_that_was_resumed_is_history() -> None:
    run_log = stopped("interrupt", "KeyboardInterrupt", 990, [500])
    early = (LogEvent("interrupt", "KeyboardInterrupt", 40, 300),)
    assert interrupted(analyse(replace(run_log, events=early, ended="finished"))) is None


# --- checkpoints ---


def unsaved(last: int, ms: float, **stated: ConfigValue) -> RunLog:
    steps = make_steps(range(0, last + 1, 10), ms, falling_losses(last // 10 + 1))
    return make_run_log(steps, evals=[(0, 10.9, 10.9)], settings=stated)


def test_a_run_that_never_saved() -> None:
    one = require_finding(never_checkpointed(analyse(unsaved(1000, 1500.0, eval_interval=2000))))
    assert "1,000 iterations, 25m 00s of training" in one.evidence
    assert "eval_interval=2000" in one.evidence
    assert "eval_interval=200 puts at most 5m 00s at risk" in one.advice
    assert never_checkpointed(analyse(unsaved(100, 1500.0))) is None  # two minutes and a half
    assert never_checkpointed(analyse(replace(unsaved(1000, 1500.0), trainer=HF))) is None


def test_a_log_with_gaps_or_silent_spikes_does_not_tell() -> None:
    spiky = make_steps(range(0, 1001, 10), [1500.0] * 50 + [125_000.0] + [1500.0] * 50, falling_losses(101))
    gappy = make_steps([0, 10, 20, 30, 990, 1000], 1500.0, falling_losses(6))
    for steps in (spiky, gappy):
        assert never_checkpointed(analyse(make_run_log(steps, evals=[(0, 10.9, 10.9)]))) is None


def test_a_run_that_only_got_worse_had_nothing_to_save() -> None:
    run_log = unsaved(1000, 1500.0, always_save_checkpoint=False)
    evals = (*run_log.evals, replace(run_log.evals[0], iteration=500, val_loss=11.5))
    assert never_checkpointed(analyse(replace(run_log, evals=evals))) is None


def test_the_best_is_overwritten() -> None:
    run_log = gpu_run()
    run_log = replace(run_log, checkpoints=tuple(LoggedCheckpoint(250 * i, 0) for i in range(1, 21)))
    one = require_finding(best_overwritten(analyse(run_log)))
    assert one.severity == "problem"
    assert "1.4576 at iteration 1,750" in one.evidence
    assert "iteration 5,000, has 1.7096: 0.25 worse" in one.evidence
    assert best_overwritten(analyse(replace(run_log, trainer=GLASSGPT))) is None
