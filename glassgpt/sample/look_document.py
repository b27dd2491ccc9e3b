"""`glass look` as one document: a checkpoint, a passage, its heads, and what its run recorded about its loss.

document = look(sampler, dataset, text="", against=None)
print(json.dumps(document.as_dict()))
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from glassgpt.data.dataset import Dataset
from glassgpt.data.passage import piece_texts
from glassgpt.data.tokenizers import tokenizer_digest
from glassgpt.errors import UserError
from glassgpt.record import journal
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.checkpoint_looks import CheckpointLook, append_look
from glassgpt.runs.ladder_progress import LadderProgress
from glassgpt.runs.loss_by_class import LossByClass, passage_texts, read_loss_parts
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.run_log import RunLog
from glassgpt.sample.look import (
    HeadScores,
    Passage,
    PassageView,
    SampleOriginality,
    choose_passage,
    look_at_passage,
    measure_originality,
    score_heads,
    training_dataset,
)
from glassgpt.sample.sampler import Sampler
from glassgpt.training.checkpoint.checkpoints import LoadedCheckpoint

SCHEMA_VERSION = 1  # of the JSON document; new keys do not raise it


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

    def as_checkpoint_look(self) -> CheckpointLook | None:
        """To keep in the run's folder; None: not of a run, or of a passage that the user gave."""
        loaded = self.sampler.checkpoint
        if loaded.kind != "run" or loaded.iter is None or self.passage.start is None:
            return None
        stored = {field.name for field in fields(CheckpointLook)}
        samples = {} if self.originality is None else asdict(self.originality)
        scores: dict[str, Any] = {
            name: tuple(map(_rounded, value)) if isinstance(value, list) else value
            for name, value in _head_scores(self.heads).items()
        }
        look = CheckpointLook(
            iteration=loaded.iter,
            start=str(loaded.state.get("start", "")),
            passage_start=self.passage.start,
            passage_losses=_rounded(self.view.losses),
            guesses=tuple(
                tuple((text, round(p, 4)) for text, p in self.guess_texts(index))
                for index in range(len(self.passage.tokens))
            ),
            **scores,
            **{name: value for name, value in samples.items() if name in stored},
        )
        numbers = (*look.passage_losses, *itertools.chain(*look.previous_token))
        return look if all(map(math.isfinite, numbers)) else None  # else its weights are not finite

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
        other = None
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
            "heads": _head_scores(self.heads),
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


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in values)


def _head_scores(heads: HeadScores) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(heads).items()
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
    loaded = sampler.checkpoint
    run_log = _read_run(loaded)
    passage = choose_passage(sampler, dataset, text, kept_passage_start(loaded))
    context = sampler.model.config.block_size
    if against is not None and len(passage.tokens) > against.model.config.block_size:
        raise UserError(
            f"--against: {against.checkpoint.description} has a context of "
            f"{against.model.config.block_size} tokens, and {sampler.checkpoint.description} one of "
            f"{context}: look at the one with the shorter context first"
        )
    view = look_at_passage(sampler, passage)
    ladder, evaluation = None, None
    if run_log is not None and loaded.iter is not None:
        progress = Analysis(run_log).ladder_progress
        ladder, evaluation = progress and progress.until(loaded.iter), _evaluation_at(run_log, loaded.iter)
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


def look_and_keep(sampler: Sampler) -> None:
    """For the page, the report and findings: in looks.jsonl of its run."""
    checkpoint_look = look(sampler, training_dataset(sampler)).as_checkpoint_look()
    if checkpoint_look is None:
        raise UserError(f"the losses of {sampler.checkpoint.description} are not finite")
    append_look(sampler.checkpoint.folder, checkpoint_look)


def _read_run(loaded: LoadedCheckpoint) -> RunLog | None:
    if loaded.kind != "run" or loaded.iter is None or not (loaded.folder / journal.FILE_NAME).is_file():
        return None
    return read_run_log(str(loaded.folder))


def kept_passage_start(loaded: LoadedCheckpoint) -> int | None:
    """Where the passage begins whose losses the run keeps; None: it keeps none."""
    run_log = _read_run(loaded)
    passage = None if run_log is None else passage_texts(run_log.setup.data)
    return passage and passage[0]


def _evaluation_at(run_log: RunLog, iteration: int) -> LossByClass | None:
    """The last one that the run had recorded by the time of this checkpoint."""
    done = [one for one in (*run_log.evals, run_log.closing_eval) if one is not None]
    parts = [part for one in done if (part := read_loss_parts(one)) and part.iteration <= iteration]
    return parts[-1] if parts else None
