"""Frameworks: torchtitan, Megatron-LM and its kin, OLMo, mlx-lm, Keras, Lightning, autoresearch."""

from __future__ import annotations

import pytest
from log_checks import check_facts
from printed import SyntheticRun
from printed_more import every_trainer

COURSE = SyntheticRun(updates=40)
FRAMEWORKS = {
    "torchtitan", "megatron", "mlx-lm", "olmo", "keras", "lightning", "autoresearch",
}  # fmt: skip


def test_whole_logs(subtests: pytest.Subtests) -> None:
    logs = {name: log for name, log in every_trainer(COURSE).items() if log.format in FRAMEWORKS}
    assert {log.format for log in logs.values()} == FRAMEWORKS
    for name, expected in logs.items():
        with subtests.test(name):
            check_facts(expected.text, expected)
