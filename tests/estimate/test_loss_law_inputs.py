"""What of a run decides how it learns is taken from its settings as the trainer takes it."""

from __future__ import annotations

import pytest

from glassgpt.config import TrainConfig
from glassgpt.estimate.loss_law import loss_law_inputs, lr_weighted_progress
from glassgpt.schedule import learning_rate


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(max_iters=1000, warmup_iters=100),
        TrainConfig(max_iters=1000, warmup_iters=0, min_lr=0.0),
        TrainConfig(max_iters=1000, schedule="wsd", wsd_decay_fraction=0.3),
        TrainConfig(max_iters=1000, schedule="wsd", wsd_decay_fraction=0.8, warmup_iters=500),
        TrainConfig(max_iters=1000, lr_decay_iters=600),
        TrainConfig(max_iters=1000, lr_decay_iters=100, warmup_iters=200),
        TrainConfig(max_iters=1000, decay_lr=False),
    ],
    ids=["cosine", "to nothing", "wsd", "warm-up into the fall", "ends early", "at once", "constant"],
)
def test_the_rate_is_the_trainers(config: TrainConfig) -> None:
    text = {
        "batch_tokens": 1024,
        "train_tokens": 10**6,
        "dataset": "",
        "tokenizer": "char",
        "bytes_per_token": 1.0,
    }
    setup = loss_law_inputs(config, vocab_size=65, **text)  # type: ignore[arg-type]
    for update in (0, 1, 50, 99, 100, 250, 599, 700, 999):
        assert setup.lr_schedule.at(update) == pytest.approx(
            learning_rate(config, update) / config.learning_rate
        )
    exact = sum(setup.lr_schedule.at(update) ** 0.6 for update in range(1000))
    assert lr_weighted_progress(setup.lr_schedule, setup.max_iters).at(1000) == pytest.approx(
        exact, rel=0.005
    )


def test_setup_takes_what_the_config_says() -> None:
    config = TrainConfig(n_layer=6, n_head=6, n_embd=384, block_size=256, dropout=0.2, max_iters=5000)
    setup = loss_law_inputs(
        config,
        vocab_size=65,
        batch_tokens=16_384,
        train_tokens=1_003_854,
        dataset="shakespeare_char",
        tokenizer="char",
        bytes_per_token=1.0,
    )
    assert setup.parameters == 10_646_784
    assert (setup.dropout, setup.max_iters, setup.warmup_iters) == (0.2, 5000, 250)
    assert setup.min_lr_ratio == pytest.approx(0.1)
