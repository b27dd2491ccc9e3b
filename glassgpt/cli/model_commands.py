"""What a trained model does: glass sample [RUN] generates text, glass look [RUN] shows what it has learned,
token by token, glass eval MODEL TEXT|DATASET ... its loss, perplexity and bits per byte on any text."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassgpt.cli.command import command, make_console, parse_options, print_json
from glassgpt.config import device_problems, has_invalid_characters
from glassgpt.errors import raise_if_any
from glassgpt.i18n import check_language, preferred_language, use_language
from glassgpt.sample.sample_options import (
    EvalOptions,
    SampleOptions,
    find_eval_problems,
    find_problems,
    prompt_text,
)

if TYPE_CHECKING:
    from glassgpt.sample.eval_texts import EvalText, ModelOnTexts


@command("glass sample [RUN]", SampleOptions)
def sample(words: list[str]) -> int:
    names, options, problems = parse_options(words, SampleOptions)
    if len(names) > 1:
        problems.append(
            f"one run at a time, not {' and '.join(names)}; --compare=RUN2 shows another beside it"
        )
    problems += find_problems(options)
    raise_if_any(problems)
    text = prompt_text(options.start)
    from glassgpt.sample.sampler import find_model_source, load_sampler
    from glassgpt.show.terminal import sample_view

    sources = [find_model_source(names[0] if names else None, options)]
    sources += [options.compare] if options.compare else []
    samplers = [load_sampler(source, options) for source in sources]
    prompts = [sampler.encode(text) for sampler in samplers]
    err = make_console(stderr=True)
    for sampler, prompt in zip(samplers, prompts, strict=True):
        parameters = sampler.model.parameter_count()
        sample_view.print_model(sampler.checkpoint, parameters, sampler.choices, err)
        sample_view.print_prompt_truncation(sampler, prompt, err)
    if len(samplers) == 1:
        sample_view.stream_samples(samplers[0], text, prompts[0], options, err)
    else:
        sample_view.print_side_by_side(samplers, text, prompts, options, make_console())
    return 0


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
    problems += device_problems(options.device)
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
    if (checkpoint_look := document.as_checkpoint_look()) is not None:
        with contextlib.suppress(OSError):  # somebody else's run may be read, too
            append_look(sampler.checkpoint.folder, checkpoint_look)
    if options.json:
        print_json(document.as_dict())
        return 0
    with use_language(options.lang or preferred_language()):
        print_look(document, make_console(), make_console(stderr=True))
    return 0


@command("glass eval RUN|MODEL TEXT|DATASET ...", EvalOptions)
def eval(words: list[str]) -> int:
    names, options, problems = parse_options(words, EvalOptions)
    if len(names) < 2:
        problems.append("name a model, and what to evaluate it on: glass eval RUN my.txt, or data/DATASET")
    problems += find_eval_problems(options)
    raise_if_any(problems)
    from glassgpt.sample.eval_texts import compare_models, open_text
    from glassgpt.show.terminal import eval_view

    texts = [open_text(name) for name in names[1:]]
    specs = [names[0], *([options.against] if options.against else [])]
    with use_language(options.lang or preferred_language()):
        evaluated = _evaluate(specs, texts, options)
        comparison = compare_models(*evaluated) if options.against else None
        if options.json:
            print_json(eval_view.as_document(evaluated, comparison))
        else:
            eval_view.print_evaluation(evaluated, comparison, make_console())
    return 0


def _evaluate(specs: Sequence[str], texts: Sequence[EvalText], options: EvalOptions) -> list[ModelOnTexts]:
    """Each model on all texts, with its progress on stderr."""
    from glassgpt.data.progress import show_progress
    from glassgpt.sample.eval_texts import evaluate_model, load_eval_model, tokenize_texts, window_sizes
    from glassgpt.show.terminal.sample_view import print_model

    samplers = [load_eval_model(spec, options) for spec in specs]
    sizes = [window_sizes(sampler, options) for sampler in samplers]
    tokenized = tokenize_texts(texts, [sampler.tokenizer for sampler in samplers])
    total = sum(len(documents.ids) for row in tokenized for documents in row)
    err = make_console(stderr=True)
    for sampler in samplers:
        choices = [choice for choice in sampler.choices if choice.name != "dtype"]
        print_model(sampler.checkpoint, sampler.model.parameter_count(), choices, err)
    with show_progress("evaluating", total, lambda line: print(line, file=sys.stderr), True) as advance:
        return [
            evaluate_model(
                sampler,
                [text.name for text in texts],
                [row[number] for row in tokenized],
                sizes[number],
                lambda tokens: advance(tokens, tokens),
            )
            for number, sampler in enumerate(samplers)
        ]
