"""glass export, glass import"""

from __future__ import annotations

from glassgpt.cli.command import console, parsed, print_help, wants_help
from glassgpt.errors import UserError
from glassgpt.exchange.options import ExportOptions


def export(words: list[str]) -> int:
    if wants_help(words):
        return print_help(ExportOptions, "glass export RUN")
    names, options, problems = parsed(words, ExportOptions)
    if len(names) != 1:
        problems.append("say which run to export, one at a time: glass export RUN; `glass runs` lists them")
    if problems:
        raise UserError(problems)
    from glassgpt.exchange.export import export as export_model
    from glassgpt.show.exchange import show_export

    show_export(export_model(names[0], options), options.to, console())
    return 0
