"""What the model has learned, for the page's panel learned_panel.js: the ladder, the passage and the loss
apart at each evaluation, and what was seen in its checkpoints."""

from __future__ import annotations

from typing import Any

from glassgpt.explain.rules.learned import baseline_name, ladder_position
from glassgpt.i18n import render_text, translate
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.checkpoint_looks import CheckpointLook
from glassgpt.runs.loss_by_class import passage_texts, read_loss_parts
from glassgpt.show.learned_words import named_partitions, sample_sentences
from glassgpt.show.page.series import rounded

_MAX_EVALUATIONS = 60  # evenly spaced, with the first and the last
_MAX_LOOKS = 20  # the latest


def learned_view(run: Analysis) -> dict[str, Any]:
    """{} where nothing of it is known, as of a foreign log."""
    log, passage = run.log, passage_texts(run.log.setup.data)
    evaluations = [parts for one in log.evals if (parts := read_loss_parts(one)) is not None]
    if len(evaluations) > _MAX_EVALUATIONS:
        step = (len(evaluations) - 1) / (_MAX_EVALUATIONS - 1)
        evaluations = [evaluations[round(index * step)] for index in range(_MAX_EVALUATIONS)]
    ladder = _ladder(run)
    if not evaluations and ladder is None:
        return {}
    start, texts = passage or (None, [])
    return {
        "ladder": ladder,
        "passage": texts,
        "evaluations": [
            {
                "at": one.iteration,
                "loss": rounded(one.loss),
                "losses": one.passage_losses if len(one.passage_losses) == len(texts) else [],
                "parts": [
                    {"title": title, "rows": [[name, tokens, rounded(loss)] for name, tokens, loss in rows]}
                    for title, rows in named_partitions(one)
                ],
            }
            for one in evaluations
        ],
        "looks": [
            _look(one) for one in log.looks[-_MAX_LOOKS:] if texts and one.passage_start in (None, start)
        ],
    }


def _ladder(run: Analysis) -> dict[str, Any] | None:
    progress = run.ladder_progress
    if progress is None:
        return None
    sentence = ""
    if progress.highest is not None:
        sentence = f"{render_text([ladder_position(progress.highest, progress.next_rung)])}."
    return {
        "sentence": sentence,
        "rungs": [
            {
                "name": render_text([baseline_name(rung.order)]),
                "loss": rounded(rung.loss),
                "bits": None if rung.bits_per_byte is None else rounded(rung.bits_per_byte),
                "at": progress.passed[rung.order].iteration if rung.order in progress.passed else None,
                "best": rung is progress.ladder.best,
            }
            for rung in progress.ladder.rungs
        ],
    }


def _look(look: CheckpointLook) -> dict[str, Any]:
    sentences = [text for _, text in sample_sentences(look)]
    if look.copied_tokens is not None:
        copied = translate(
            "look_view.copied",
            sample_tokens=look.sample_tokens,
            tokens=look.copied_tokens,
            text=repr(look.copied_text),
            val_tokens=look.val_copied_tokens,
        )
        sentences.append(copied)
    return {
        "at": look.iteration,
        "losses": look.passage_losses,
        "guesses": look.guesses,
        "previous": look.previous_token,
        "previous_uniform": rounded(look.previous_token_uniform),
        "induction": look.induction,
        "induction_uniform": look.induction_uniform and rounded(look.induction_uniform),
        "sentences": sentences,
    }
