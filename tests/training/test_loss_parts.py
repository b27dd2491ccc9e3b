"""The loss apart: every partition adds up to the loss, whatever the ranks, rows and padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny import MakeConfig, records

from glassgpt.data.batches import IGNORED_TARGET
from glassgpt.data.token_classes import token_classes
from glassgpt.data.tokenizers import ByteTokenizer, CharTokenizer
from glassgpt.training.evaluate import EvalWindows
from glassgpt.training.loss_parts import LossParts
from glassgpt.training.session import train

PARTITIONS = ("by_kind", "by_frequency", "by_script")


def rows_of(record: dict[str, Any]) -> dict[str, list[tuple[int, float]]]:
    rows = {name: [(count, loss) for count, loss in record[name].values()] for name in PARTITIONS}
    return rows | {"by_position": [(count, loss) for _, _, count, loss in record["by_position"]]}


def test_every_partition_of_every_evaluation_adds_up(tiny: MakeConfig) -> None:
    config = tiny(max_iters=4, eval_interval=2, eval_tokens=100)
    train(config)
    evaluations = records(config.out_dir, "eval")
    assert {record["closing"] for record in evaluations} == {False, True}
    for record in evaluations:
        for name, rows in rows_of(record).items():
            tokens = sum(count for count, _ in rows)
            assert tokens == record["tokens"], name
            mean = sum(count * loss for count, loss in rows) / tokens
            assert mean == pytest.approx(record["loss"], rel=1e-9), name


def test_sums_equal_a_loop_over_the_tokens() -> None:
    text = "to be, or not to be 42\n" * 8
    tokenizer = CharTokenizer("".join(sorted(set(text))))
    tokens = tokenizer.encode(text)
    parts = LossParts(token_classes(tokenizer, tokens), 10, torch.device("cpu"))
    rows = torch.from_numpy(np.stack([tokens[start : start + 11] for start in (0, 11, 30)]))
    x, y = rows[:, :-1], rows[:, 1:].clone()
    y[2, 4:] = IGNORED_TARGET
    losses = torch.rand(3, 10, dtype=torch.float64).masked_fill(y == IGNORED_TARGET, 0.0)
    result = parts.as_dict(parts.sums(x, y, losses).numpy(), parts.counts(x, y).numpy())
    is_space = (y >= 0) & (y == int(tokenizer.encode(" ")[0]))
    assert result["by_kind"]["space"] == [
        int(is_space.sum()),
        pytest.approx(float(losses[is_space].mean())),
    ]
    assert [row[:3] for row in result["by_position"]] == [[1, 1, 3], [2, 3, 6], [4, 7, 9], [8, 10, 6]]
    assert result["by_position"][1][3] == pytest.approx(float(losses[:, 1:3].mean()))
    assert result["by_position"][3][3] == pytest.approx(float(losses[:2, 7:].mean()))


def test_the_passage_is_kept_at_every_evaluation_of_the_validation_split(tiny: MakeConfig) -> None:
    config = tiny(max_iters=4, eval_interval=2, eval_tokens=100)
    train(config)
    (run,) = records(config.out_dir, "run")
    passage = run["data"]["passage"]
    for record in records(config.out_dir, "eval"):
        is_kept = record["split"] == "val" and not record["closing"]
        assert ("passage_losses" in record) == is_kept
        if is_kept:
            assert len(record["passage_losses"]) == len(passage["tokens"]) == config.block_size


class FakeGroup:
    """Of one rank among several: what it sums is its own part."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def all_reduce_sum(self, values: np.ndarray) -> np.ndarray:
        return values


@pytest.mark.parametrize(("world_size", "rows"), [(1, 1), (1, 4), (2, 3), (3, 2)])
def test_exactly_one_rank_has_the_passage_whatever_the_rows(world_size: int, rows: int) -> None:
    tokens = np.frombuffer((b"x" * 9 + b"\n") * 20, dtype=np.uint8).astype(np.int64)
    sums = []
    for rank in range(world_size):
        group: Any = FakeGroup(rank, world_size)
        windows = EvalWindows(tokens, 7, None, rows, torch.device("cpu"), group)
        passage = windows.choose_passage(ByteTokenizer())
        found = [windows.passage_losses(number, y.double()) for number, (_, y, _) in enumerate(windows)]
        own = [one for one in found if one is not None]
        assert len(own) <= 1
        sums.append(windows.gather_passage(own[0] if own else None)["passage_losses"])
    # As losses stood the tokens themselves.
    assert [chr(int(sum(column))) for column in zip(*sums, strict=True)] == passage["tokens"]
    assert passage["start"] == 50
