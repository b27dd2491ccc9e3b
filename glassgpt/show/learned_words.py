"""What a model has learned in words, for the terminal and the page: the classes that an evaluation's loss is
broken down by, and what its samples are like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from glassgpt.i18n import Message, say, translate
from glassgpt.runs.loss_by_class import LossByClass

if TYPE_CHECKING:  # torch is imported there
    from glassgpt.runs.checkpoint_looks import CheckpointLook
    from glassgpt.sample.look import SampleOriginality

_PARTITION_NAMES: dict[str, Message] = {
    "by_kind": say("look_view.by_kind"),
    "by_frequency": say("look_view.by_frequency"),
    "by_script": say("look_view.by_script"),
    "by_position": say("look_view.by_position"),
}
_CLASS_NAMES: dict[str, Message] = {
    "line_end": say("look_view.class.line_end"),
    "space": say("look_view.class.space"),
    "digit": say("look_view.class.digit"),
    "punctuation": say("look_view.class.punctuation"),
    "word_start": say("look_view.class.word_start"),
    "word_inside": say("look_view.class.word_inside"),
    "other": say("look_view.class.other"),
    "half": say("look_view.class.half"),
    "to_90": say("look_view.class.to_90"),
    "to_99": say("look_view.class.to_99"),
    "rare": say("look_view.class.rare"),
    "unseen": say("look_view.class.unseen"),
    "common": say("look_view.class.common"),
}


def named_partitions(evaluation: LossByClass) -> Iterator[tuple[str, list[tuple[str, int, float]]]]:
    """Title and rows (name, tokens, loss) of each partition that says something."""
    for partition, classes in evaluation.classes.items():
        if len(classes) > 1:
            rows = [(str(_CLASS_NAMES.get(name, name)), *row) for name, row in classes.items()]
            yield str(_PARTITION_NAMES[partition]), rows
    if evaluation.by_position:
        positions = [
            (str(first) if first == last else f"{first} … {last}", tokens, loss)
            for first, last, tokens, loss in evaluation.by_position
        ]
        yield str(_PARTITION_NAMES["by_position"]), positions


def sample_sentences(measured: CheckpointLook | SampleOriginality) -> list[tuple[str, str]]:
    """Label and sentence of what is known: words, then brackets and quotes."""
    sentences = []
    if measured.known_words is not None and measured.val_known_words is not None:
        words = translate("look_view.words", share=measured.known_words, val_share=measured.val_known_words)
        sentences.append((translate("look_view.label.words"), words))
    if measured.brackets_closed is not None:
        opened, share = measured.brackets_opened, measured.brackets_closed
        if measured.val_brackets_closed is None:
            brackets = translate("look_view.brackets", opened=opened, share=share)
        else:
            val_share = measured.val_brackets_closed
            brackets = translate("look_view.brackets.val", opened=opened, share=share, val_share=val_share)
        sentences.append((translate("look_view.label.brackets"), brackets))
    return sentences
