"""glass sample [RUN]: generate text with a trained model."""

from __future__ import annotations

from glassgpt.cli.command import command, make_console, parse_options
from glassgpt.errors import raise_if_any
from glassgpt.sample.sample_options import SampleOptions, find_problems, prompt_text


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
