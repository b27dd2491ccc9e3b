"""What a run computes with, decided on a machine that others use too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tiny import MakeConfig, choices, records, resume

from glassgpt.training.session import train


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As PyTorch decides by itself on two cores."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_a_busy_core_takes_a_thread_and_a_resume_keeps_the_count(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    def threads_of(name: str) -> int:
        return int(records(tiny(name).out_dir, "run")[-1]["machine"]["cpu"]["torch_threads"])

    for name, busy, threads in (("quiet", 0.2, 2), ("busy", 1.2, 1), ("full", 20.0, 1)):
        monkeypatch.setattr("glassgpt.training.run_choices.busy_cores", lambda busy=busy: busy)
        train(tiny(name, max_iters=1))
        assert threads_of(name) == threads
        assert ("threads" in choices(tiny(name).out_dir)) == (threads == 1)
        assert torch.get_num_threads() == 2  # it was for that run

    resume(tiny("quiet", max_iters=2))  # while 20 cores' worth of work is waiting
    assert threads_of("quiet") == 2
    value, reason = choices(tiny("quiet").out_dir)["threads"]
    assert value == 2
    assert "--threads=1" in reason
    resume(tiny("quiet", max_iters=3, threads=1))
    assert threads_of("quiet") == 1

    monkeypatch.setattr("glassgpt.training.run_choices.busy_cores", lambda: 0.0)
    resume(tiny("busy", max_iters=2))
    assert threads_of("busy") == 1
