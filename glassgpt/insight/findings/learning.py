"""What the losses say about the learning: too long, too short, stuck, or not to be told for noise."""

from __future__ import annotations

from glassgpt.insight.findings.capacity import underfit_capacity
from glassgpt.insight.findings.finding import Finder
from glassgpt.insight.findings.losses import eval_noise_finding, init_loss, ppl_vs_loss
from glassgpt.insight.findings.memorised import leaked_data, loss_zero, memorised_data
from glassgpt.insight.findings.overfitting import overfitting
from glassgpt.insight.findings.plateau import plateau
from glassgpt.insight.findings.trend import still_improving

FINDERS: tuple[Finder, ...] = (
    overfitting,
    memorised_data,
    leaked_data,
    loss_zero,
    still_improving,
    plateau,
    underfit_capacity,
    init_loss,
    eval_noise_finding,
    ppl_vs_loss,
)
