"""Lines that say that a checkpoint was saved, in anybody's words.

    read_save("new best -> best.pt (0.3s)", builder)            # at the latest step
    read_save("save models to out/checkpoint-90", builder)      # at iteration 90

A trainer's own lines are read by its reader. These are of home-made loops, and of what people print around a
trainer.
"""

from __future__ import annotations

import re

from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import parse_ms

_WEIGHTS = r"pth?|ckpt|safetensors|h5|keras|npz|pkl|bin"
_SAVED = re.compile(
    r"\b(?:saved|saving|wrote|writing) (?:\w{1,20} ){0,2}(?:checkpoint|model|weights|ckpt)s?\b"
    r"(?! card| config)"
    r"|\b(?:checkpoint|model|module|weights|new best)s?\W{1,4}"
    r"(?:(?:epoch|step|iter(?:ation)?) \d{1,12} )?(?:was |is )?"
    r"(?:saved|sauvegardée?s?|gespeichert|guardado|salvo)\b"
    r"|(?<!to )\bsave (?:\w{1,20} ){0,2}(?:checkpoint|model|weight)s? (?:for|at|after) (?:epoch|step|iter)"
    r"|(?<!to )\bsave (?:\w{1,20} ){0,2}(?:checkpoint|model|weight)s? (?:to|in|into|as) \S*/"
    r"|^(?:.{0,60} )?checkpoint \w{1,12} (?:after|at) (?:step|iter|iteration) \d"
    # A file of weights, in any words, or a folder of them.
    r"|(?<![\w.])(?:sav(?:ed|ing|e)|wrote|writing|sauvegard\w{1,4}|gespeichert|guardad[ao]|guardando"
    rf"|salv(?:o|ando|ato))\b.{{0,200}}\.(?:{_WEIGHTS})\b|(?:保存|저장).{{0,200}}\.(?:pth?|ckpt|safetensors)\b"
    rf"|\b(?:new best|done|finished|completed?)\b.{{0,120}}(?:→|->|=>)\s{{0,4}}\S{{1,200}}\.(?:{_WEIGHTS})\b"
    r"|\bsaved (?:to|in|into|at) (?:\S{0,200}/)?(?:models?|checkpoints?|ckpts?|weights)(?![\w.])"
)
_SAVE_WORDS = (
    "->", "→", "sav", "writ", "wrote", "checkpoint", "auvegard", "speicher", "guard", "salv", "new best",
    "保存", "저장",
)  # fmt: skip
# No weights, wherever they are saved: `training data saved to data.npz`.
_OTHER_THINGS = re.compile(
    r"\b(?:tokenizer|vocab\w*|plots?|figures?|curves?|history|metrics|results?|predictions?|samples?|data"
    r"|dataset|embeddings?|config\w*|logs?|losses)\b(?=.{0,60}\bsav(?:ed|ing)\b)"
    # One that is there, or is not, to begin with: `No saved model found`, `loading the saved model from`.
    r"|\b(?:no|not|without|any|never|found|load\w*|restor\w*|resum\w*|us(?:ing|ed)|from)"
    r" (?:(?:an?|the|previously|existing) ){0,2}saved\b|\bsaved \w{1,20} (?:was )?not found\b"
    r"|\bsav(?:ed|ing|e) (?:the )?(?:\w{1,20} )?(?:tokenizer|vocab\w*|plots?|figures?|curves?|history|metrics"
    r"|results?|predictions?|samples?|data|dataset|embeddings?|config\w*|logs?|losses)\b(?!/)"
)
_SOURCE = re.compile(r"\(r?f[\"'][^\"']{0,200}\{[a-z_]")  # code that prints such a line
_SAVE_TIME = re.compile(r"\b(?:in|took) (\d{1,6}(?:\.\d{1,9})?)\s?(ms|s)(?:ec(?:ond)?s?)?\b")
# In a path.
_SAVED_AT = re.compile(r"(?:step|iter|ckpt|checkpoint|epoch|model)s?[_-](\d{1,12})(?!\d|\.\d|/|-of-)")


def save_begins(lower: str) -> int | None:
    """Where a line in lower case says that something was saved; None: it does not."""
    if not any(word in lower for word in _SAVE_WORDS):
        return None
    match = _SAVED.search(lower)
    if match is None or _OTHER_THINGS.search(lower) or _SOURCE.search(lower):
        return None
    return match.start()


def read_save(
    lower: str, builder: RunBuilder, last: int | None, step: int | None = None, counts_epochs: bool = False
) -> None:
    """At the iteration that the line (`step`) or the file's name says, if the run can be there; else, and
    where an iteration is an epoch, at the `last` one. Files with other numbers are other checkpoints."""
    path = _SAVED_AT.search(lower)
    at = step if step is not None else int(path[1]) if path else None
    is_near = at is not None and last is not None and last <= at <= last + max(1, last // 2)
    spent = _SAVE_TIME.search(lower)
    builder.add_checkpoint(
        at if is_near and not counts_epochs else last,
        parse_ms(spent[1], spent[2]) if spent else None,
        name=path[1] if path else "",
    )
