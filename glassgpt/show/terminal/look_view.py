"""`glass look` in the terminal: a passage coloured by loss, and where the loss comes from.

Without colours (a pipe, NO_COLOR) the passage is a line for each token: loss, text, guesses.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from glassgpt.explain.rules.learned import baseline_name, ladder_position
from glassgpt.i18n import say, translate
from glassgpt.runs.ladder_progress import LadderProgress
from glassgpt.runs.loss_by_class import LossByClass
from glassgpt.sample.look import HeadScores, SampleOriginality, highest_heads
from glassgpt.sample.look_document import LookDocument
from glassgpt.sanitize import sanitize_text
from glassgpt.show.learned_words import named_partitions, sample_sentences
from glassgpt.show.terminal.charts import bar
from glassgpt.show.terminal.sample_view import describe_checkpoint
from glassgpt.show.terminal.text_lines import print_indented, print_line, terminal_text

# Upper bounds in nats, and the colour below each; e^-0.5 is a probability of 61%, e^-5 one of 0.7%.
_LOSS_COLOURS = (
    (0.5, "black on #c8e6c9"),
    (1.5, "black on #f1f8e9"),
    (3.0, "black on #fff59d"),
    (5.0, "black on #ffb74d"),
    (float("inf"), "white on #c62828"),
)
# Of a difference in nats: lower is better.
_DIFFERENCE_COLOURS = (
    (-1.0, "white on #2e7d32"),
    (-0.2, "black on #a5d6a7"),
    (0.2, "black on #f5f5f5"),
    (1.0, "black on #ffb74d"),
    (float("inf"), "white on #c62828"),
)
_BAR_WIDTH = 30
_HEADS_SHOWN = 3
_SURPRISES = 3
_MAX_COPIED_CELLS = 60


def print_look(document: LookDocument, out: Console, err: Console) -> None:
    for warning in document.sampler.checkpoint.warnings:
        print_line(err, "warning", warning, "yellow")
    sampler = document.sampler
    model = describe_checkpoint(sampler.checkpoint, sampler.model.parameter_count())
    print_line(out, translate("look_view.label.model"), model)
    if document.other is not None:
        other = document.other[0]
        against = describe_checkpoint(other.checkpoint, other.model.parameter_count())
        print_line(out, translate("look_view.label.against"), against)
    _print_passage(document, out)
    if document.ladder is not None:
        _print_ladder(document.ladder, out)
    if document.evaluation is not None:
        _print_parts(document.evaluation, out)
    _print_heads(document.heads, out)
    if document.originality is not None:
        _print_originality(document.originality, out)


# --- the passage ---


def _print_passage(document: LookDocument, out: Console) -> None:
    passage, view = document.passage, document.view
    count, loss = len(passage.tokens), view.mean_loss
    if passage.start is None:
        title = translate("look_view.passage.text", tokens=count, loss=loss)
    else:
        title = translate("look_view.passage.val", tokens=count, start=passage.start, loss=loss)
    if passage.omitted:
        title += " " + translate("look_view.passage.omitted", tokens=passage.omitted)
    print_line(out, translate("look_view.label.passage"), title)
    values, colours = view.losses, _LOSS_COLOURS
    legend = translate("look_view.passage.legend")
    if document.other is not None:
        other_losses = document.other[1].losses
        values = [ours - theirs for ours, theirs in zip(view.losses, other_losses, strict=True)]
        colours, legend = _DIFFERENCE_COLOURS, translate("look_view.passage.difference_legend")
        lower = sum(value < 0 for value in values)
        difference = translate(
            "look_view.passage.difference", mean=sum(values) / count, lower=lower, tokens=count
        )
        print_line(out, translate("look_view.label.difference"), difference)
    texts = document.texts
    if out.is_terminal and out.color_system is not None and not out.no_color:
        out.print()
        for coloured in _coloured_lines(texts, values, colours):
            out.print(Text("  ") + coloured, soft_wrap=True)
        out.print()
        key = Text(f"  {legend} ")
        low = None
        for bound, style in colours:
            text = f" {low:g}+ " if bound == float("inf") else f" < {bound:g} "
            key.append(text, style=style)
            low = bound
        out.print(key)
        order = sorted(range(count), key=lambda index: -view.losses[index])[:_SURPRISES]
        for index in order:
            shown = translate(
                "look_view.passage.surprise",
                token=_quote(texts[index]),
                loss=view.losses[index],
                guesses=_guesses(document, index),
            )
            print_indented(shown, "dim", out)
        return
    for index, text in enumerate(texts):
        change = f" {values[index]:+7.3f}" if document.other is not None else ""
        line = f"  {view.losses[index]:7.3f}{change}  {_quote(text):<12}  {_guesses(document, index)}"
        out.print(Text(line), soft_wrap=True)


def _coloured_lines(
    texts: Sequence[str], values: Sequence[float], colours: Sequence[tuple[float, str]]
) -> list[Text]:
    """Each token in its colour; a line break is shown, because it is a token too."""
    lines = [Text()]
    for text, value in zip(texts, values, strict=True):
        style = next((style for bound, style in colours if value < bound), colours[-1][1])  # NaN: the last
        *whole, rest = text.replace("\t", "    ").split("\n")
        for part in whole:
            lines[-1].append(sanitize_text(part) + "⏎", style=style)
            lines.append(Text())
        lines[-1].append(sanitize_text(rest), style=style)
    return [line for line in lines if line.plain]


def _quote(text: str) -> str:
    """As Python writes it, with its letters; a part of a character has no text."""
    return sanitize_text(repr(text))


def _guesses(document: LookDocument, index: int) -> str:
    return ", ".join(f"{_quote(text)} {p:.0%}" for text, p in document.guess_texts(index))


# --- what the run recorded ---


def _print_ladder(progress: LadderProgress, out: Console) -> None:
    label = translate("look_view.label.ladder")
    if progress.highest is None:
        print_line(out, label, translate("look_view.ladder.nothing"))
        return
    print_line(out, label, f"{ladder_position(progress.highest, progress.next_rung)}.")
    for rung in progress.ladder.rungs:
        passed = progress.passed.get(rung.order)
        table, loss = baseline_name(rung.order), f"{rung.loss:.4f}"
        if rung.bits_per_byte is not None:
            loss += f" ({rung.bits_per_byte:.3f} bits/byte)"
        if passed is not None and passed.iteration is not None:
            row = translate("look_view.ladder.passed", table=table, loss=loss, update=passed.iteration)
        else:
            row = translate("look_view.ladder.not_passed", table=table, loss=loss)
        print_indented(row, "", out)


def _print_parts(evaluation: LossByClass, out: Console) -> None:
    title = translate("look_view.evaluation", update=evaluation.iteration, loss=evaluation.loss)
    print_line(out, translate("look_view.label.loss"), title)
    for partition, rows in named_partitions(evaluation):
        _print_bars(partition, rows, out)


def _print_bars(title: str, rows: Sequence[tuple[str, int, float]], out: Console) -> None:
    """A row: name, tokens, loss. The longest bar is the highest loss."""
    out.print(Text(terminal_text(f"  {title}"), style="italic"), soft_wrap=True)
    total, highest = sum(tokens for _, tokens, _ in rows), max(loss for _, _, loss in rows)
    width = max(cell_len(name) for name, _, _ in rows)
    for name, tokens, loss in rows:
        line = Text(terminal_text(f"    {name}{' ' * (width - cell_len(name))}  {loss:6.3f}  "))
        line.append(f"{tokens / total:4.0%}  ", style="dim")
        room = max(1, min(_BAR_WIDTH, out.width - line.cell_len))
        line.append(bar(loss / highest if highest > 0 else 0.0, room), style="cyan")
        out.print(line, soft_wrap=True)


# --- heads, and what is copied ---


def _print_heads(heads: HeadScores, out: Console) -> None:
    rows = [(say("look_view.heads.previous_token"), heads.previous_token, heads.previous_token_uniform)]
    if heads.induction is not None and heads.induction_uniform is not None:
        rows.append((say("look_view.heads.induction"), heads.induction, heads.induction_uniform))
    print_line(out, translate("look_view.label.heads"), translate("look_view.heads.title"))
    for name, scores, uniform in rows:
        best = [
            translate("look_view.heads.head", layer=layer + 1, head=head + 1, score=score)
            for layer, head, score in highest_heads(scores, _HEADS_SHOWN)
        ]
        print_indented(
            translate("look_view.heads.scores", name=name, heads=", ".join(best), uniform=uniform), "", out
        )
    if heads.first_copy_loss is not None:
        repeated = translate(
            "look_view.heads.repeated", first=heads.first_copy_loss, second=heads.second_copy_loss
        )
        print_indented(repeated, "", out)


def _print_originality(originality: SampleOriginality, out: Console) -> None:
    text = _quote(originality.copied_text)
    if len(text) > _MAX_COPIED_CELLS:
        text = text[: _MAX_COPIED_CELLS - 1] + "…"
    copied = translate(
        "look_view.copied",
        sample_tokens=originality.sample_tokens,
        tokens=originality.copied_tokens,
        text=text,
        val_tokens=originality.val_copied_tokens,
    )
    if originality.searched_tokens < originality.train_tokens:
        copied += " " + translate("look_view.copied.searched", tokens=originality.searched_tokens)
    print_line(out, translate("look_view.label.copied"), copied)
    for label, sentence in sample_sentences(originality):
        print_line(out, label, sentence)
