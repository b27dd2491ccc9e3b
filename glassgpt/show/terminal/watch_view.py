"""What is new about a run that goes on, as lines between those of its log."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from glassgpt.explain.watch import WatchUpdate
from glassgpt.i18n import say
from glassgpt.show.terminal.explain_view import print_finding


def print_watch_update(news: WatchUpdate, out: Console) -> None:
    facts = news.explanation.facts
    for done in news.evaluations[-3:]:
        if done.val_loss is None:
            continue
        at = "?" if done.iteration is None else f"{done.iteration:,}"
        best = done.val_loss == facts.best_val_loss
        text = say("iteration {at}: validation {loss}", at=at, loss=f"{done.val_loss:.4f}")
        line = Text.assemble(("glass  ", "bold cyan"), text)
        so_far = say("the best so far")
        out.print(line.append(f"  ({so_far})" if best else ""), soft_wrap=True)
    for finding in news.findings:
        at = "" if news.iteration is None else say("at iteration {at}", at=f"{news.iteration:,}")
        out.print(Text.assemble(("glass  ", "bold cyan"), (at, "dim")), soft_wrap=True)
        print_finding(finding, out)
