"""glass export RUN --to=hf, glass import nanogpt OUT_DIR"""

from __future__ import annotations

from glassgpt.cli.command import command, make_console, parse_options
from glassgpt.errors import UserError
from glassgpt.exchange.exchange_options import ExportOptions, ImportOptions


@command("glass export RUN", ExportOptions)
def export(words: list[str]) -> int:
    names, options, problems = parse_options(words, ExportOptions)
    if len(names) != 1:
        problems.append("say which run to export, one at a time: glass export RUN; `glass runs` lists them")
    if problems:
        raise UserError(problems)
    from glassgpt.exchange.export import export as export_model
    from glassgpt.show.terminal.exchange_view import print_export

    print_export(export_model(names[0], options), options.to, make_console())
    return 0


@command("glass import nanogpt OUT_DIR", ImportOptions)
def import_(words: list[str]) -> int:
    names, options, problems = parse_options(words, ImportOptions)
    if len(names) != 2 or names[0] != "nanogpt":
        problems.append("say what to import, and from where: glass import nanogpt OUT_DIR")
    if problems:
        raise UserError(problems)
    from glassgpt.exchange.import_nanogpt import import_run
    from glassgpt.show.terminal.exchange_view import print_import

    print_import(import_run(names[1], options), make_console())
    return 0
