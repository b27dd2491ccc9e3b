"""glass sample"""

from __future__ import annotations

from glassgpt.cli.command import console, parsed, print_help, wants_help
from glassgpt.errors import UserError


def sample(words: list[str]) -> int:
    from glassgpt.sample.sample_options import SampleOptions, find_problems, prompt_text

    if wants_help(words):
        return print_help(SampleOptions, "glass sample [RUN]")
    names, options, problems = parsed(words, SampleOptions)
    if len(names) > 1:
        problems.append(
            f"one run at a time, not {' and '.join(names)}; --compare=RUN2 shows another beside it"
        )
    problems += find_problems(options)
    if problems:
        raise UserError(problems)
    text = prompt_text(options.start)
    from glassgpt.sample.sampler import find_source, open_writer
    from glassgpt.show.terminal import sample_view as show

    sources = [find_source(names[0] if names else None, options)]
    sources += [options.compare] if options.compare else []
    writers = [open_writer(source, options) for source in sources]
    prompts = [writer.encode(text) for writer in writers]
    err = console(stderr=True)
    for writer, prompt in zip(writers, prompts, strict=True):
        show.announce(writer, err)
        show.announce_prompt(writer, prompt, err)
    if len(writers) == 1:
        show.stream(writers[0], text, prompts[0], options, err)
    else:
        show.side_by_side(writers, text, prompts, options, console())
    return 0
