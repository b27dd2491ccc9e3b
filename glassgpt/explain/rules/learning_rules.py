"""What the losses say about the learning: too long, too short, stuck, or not to be told for noise."""

from __future__ import annotations

from glassgpt.explain.rule import Rule
from glassgpt.explain.rules.capacity import underfit_capacity
from glassgpt.explain.rules.final_loss import eval_noise, init_loss, ppl_vs_loss
from glassgpt.explain.rules.memorised import leaked_data, loss_zero, memorised_data
from glassgpt.explain.rules.overfitting import overfitting
from glassgpt.explain.rules.plateau import plateau
from glassgpt.explain.rules.trend import still_improving

RULES: tuple[Rule, ...] = (
    overfitting,
    memorised_data,
    leaked_data,
    loss_zero,
    still_improving,
    plateau,
    underfit_capacity,
    init_loss,
    eval_noise,
    ppl_vs_loss,
)
