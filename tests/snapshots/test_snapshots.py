"""What explain, compare and plan say of fixed inputs is what they said before: values, not sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from condense import EXPECTED, PARTS, write_inputs
from make import digests, make_datasets, train_tiny, workplace

RENEW = "If that is intended: python tests/snapshots/condense.py"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with workplace() as folder:
        write_inputs()
        yield folder


def differences(expected: Any, got: Any, at: str = "") -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(got, dict):
        # New keys are not an error: --json may gain some. Those that were there stay.
        for key, value in expected.items():
            if key in got:
                yield from differences(value, got[key], f"{at}/{key}")
            else:
                yield f"{at}/{key}: missing"
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from differences(one, other, f"{at}[{index}]")
    elif isinstance(expected, float) and isinstance(got, int | float):
        if not math.isclose(expected, got, rel_tol=1e-8):
            yield f"{at}: expected {expected}, got {got}"
    elif expected != got:
        yield f"{at}: expected {expected}, got {got}"


@pytest.mark.parametrize("part", PARTS)
def test_values_are_what_they_were(part: str, place: Path) -> None:
    expected = json.loads((EXPECTED / f"{part}.json").read_text())
    got = json.loads(json.dumps(PARTS[part]()))
    changed = [*differences(expected, got)] + [f"/{name}: new" for name in got.keys() - expected.keys()]
    assert not changed, "\n".join([*changed[:50], f"{len(changed)} differences. {RENEW}"])


@pytest.mark.parametrize("name", ["muon", "documents"])
def test_weights_of_equal_and_of_resumed_runs_are_equal(name: str) -> None:
    with workplace():
        make_datasets()
        whole = digests(train_tiny(name, "whole"))
        assert digests(train_tiny(name, "again")) == whole
        assert digests(train_tiny(name, "resumed", stop_at=10)) == whole
