"""glass eval MODEL TEXT|DATASET ...: loss, perplexity and bits per byte of a model on any text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassgpt.cli.command import command, make_console, parse_options
from glassgpt.errors import raise_if_any
from glassgpt.i18n import preferred_language, use_language
from glassgpt.sample.eval_options import EvalOptions, find_problems

if TYPE_CHECKING:
    from glassgpt.sample.eval_texts import EvalText, ModelOnTexts


@command("glass eval RUN|MODEL TEXT|DATASET ...", EvalOptions)
def eval(words: list[str]) -> int:
    names, options, problems = parse_options(words, EvalOptions)
    if len(names) < 2:
        problems.append("name a model, and what to evaluate it on: glass eval RUN my.txt, or data/DATASET")
    problems += find_problems(options)
    raise_if_any(problems)
    from glassgpt.sample.eval_texts import compare_models, open_text
    from glassgpt.show.terminal import eval_view

    texts = [open_text(name) for name in names[1:]]
    specs = [names[0], *([options.against] if options.against else [])]
    with use_language(options.lang or preferred_language()):
        evaluated = _evaluate(specs, texts, options)
        comparison = compare_models(*evaluated) if options.against else None
        if options.json:
            print(json.dumps(eval_view.as_document(evaluated, comparison), indent=1))
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
