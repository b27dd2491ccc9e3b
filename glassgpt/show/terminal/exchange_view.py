"""What `glass export` and `glass import` print."""

from __future__ import annotations

import shlex

from rich.console import Console

from glassgpt.exchange.export import ExportResult
from glassgpt.exchange.export_formats import dataset_name, needs_meta
from glassgpt.exchange.import_nanogpt import ImportResult
from glassgpt.format import format_bytes, pluralize
from glassgpt.record.run_dir import resume_command
from glassgpt.show.terminal.sample_view import print_model
from glassgpt.show.terminal.text_lines import print_line


def print_export(result: ExportResult, to: str, out: Console) -> None:
    """The model, how it was verified, its files, and the command that loads it."""
    loaded, check = result.model.origin, result.check
    print_model(loaded, result.model.model().parameter_count(), result.notes, out)
    difference = "are bitwise equal"
    if check.max_difference:
        difference = f"differ by at most {check.max_difference:.1e}"
    verified = (
        f"read back by {check.loaded_by}: logits {difference} (the largest is {check.max_logit:.3g}) over "
        f"{pluralize(check.compared_positions, 'token')}"
    )
    if check.round_trip_ids:
        tokens = pluralize(check.round_trip_ids, "token")
        verified += f"; a text of {tokens} is encoded and decoded identically"
    print_line(out, "check", verified)
    files = (f"{name} {format_bytes(size)}" for name, size in result.bytes_by_file.items())
    print_line(out, "files", ", ".join(files))
    print_line(out, "written", str(result.out_dir))

    folder = shlex.quote(str(result.out_dir))
    if to == "hf":
        loader = f'AutoModelForCausalLM.from_pretrained("{result.out_dir}"), AutoTokenizer likewise'
        print_line(out, "next", loader)
        print_line(out, "", f"glass sample --init_from={folder}")
    elif to == "glass":
        print_line(out, "next", f"glass sample --init_from={folder}")
        print_line(out, "", "README.md in that folder has a short loader")
    else:
        absolute = shlex.quote(str(result.out_dir.absolute()))
        print_line(out, "next", "in nanoGPT's folder:")
        if needs_meta(result.model.tokenizer):
            data_dir = f"data/{dataset_name(result.model)}"
            print_line(out, "", f"mkdir -p {data_dir} && cp {absolute}/meta.pkl {data_dir}/")
        print_line(out, "", f"python sample.py --out_dir={absolute}")


def print_import(result: ImportResult, out: Console) -> None:
    """The imported run, and the commands that show, explain, sample and resume it."""
    run = result.run
    shape = run.shape
    parts = [pluralize(shape.n_layer, "layer"), pluralize(shape.n_head, "head")]
    parts += [f"{shape.n_embd} wide", f"context {shape.block_size}"]
    print_line(out, "model", f"{', '.join(parts)}, after {pluralize(run.saved_iter, 'update')}")
    if result.update_count:
        lines = pluralize(result.update_count, "line")
        evaluations = pluralize(result.evaluation_count, "evaluation")
        print_line(out, "log", f"{lines} of iterations, {evaluations}")
        if result.left_out_count:
            print_line(out, "", f"very long: {result.left_out_count:,} more iterations are left out")
    for choice in run.choices:
        print_line(out, choice.name, f"{choice.value}   ({choice.reason})")
    folder = shlex.quote(str(run.run_dir))
    print_line(out, "written", str(run.run_dir))
    print_line(out, "next", f"glass show {folder}")
    print_line(out, "", f"glass explain {folder}")
    if run.dataset is not None:
        print_line(out, "", f"glass sample {folder}")
        max_iters = run.config.max_iters
        # A run that has done its updates can be resumed only with more of them.
        longer = [f"--max_iters={2 * max_iters}"] if run.saved_iter >= max_iters else []
        print_line(out, "", resume_command(run.run_dir, *longer))
