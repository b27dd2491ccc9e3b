"""On a card a profile is of kernels, however an update is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import MakeConfig, records, run_losses

from glassgpt.training.session import train

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "settings",
    [
        {"graph": "off", "kernels": "plain"},
        {"graph": "on", "kernels": "plain"},
        {"graph": "off", "kernels": "triton"},
        {"compile": "on", "kernels": "plain"},
    ],
)
def test_kernels_are_seen(tiny: MakeConfig, settings: dict[str, Any]) -> None:
    torch.compiler.reset()  # which gives up after so many models, and tests before this one compile too
    common = {"device": "cuda", "n_embd": 64, "block_size": 32, "max_iters": 20, "eval_interval": 100}
    run = train(tiny("watched", **common | settings | {"profile": "8:12"}))
    assert run.reason == "finished"
    (record,) = records(run.out_dir, "profile")
    assert (record["of"], record["updates"]) == ("kernels", 4)
    assert 0 < record["busy"] <= 1
    assert not any(piece["name"].startswith("aten::") for piece in record["top"])
    assert any(piece["calls"] % 4 == 0 for piece in record["top"])  # the same in every update
    plain = train(tiny("plain", **common | settings))
    assert run_losses(run.out_dir) == pytest.approx(run_losses(plain.out_dir), abs=2e-3)  # the order of sums
