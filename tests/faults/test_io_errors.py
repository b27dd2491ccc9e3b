"""Some of the faults that `make faults` tries all of: a file system call fails, once or for good."""

from __future__ import annotations

import pytest
import shim
from test_processes import script


@pytest.mark.skipif(shim.shim_problem() is not None, reason=shim.shim_problem() or "")
def test_a_call_that_fails_ends_in_no_traceback_and_loses_nothing() -> None:
    code, report = script("io_errors.py", "--sample=16", "--commands=train,resume,prepare,show")
    assert report["problems"] == []
    assert (code, sum(report["tried"].values())) == (0, 16)
