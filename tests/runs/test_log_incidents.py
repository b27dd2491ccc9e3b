"""What any program prints when it is stopped, fails, or is done."""

from __future__ import annotations

import pytest
from log_checks import lines_of, parse_facts, parse_log
from printed import SyntheticRun, nanogpt

from glassgpt.explain.explanation import explain
from glassgpt.explain.rules.lost_work import crashed
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.recognise import read_logs

LOG = "".join(f"iter {at}: loss 3.0, time 33.00ms, mfu 5.00%\n" for at in range(12))


ENDINGS = [
    ("KeyboardInterrupt", "interrupted"),
    ("^C", "interrupted"),
    ("^CTraceback (most recent call last):", "interrupted"),
    ("[rank0]: KeyboardInterrupt", "interrupted"),
    ("slurmstepd: error: *** JOB 492393 ON gpu01 CANCELLED AT 2024-08-01T15:08:33 DUE TO "
     "TIME LIMIT ***", "interrupted"),
    ("slurmstepd: error: *** STEP 492393.0 ON gpu01 CANCELLED AT 2024-08-01T15:08:33 ***", "interrupted"),
    ("torch.distributed.elastic.SignalException: Process 12 got signal: 15", "interrupted"),
    ("W0329 run.py] Received 15 death signal, shutting down workers", "interrupted"),
    ("WARNING:torch.distributed.elastic.agent:Received Signals.SIGTERM death signal", "interrupted"),
    ("Terminated", "interrupted"),
    ("Killed", "crashed"),
    ("Mar 01 10:22:33 Killed", "crashed"),
    ("2024-03-01T15:08:33.123456789Z stderr F KeyboardInterrupt", "interrupted"),
    ("train.sh: line 12: 12345 Killed                  python train.py", "crashed"),
    ("Segmentation fault (core dumped)", "crashed"),
    ("Bus error (core dumped)", "crashed"),
    ("Traceback (most recent call last):\n  File \"train.py\", line 3\nValueError: x", "crashed"),
    ("Aborted (core dumped)", "crashed"),
    ("[rank1]:[E511 10:22:33.12 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation "
     "timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE) ran for 600029 milliseconds", "crashed"),
    ("terminate called after throwing an instance of 'std::bad_alloc'", "crashed"),
    ("Fatal Python error: Aborted", "crashed"),
    ("E0511 10:22:36 140 elastic/api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 47)", "crashed"),
    ("[CUDA ERROR] at file llmc/cuda_common.h:65:\nan illegal memory access was encountered", "crashed"),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom"),
    ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB", "oom"),
    ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom"),
    ("RuntimeError: MPS backend out of memory (MPS allocated: 17.95 GB)", "oom"),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: "
     "can't allocate memory", "oom"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom"),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in step 492393.0 cgroup.", "oom"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=492393.batch.", "oom"),
    ("[12345.678] Out of memory: Killed process 12345 (python) total-vm:54321kB", "oom"),
    ("Mar 01 10:22:33 box kernel: Out of memory: Killed process 12345 (python)", "oom"),
    ("    Reason:       OOMKilled", "oom"),
    ("srun: Some of the step tasks have been OOM Killed.", "oom"),
    ("numpy.core._exceptions.MemoryError: Unable to allocate 12.0 GiB for an array", "oom"),
    ("real\t2m14.512s", "finished"),
    ("wandb: Run summary:", "finished"),
    ("Some words about memory, interrupts and being killed by a train.", "cut"),
    ("The traceback of the lost is long, said the Segmentation officer.", "cut"),
    ("wandb: WARNING The new backend becomes opt-out", "cut"),
    ("UserWarning: To avoid running out of memory, lower the batch size", "cut"),
]  # fmt: skip


def test_how_it_ended() -> None:
    found = [(line, parse_facts(f"{LOG}{line}\n").ended) for line, _ in ENDINGS]
    assert found == ENDINGS


def test_what_happened_before_the_last_iteration_did_not_end_it() -> None:
    trouble = (
        "Traceback (most recent call last):\nRuntimeError: retrying\nCUDA out of "
        "memory. Tried to allocate 1 GiB\n"
    )
    assert parse_facts(LOG + trouble + LOG.replace("iter ", "iter 1")).ended == "cut"


def test_memory_is_the_reason_though_the_traceback_says_more() -> None:
    text = (
        LOG + "Traceback (most recent call last):\n  File x\ntorch.OutOfMemoryError: CUDA out of "
        "memory. Tried to allocate\n"
        + "During handling of the above exception, another exception occurred:\nTraceback "
        "(most recent call last):\nKeyError: 1\n"
    )
    assert parse_facts(text).ended == "oom"


def test_of_several_ranks_the_first_exception_is_quoted() -> None:
    """In its own line; what torchrun then raises says less."""
    ranks = "".join(
        f"[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File x\n"
        f"[rank{rank}]: torch._C._LinAlgError: not positive-definite\n"
        for rank in (3, 0)
    )
    launcher = "Traceback (most recent call last):\n  File y\nerrors.ChildFailedError: \n"
    lines = LOG.count("\n")
    for before, wanted in (("", "crashed"), ("Training complete!\n", "crashed-after-end")):
        found = explain(parse_log(LOG + before + ranks + launcher)).findings
        (one,) = (finding for finding in found if finding.id == wanted)
        assert one.values["quoted"] == "torch._C._LinAlgError: not positive-definite"
        assert one.values["line"] == one.lines[0] == lines + bool(before) + 3


def test_an_interrupt_in_a_finished_run_of_known_length() -> None:
    """Stopped after its last iteration, it was still stopped."""
    assert parse_facts(nanogpt(SyntheticRun()).text + "KeyboardInterrupt\n").ended == "interrupted"


def test_events_know_their_line_and_iteration() -> None:
    (event,) = parse_log(LOG + "Killed\n").events
    assert (event.kind, event.text, event.line, event.iteration) == ("kill", "Killed", 13, 11)


@pytest.mark.parametrize(
    "line",
    [
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
        "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
    ],
)
def test_scaler_overflows_are_noted(line: str) -> None:
    run_log = parse_log(LOG + line + "\n" + LOG.replace("iter ", "iter 2"))
    assert [event.kind for event in run_log.events] == ["scaler-overflow"]


@pytest.mark.parametrize(
    ("line", "seconds"), [("real\t2m14.512s", 134.512), ("      134.51 real        10.00 user", 134.51)]
)
def test_the_time_of_the_process(line: str, seconds: float) -> None:
    assert parse_log(LOG + line + "\n").setup.wall_s == pytest.approx(seconds)


def test_a_flood_of_events_is_bounded() -> None:
    run_log = parse_log(LOG + "Traceback (most recent call last):\n" * 5000)
    assert len(run_log.events) <= 1000
    assert (
        parse_facts(
            LOG + "Gradient overflow. Skipping step, loss scale\n" * 5000 + "KeyboardInterrupt\n"
        ).ended
        == "interrupted"
    )


def test_every_event_is_counted_though_few_are_kept() -> None:
    run_log = parse_log(LOG + "Gradient overflow. Skipping step, loss scaler 0 reducing\n" * 1000)
    assert run_log.event_counts["scaler-overflow"] == 1000
    assert len(run_log.events) == 200


@pytest.mark.parametrize("line", ["Segmentation fault (core dumped)", "Bus error"])
def test_a_fault_is_not_a_kill_from_outside(line: str) -> None:
    run_log = parse_log(f"{LOG}{line}\n")
    assert [event.kind for event in run_log.events] == ["abort"]
    assert parse_facts(f"{LOG}{line}\n").ended == "crashed"


def test_what_comes_after_a_trainers_own_end_is_not_its_end() -> None:
    steps = "".join(
        f"step {at:05d}/00003 (0.00%) | loss: 3.0 | lrm: 1.00 | dt: 5.00ms | tok/sec: 486 | mfu: 1.00\n"
        for at in range(3)
    )
    end = "Peak memory usage: 1.0MiB\nTotal training time: 1.0m\nMinimum validation bpb: 0.8\n"
    crash = "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
    assert parse_facts(steps + end + crash).ended == "finished"
    assert parse_facts(steps + crash + end).ended == "crashed"


def test_what_torchrun_adds_is_not_the_cause() -> None:
    text = LOG + (
        "[rank1]: Traceback (most recent call last):\n[rank1]: ZeroDivisionError: division by zero\n"
        "Traceback (most recent call last):\ntorch.distributed.elastic.multiprocessing.ChildFailedError:\n"
    )
    run_log = parse_log(text)
    finding = crashed(Analysis(run_log))
    assert finding is not None
    assert "division by zero" in finding.evidence


def test_a_tokenizer_that_finished_training_is_no_run_that_did() -> None:
    lines = [
        "Autodetected device type: cuda",
        "Finished training: 65271 merges",
        "Traceback (most recent call last):",
        '  File "base_train.py", line 3, in <module>',
        "AssertionError",
    ]
    (run_log,) = read_logs(lines_of("\n".join(lines)), "run.log")
    assert Analysis(run_log).exit_status == "crashed"


def test_memory_that_ran_out_after_the_first_evaluation_is_of_that_run() -> None:
    lines = [
        "step 0: train loss 10.95, val loss 10.96",
        "Traceback (most recent call last):",
        '  File "train.py", line 299, in <module>',
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 48.00 MiB.",
    ]
    (run_log,) = read_logs(lines_of("\n".join(lines)), "run.log")
    assert (len(run_log.evals), Analysis(run_log).exit_status) == (1, "oom")


def test_no_rate_follows_from_an_impossible_mfu() -> None:
    text = "\n".join(f"iter {at}: loss 3.0, time 100.00ms, mfu 2500.00%" for at in range(40))
    facts = parse_facts(text)
    assert (facts.flops_per_token, facts.achieved_tflops) == (None, None)
