"""Where a run stands on the ladder of its dataset (data/ladder.py), and when it passed each rung."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassgpt.data.ladder import Ladder, Rung, known_ladder, ladder_from_rows
from glassgpt.runs.noise import VISIBLE_STANDARD_ERRORS, EvalNoise
from glassgpt.runs.run_log import LoggedEvaluation, RunLog
from glassgpt.runs.trajectory import Trajectory


@dataclass(frozen=True)
class LadderProgress:
    ladder: Ladder
    is_assumed: bool  # by the dataset's name: the log itself does not have it
    passed: dict[int, LoggedEvaluation]  # by order: the first evaluation clearly below that rung
    best: LoggedEvaluation  # the lowest validation loss

    @property
    def highest(self) -> Rung | None:
        """The lowest rung that was passed."""
        rungs = [rung for rung in self.ladder.rungs if rung.order in self.passed]
        return min(rungs, key=lambda rung: rung.loss, default=None)

    @property
    def next_rung(self) -> Rung | None:
        """The highest rung that was not passed; None: the best table was."""
        rungs = [rung for rung in self.ladder.rungs if rung.order not in self.passed]
        return max(rungs, key=lambda rung: rung.loss, default=None)

    def until(self, iteration: int) -> LadderProgress:
        """As far as it had come by then."""
        passed = {
            order: evaluation
            for order, evaluation in self.passed.items()
            if evaluation.iteration is not None and evaluation.iteration <= iteration
        }
        return replace(self, passed=passed)


def find_ladder_progress(
    run_log: RunLog, trajectory: Trajectory, noise: EvalNoise | None
) -> LadderProgress | None:
    """None where the ladder of its data is not known, or nothing was evaluated."""
    if run_log.val_metric != "loss":
        return None
    ladder = ladder_from_rows(run_log.setup.data.get("ladder"))
    is_assumed = ladder is None
    # Another tokenizer would make other tokens of the same text: characters have 65.
    if ladder is None and run_log.setup.settings.get("vocab_size", 65) == 65:
        ladder = known_ladder(str(run_log.setup.settings.get("dataset", "")))
    evals = [(evaluation, evaluation.val_loss or 0.0) for evaluation in trajectory.evals]
    if ladder is None or not evals:
        return None
    margin = VISIBLE_STANDARD_ERRORS * noise.std if noise else 0.0
    passed = {}
    for rung in ladder.rungs:
        below = next((evaluation for evaluation, loss in evals if loss + margin < rung.loss), None)
        if below is not None:
            passed[rung.order] = below
    return LadderProgress(ladder, is_assumed, passed, min(evals, key=lambda pair: pair[1])[0])
