"""glass look [RUN]: what a model has learned, token by token."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from glassgpt.cli.command import command, make_console, parse_options, print_json
from glassgpt.config import DEVICE_PATTERN, has_invalid_characters
from glassgpt.errors import raise_if_any
from glassgpt.i18n import check_language, preferred_language, use_language
from glassgpt.sample.sample_options import SampleOptions


@dataclass(frozen=True)
class LookOptions:
    """What the model of a run has learned: its best checkpoint, or RUN@2000, RUN@last. No RUN: the newest.

    A passage of the validation split, coloured by the loss of each token; where the loss stands between
    tables of n-grams; what attention heads do; how much of a sample is copied from the training text.
    """

    # Look at this passage instead of one of the validation split.
    text: str = ""
    # Another checkpoint of the run (2000, last, best), or another run: shows the difference on each token.
    against: str = ""
    # The folder of the dataset that it was trained on, if it is not where it was.
    data_dir: str = ""
    # auto, cpu, cuda, cuda:1, mps
    device: str = "auto"
    # Print one JSON document.
    json: bool = False
    # Language: en, hi, ar. Default: that of your locale.
    lang: str = ""


@command("glass look [RUN]", LookOptions)
def look(words: list[str]) -> int:
    names, options, problems = parse_options(words, LookOptions)
    if len(names) > 1:
        problems.append(f"one run at a time, not {' and '.join(names)}; --against=RUN2 compares two")
    if not DEVICE_PATTERN.fullmatch(options.device):
        problems.append(f"--device={options.device} is not one of auto, cpu, cuda, cuda:N, mps")
    if has_invalid_characters(options.text):
        problems.append("--text is not text in UTF-8")
    check_language(options.lang, problems)
    raise_if_any(problems)
    from glassgpt.runs.checkpoint_looks import append_look
    from glassgpt.sample.look import training_dataset
    from glassgpt.sample.look_document import look as look_at
    from glassgpt.sample.sampler import find_model_source, load_sampler
    from glassgpt.show.terminal.look_view import print_look

    # In float32 everywhere: a token's loss should not depend on the card.
    sampling = SampleOptions(device=options.device, dtype="float32", data_dir=options.data_dir)
    source = find_model_source(names[0] if names else None, sampling)
    sampler, against = load_sampler(source, sampling), None
    if options.against:
        is_checkpoint = options.against.isdecimal() or options.against in ("last", "best")
        run = sampler.checkpoint.folder
        against = load_sampler(f"{run}@{options.against}" if is_checkpoint else options.against, sampling)
    document = look_at(sampler, training_dataset(sampler, options.data_dir), options.text, against)
    if (kept := document.as_checkpoint_look()) is not None:
        with contextlib.suppress(OSError):  # somebody else's run may be read, too
            append_look(sampler.checkpoint.folder, kept)
    if options.json:
        print_json(document.as_dict())
        return 0
    with use_language(options.lang or preferred_language()):
        print_look(document, make_console(), make_console(stderr=True))
    return 0
