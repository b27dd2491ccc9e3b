"""What the loss apart costs: an evaluation with its partitions and its passage, and without, in alternation.

    python -m bench.loss_parts data/shakespeare_char --preset shakespeare_char_cpu --rounds 15

CPU time of one thread is compared, which other programs on the machine change little; on a card wall time.
The last line is one JSON document: milliseconds of an evaluation, of its partitions timed by themselves,
their share, and the median over the pairs of how much longer an evaluation with them took.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from glassgpt.config import TrainConfig
from glassgpt.data.dataset import open_dataset
from glassgpt.data.token_classes import token_classes
from glassgpt.data.tokenizers import dataset_tokenizer
from glassgpt.estimate.batching import eval_batch_rows, plan_batch
from glassgpt.model.gpt import GPT, make_gpt_config
from glassgpt.recipe import find_recipe
from glassgpt.record.ledger import Ledger
from glassgpt.training.device import ExecutionConfig
from glassgpt.training.evaluate import EvalWindows, evaluate
from glassgpt.training.learner import Learner
from glassgpt.training.loader import BatchLoader
from glassgpt.training.loss_parts import LossParts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.loss_parts", description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--preset", default="shakespeare_char_cpu")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    settings: dict[str, Any] = dict(find_recipe(options.preset).settings)
    config = TrainConfig(**settings | {"device": options.device})
    device = torch.device(options.device)
    torch.set_num_threads(1)
    dataset = open_dataset(options.data)
    tokenizer = dataset_tokenizer(dataset)
    train, val = dataset.tokens("train"), dataset.tokens("val")
    plan, _ = plan_batch(config, device.type, None)
    execution = ExecutionConfig(device, "float32" if device.type == "cpu" else "bfloat16")
    model = GPT(make_gpt_config(config, dataset.manifest.vocab_size)).to(device)
    loader = BatchLoader(train, config.block_size, plan, config.seed, device)
    learner = Learner(model, config, execution, plan, loader, Ledger())
    rows = eval_batch_rows(config, device.type)
    eval_tokens = (config.eval_iters or 20) * (config.batch_size or 12) * config.block_size
    plain, apart = (EvalWindows(val, config.block_size, eval_tokens, rows, device) for _ in range(2))
    apart.choose_passage(tokenizer)
    parts = LossParts(token_classes(tokenizer, train), config.block_size, device)

    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def measure(windows: EvalWindows, loss_parts: LossParts | None) -> float:
        execution.synchronize()
        started = clock()
        assert evaluate(learner, windows, Ledger(), parts=loss_parts) is not None
        execution.synchronize()
        return 1000 * (clock() - started)

    def measure_parts() -> float:
        """What `evaluate` does for the partitions, without the model."""
        batches = [(x, y, torch.rand(y.shape, dtype=torch.float64, device=device)) for x, y, _ in apart]
        started = clock()
        sums = [parts.sums(x, y, losses) for x, y, losses in batches]
        parts.as_dict(torch.stack(sums).sum(0).cpu().numpy(), apart.part_counts(parts))
        return 1000 * (clock() - started)

    for windows, loss_parts in ((plain, None), (apart, parts)):  # caches, and the counts of each class
        measure(windows, loss_parts)
    pairs = [(measure(plain, None), measure(apart, parts)) for _ in range(options.rounds)]
    alone_ms = min(measure_parts() for _ in range(options.rounds))
    evaluation_ms = min(without for without, _ in pairs)
    result = {
        "preset": options.preset,
        "device": options.device,
        "tokens": len(plain) * config.block_size,
        "evaluation_ms": round(evaluation_ms, 2),
        "parts_ms": round(alone_ms, 2),
        "share": round(alone_ms / evaluation_ms, 4),
        "median_difference": round(statistics.median(one / other - 1 for other, one in pairs), 4),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
