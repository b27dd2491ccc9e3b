"""`glass look` as one document: a checkpoint, a passage, its heads, and what its run recorded about its loss.

document = look(sampler, dataset, text="", against=None)
print(json.dumps(document.as_dict()))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from glassgpt.data.dataset import Dataset
from glassgpt.data.tokenizers import tokenizer_digest
from glassgpt.errors import UserError
from glassgpt.record import journal
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.ladder_progress import LadderProgress
from glassgpt.runs.reading import read_run_log
from glassgpt.sample.look import (
    HeadScores,
    Passage,
    PassageView,
    SampleOriginality,
    choose_passage,
    look_at_passage,
    measure_originality,
    piece_texts,
    score_heads,
)
from glassgpt.sample.sampler import Sampler
from glassgpt.training.weight_source import LoadedCheckpoint

SCHEMA_VERSION = 1  # of the JSON document; new keys do not raise it
PARTITIONS = ("by_kind", "by_frequency", "by_script")


@dataclass(frozen=True)
class LossByClass:
    """The loss of an evaluation, apart; see training/loss_parts.py. Only what the journal has."""

    iteration: int
    loss: float
    classes: Mapping[str, Mapping[str, tuple[int, float]]]  # by partition: tokens and mean loss of a class
    by_position: tuple[tuple[int, int, int, float], ...]  # from, to, tokens, mean loss


@dataclass(frozen=True)
class LookDocument:
    sampler: Sampler
    passage: Passage
    view: PassageView
    other: tuple[Sampler, PassageView] | None  # --against: of the same passage
    heads: HeadScores
    originality: SampleOriginality | None  # None: the dataset is not here
    ladder: LadderProgress | None  # as far as the run had come at this checkpoint
    evaluation: LossByClass | None

    @property
    def texts(self) -> list[str]:
        return piece_texts(self.sampler.tokenizer, self.passage.tokens)

    def guess_texts(self, index: int) -> list[tuple[str, float]]:
        return [(self.sampler.tokenizer.decode([token]), p) for token, p in self.view.guesses[index]]

    def as_dict(self) -> dict[str, Any]:
        tokens = [
            {
                "id": self.passage.tokens[index],
                "text": text,
                "loss": self.view.losses[index],
                "guesses": [{"text": guess, "p": p} for guess, p in self.guess_texts(index)],
            }
            for index, text in enumerate(self.texts)
        ]
        heads, other = self.heads, None
        if self.other is not None:
            sampler, view = self.other
            other = {**_describe(sampler), "loss": view.mean_loss, "losses": view.losses}
        return {
            "schema_version": SCHEMA_VERSION,
            "checkpoint": _describe(self.sampler),
            "passage": {
                "start": self.passage.start,
                "omitted": self.passage.omitted,
                "loss": self.view.mean_loss,
                "tokens": tokens,
            },
            "against": other,
            "heads": {
                "previous_token": heads.previous_token.tolist(),
                "previous_token_uniform": heads.previous_token_uniform,
                "induction": None if heads.induction is None else heads.induction.tolist(),
                "induction_uniform": heads.induction_uniform,
                "first_copy_loss": heads.first_copy_loss,
                "second_copy_loss": heads.second_copy_loss,
            },
            "originality": None if self.originality is None else asdict(self.originality),
            "ladder": None if self.ladder is None else _ladder_dict(self.ladder),
            "evaluation": None
            if self.evaluation is None
            else {
                "iter": self.evaluation.iteration,
                "loss": self.evaluation.loss,
                **self.evaluation.classes,
                "by_position": self.evaluation.by_position,
            },
        }


def _describe(sampler: Sampler) -> dict[str, Any]:
    loaded = sampler.checkpoint
    return {
        "source": loaded.description,
        "iter": loaded.iter,
        "val_loss": loaded.val_loss,
        "parameters": sampler.model.parameter_count(),
        "tokenizer": sampler.tokenizer.name,
    }


def _ladder_dict(progress: LadderProgress) -> dict[str, Any]:
    highest, ahead = progress.highest, progress.next_rung
    return {
        "rungs": [asdict(rung) for rung in progress.ladder.rungs],
        "is_assumed": progress.is_assumed,
        "passed_at": {str(order): one.iteration for order, one in progress.passed.items()},
        "highest_order": None if highest is None else highest.order,
        "next_order": None if ahead is None else ahead.order,
    }


def look(
    sampler: Sampler, dataset: Dataset | None, text: str = "", against: Sampler | None = None
) -> LookDocument:
    if against is not None and tokenizer_digest(against.tokenizer) != tokenizer_digest(sampler.tokenizer):
        raise UserError(
            f"--against: {against.checkpoint.description} has another tokenizer than "
            f"{sampler.checkpoint.description}, so their losses per token cannot be compared"
        )
    passage = choose_passage(sampler, dataset, text)
    context = sampler.model.config.block_size
    if against is not None and len(passage.tokens) > against.model.config.block_size:
        raise UserError(
            f"--against: {against.checkpoint.description} has a context of "
            f"{against.model.config.block_size} tokens, and {sampler.checkpoint.description} one of "
            f"{context}: look at the one with the shorter context first"
        )
    view = look_at_passage(sampler, passage)
    ladder, evaluation = _read_journal(sampler.checkpoint)
    return LookDocument(
        sampler=sampler,
        passage=passage,
        view=view,
        other=None if against is None else (against, look_at_passage(against, passage)),
        heads=score_heads(sampler, view.attention),
        originality=None if dataset is None else measure_originality(sampler, dataset),
        ladder=ladder,
        evaluation=evaluation,
    )


def _read_journal(loaded: LoadedCheckpoint) -> tuple[LadderProgress | None, LossByClass | None]:
    """What the run had recorded by the time of this checkpoint."""
    path = loaded.folder / journal.FILE_NAME
    if loaded.kind != "run" or loaded.iter is None or not path.is_file():
        return None, None
    progress = Analysis(read_run_log(str(loaded.folder))).ladder_progress
    evaluation = None
    for record in journal.read_effective(path):
        if record["kind"] == "eval" and record.get("split") == "val" and record["iter"] <= loaded.iter:
            evaluation = read_loss_parts(record) or evaluation
    return progress and progress.until(loaded.iter), evaluation


def read_loss_parts(record: journal.Record) -> LossByClass | None:
    """Of an `eval` record; None where it has no parts, or they are no numbers."""
    try:
        classes = {
            partition: {
                str(name): (int(tokens), float(loss)) for name, (tokens, loss) in record[partition].items()
            }
            for partition in PARTITIONS
            if partition in record
        }
        positions = tuple(
            (int(first), int(last), int(tokens), float(loss))
            for first, last, tokens, loss in record["by_position"]
        )
        return LossByClass(int(record["iter"]), float(record["loss"]), classes, positions)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
