"""glass sample"""

from __future__ import annotations

from glassgpt.cli.command import make_console, parse_options, print_help, wants_help
from glassgpt.errors import UserError


def sample(words: list[str]) -> int:
    from glassgpt.sample.sample_options import SampleOptions, find_problems, prompt_text

    if wants_help(words):
        return print_help(SampleOptions, "glass sample [RUN]")
    names, options, problems = parse_options(words, SampleOptions)
    if len(names) > 1:
        problems.append(
            f"one run at a time, not {' and '.join(names)}; --compare=RUN2 shows another beside it"
        )
    problems += find_problems(options)
    if problems:
        raise UserError(problems)
    text = prompt_text(options.start)
    from glassgpt.sample.sampler import find_model_source, load_sampler
    from glassgpt.show.terminal import sample_view as show

    sources = [find_model_source(names[0] if names else None, options)]
    sources += [options.compare] if options.compare else []
    writers = [load_sampler(source, options) for source in sources]
    prompts = [writer.encode(text) for writer in writers]
    err = make_console(stderr=True)
    for writer, prompt in zip(writers, prompts, strict=True):
        show.print_model_info(writer, err)
        show.print_prompt_truncation(writer, prompt, err)
    if len(writers) == 1:
        show.stream_samples(writers[0], text, prompts[0], options, err)
    else:
        show.print_side_by_side(writers, text, prompts, options, make_console())
    return 0
