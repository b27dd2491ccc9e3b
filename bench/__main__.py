"""Benchmarks of GlassGPT against its peers.

    python -m bench cpu-speed cpu-to-loss --nanogpt PATH --shakespeare tinyshakespeare.txt --out results.jsonl
    python -m bench gpt2-speed --device cuda --nanogpt PATH --mdn mdn.jsonl.xz --out results.jsonl
    python -m bench table --out results.jsonl --picture speed.svg --page PAGE.md

Each row alternates between both trainers and appends its results to --out; rows that are there already are
skipped, unless --again. `table` prints and plots the results in the file. The last line is one JSON document.
Peers stay outside this repository: their checkouts are copied, and nothing is written to them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from bench import overhead, results, sampling, speed, to_loss
from bench.context import BenchContext, BenchOptions, MissingOption
from bench.picture import ratios_picture
from bench.results import Result
from bench.table import fill_page, markdown_table, results_document
from bench.watch import CommandFailed
from glassgpt.errors import UserError

Benchmark = Callable[[BenchContext], list[Result]]

ROWS: dict[str, Benchmark] = {
    "gpt2-speed": speed.gpt2_speed,
    "fp8-loss": speed.fp8_loss,
    "shakespeare-whole": speed.shakespeare_whole,
    "shakespeare-to-loss": to_loss.shakespeare_to_loss,
    "mdn-rates": to_loss.mdn_rates,
    "mdn-to-loss": to_loss.mdn_to_loss,
    "overhead": overhead.overhead,
    "steadiness": overhead.steadiness,
    "sampling": sampling.sampling,
    "cpu-speed": speed.cpu_speed,
    "cpu-to-loss": to_loss.cpu_to_loss,
}
# Rows whose results have other names: the first of them.
FIRST_RESULT = {"fp8-loss": "fp8", "sampling": "sampling-1"}


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    arguments_by_name = vars(parser.parse_args(arguments))
    rows, again, scratch = (arguments_by_name.pop(name) for name in ("rows", "again", "scratch"))
    picture, page = arguments_by_name.pop("picture"), arguments_by_name.pop("page")
    options = BenchOptions(**arguments_by_name)
    code = 0
    with tempfile.TemporaryDirectory(dir=scratch, prefix="bench-") as folder:
        ctx = BenchContext(options, Path(folder))
        for name in rows:
            if name == "table":
                continue
            first_result = FIRST_RESULT.get(name, name)
            if not again and results.latest(options.out, first_result, ctx.device_type) is not None:
                print(f"{name}: is in {options.out} already; --again measures again", flush=True)
            else:
                code |= run_row(name, ctx)
    found = results.read_latest(options.out)
    print(f"\n{markdown_table(found)}")
    if picture is not None:
        picture.write_text(ratios_picture(found), encoding="utf-8")
    if page is not None:
        page.write_text(fill_page(page.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(json.dumps(results_document(found)))
    return code


def run_row(name: str, ctx: BenchContext) -> int:
    """Run a row. If it fails, the other rows still run."""
    print(f"{name}: {ROWS[name].__doc__}", flush=True)
    try:
        for result in ROWS[name](ctx):
            results.append(ctx.options.out, result)
    except (CommandFailed, MissingOption, UserError) as error:
        print(f"{name} failed: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    defaults = {field.name: field.default for field in dataclasses.fields(BenchOptions)}
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "rows", nargs="+", choices=[*ROWS, "table"], metavar="ROW", help=", ".join([*ROWS, "table"])
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/bench.jsonl"), help="the file of results")
    add("--again", action="store_true", help="measure rows that are in --out already")
    add("--device", default="cpu")
    add("--nanogpt", type=Path, help="a checkout of nanoGPT")
    add("--nanochat", type=Path, help="a checkout of nanochat; gpt2-speed then times its model too")
    add("--shakespeare", type=Path, help="tinyshakespeare.txt, or a prepared folder")
    add("--mdn", type=Path, help="mdn.jsonl.xz, or a folder that `python -m bench.mdn` prepared")
    add("--scratch", type=Path, help="folder for temporary copies, runs and caches; default: the system's")
    add("--picture", type=Path, help="an SVG of the ratios")
    add("--page", type=Path, help="a Markdown page whose table, between its marks, is updated")
    add("--rounds", type=int, default=defaults["rounds"], help="of the rows that time updates")
    add("--updates", type=int, help="updates of a row, instead of its default; tokens in sampling")
    add("--seeds", type=int, nargs="+", default=defaults["seeds"], help="of the time-to-loss rows")
    add("--batch", type=int, default=defaults["batch"], help="sequences of 1024 tokens, GPT-2 rows")
    add("--fp8", action="store_true", help="gpt2-speed with --fp8=True on our side too")
    add("--no-warm", dest="warm", action="store_false", help="shakespeare-whole with cold caches only")
    add("--seconds", type=float, default=defaults["seconds"], help="training time of nanoGPT on mdn")
    add("--step-ms", type=float, help="nanoGPT's step time there; default: as gpt2-speed measured it")
    rates = "learning rates of nanoGPT on mdn; default: the best of mdn-rates"
    add("--rates", type=float, nargs="+", default=defaults["rates"], help=rates)
    add("--target", type=float, help="the target loss, instead of nanoGPT's")
    patience = "stop nanoGPT after this many evaluations without a better loss"
    add("--patience", type=int, default=defaults["patience"], help=patience)
    add("--preset", default=defaults["preset"], help="instead of the row's default")
    add("--ours", action="append", default=[], metavar="KEY=VALUE", help="a setting for our side; recorded")
    add("--tiny", action="store_true", help="tiny models and few updates, to test that a row works")
    return parser


def exit_on_signals() -> None:
    """After a time limit, or when the terminal is closed, the processes of a row end with this one."""
    is_exiting = False

    def end(number: int, frame: FrameType | None) -> None:
        # `timeout` signals a process and then its group. The second signal must not interrupt the cleanup of
        # the first: children would stay behind.
        nonlocal is_exiting
        if not is_exiting:
            is_exiting = True
            sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
            signal.signal(number, end)


if __name__ == "__main__":
    exit_on_signals()
    sys.exit(main())
