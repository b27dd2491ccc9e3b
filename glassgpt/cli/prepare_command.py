"""glass prepare: text to tokens.

glass prepare shakespeare.txt --tokenizer=char
"""

from __future__ import annotations

from glassgpt.cli.command import command, make_console
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.errors import UserError
from glassgpt.flags import check_settings, parse_flags


@command("glass prepare DATASET|FILE|FOLDER|'PATTERN'", PrepareOptions)
def prepare(words: list[str]) -> int:
    names, flags, problems = parse_flags(words, PrepareOptions)
    names += [flags.pop("dataset")] if "dataset" in flags else []
    if len(names) != 1:
        problems.append(
            "name one thing to prepare: pylib, shakespeare_char, fineweb_edu, owner/name on Hugging Face, a "
            "file, a folder, or a quoted 'pattern*'"
        )
    settings, setting_problems = check_settings(flags, PrepareOptions)
    if problems or setting_problems:
        raise UserError(problems + setting_problems)
    from glassgpt.data.prepare import prepare as prepare_data
    from glassgpt.training.interrupt import sigterm_as_interrupt

    out = make_console()
    options = PrepareOptions(**({"dataset": names[0]} | settings))  # type: ignore[arg-type]
    with sigterm_as_interrupt():
        prepare_data(options, lambda line: out.print(line, soft_wrap=True, markup=False))
    return 0
