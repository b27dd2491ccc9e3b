"""The model card (README.md) of an export: the model, its data, training, losses, times and hardware.

Everything is from the run's journal and checkpoint. What they lack is "not recorded", never guessed. No path
is shown, because it may reveal a user's name.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

from glassgpt.data.tokenizers import CharTokenizer
from glassgpt.estimate import flops
from glassgpt.exchange.export_formats import ExportableModel
from glassgpt.format import format_count, format_duration, pluralize
from glassgpt.record import journal
from glassgpt.record.journal import Record, dict_or_empty
from glassgpt.version import VERSION

TRAINING_FILE = "training.toml"
_UNKNOWN = "not recorded"
_EXAMPLE_NEW_TOKENS = 100  # max_new_tokens of the example, if the context holds them

_LOADING_EXAMPLES = {
    "hf": """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
start = tokenizer(START, return_tensors="pt")
print(tokenizer.decode(model.generate(**start, max_new_tokens=ROOM, do_sample=True)[0]))
```""",
    "glass": """\
```python
from pathlib import Path

from glassgpt.model.gpt import GPT
from glassgpt.model.pretrained import read_pretrained

shape, weights = read_pretrained(Path("FOLDER"))
model = GPT(shape).eval()
model.load_state_dict(weights)
```

Or `glass sample --init_from=FOLDER`. The layout, and a loader that needs only torch, are in GlassGPT's
docs/export.md.""",
    "nanogpt": "In nanoGPT's folder: `python sample.py --out_dir=FOLDER`. If there is a `meta.pkl` here, "
    "copy it to `data/DATASET/meta.pkl` there.",
}


def render_model_card(exportable: ExportableModel, to: str) -> str:
    loaded = exportable.origin
    path = loaded.folder / journal.FILE_NAME
    all_records = list(journal.read(path)) if loaded.kind == "run" and path.is_file() else []
    records = records_until_checkpoint(all_records, loaded.iter)
    run = next((record for record in reversed(records) if record["kind"] == "run"), {})
    library = "transformers" if to == "hf" else "glassgpt"
    tag = "gpt2" if exportable.shape.arch == "gpt2" else "nanochat"
    version = dict_or_empty(run, "machine").get("glassgpt")
    trained = f" trained with GlassGPT {version}" if version else ""
    sections = [
        f"---\nlibrary_name: {library}\npipeline_tag: text-generation\ntags:\n- glassgpt\n- {tag}\n---",
        f"# {exportable.name}\n\nA small GPT{trained}, exported by GlassGPT {VERSION}.",
        _table("Model", _model_rows(exportable, to)),
        _table("Data", _data_rows(run, exportable)),
        _table("Training", _training_rows(exportable, run, records)),
        _table("Loss", _loss_rows(exportable, records)),
        _table("Where the time went", _time_rows(all_records)),
        _table("Hardware", _hardware_rows(run)),
    ]
    if loaded.settings:
        hint = f"with `{TRAINING_FILE}` beside this file, which has every setting of the run."
        sections.append(f"## Command\n\n    glass train {TRAINING_FILE}\n\n{hint}")
    sections.append(f"## How to load it\n\n{_loading_example(exportable, to)}")
    sections.append(
        "Its output reflects the training data above, mistakes included, and has not been reviewed."
    )
    return "\n\n".join(sections) + "\n"


def records_until_checkpoint(records: list[Record], update: int | None) -> list[Record]:
    """The effective records up to the exported checkpoint.

    Later processes do not count: one that resumed from an older checkpoint superseded the updates that led to
    this one.
    """
    saved_by = [
        record.get("process")
        for record in records
        if record["kind"] == "checkpoint" and record["iter"] == update
    ]
    indices = [
        index for index, record in enumerate(records) if saved_by and record.get("process") == saved_by[-1]
    ]
    until = records[: indices[-1] + 1] if indices else records
    return [
        record for record in journal.effective_records(until) if update is None or record["iter"] <= update
    ]


def _base_name(path: object) -> str | None:
    return Path(str(path)).name if path else None


# --- tables ---

TableRows = list[tuple[str, object]]


def _table(title: str, rows: TableRows) -> str:
    if not rows:
        return f"## {title}\n\n{_UNKNOWN.capitalize()}."
    lines = [f"## {title}", "", "| | |", "|---|---|"]
    for name, value in rows:
        text = str(_UNKNOWN if value is None else value)
        cell = " ".join(text.replace("|", "\\|").split())  # a value must not end the row
        lines.append(f"| {name} | {cell} |")
    return "\n".join(lines)


def _model_rows(exportable: ExportableModel, to: str) -> TableRows:
    shape, padding_rows = exportable.shape, exportable.padding_rows
    padding = f"; {pluralize(padding_rows, 'row')} of padding omitted" if padding_rows else ""
    biases = "none; zeros in this layout" if not shape.bias and shape.arch == "gpt2" else str(shape.bias)
    layout = "; NanoChat in transformers" if to == "hf" and shape.arch == "modern" else ""
    tokenizer = exportable.tokenizer.name
    return [
        ("architecture", f"{shape.arch}{layout}"),
        ("parameters", f"{flops.model_parameters(shape, shape.vocab_size):,}"),
        ("layers, heads, channels", f"{shape.n_layer}, {shape.n_head}, {shape.n_embd}"),
        ("context", pluralize(shape.block_size, "token")),
        ("vocabulary", f"{pluralize(shape.vocab_size, 'token')} ({tokenizer}){padding}"),
        ("biases", biases),
        ("activation", shape.activation),
        ("tied embeddings", shape.tie_embeddings),
    ]


def _data_rows(run: Record, exportable: ExportableModel) -> TableRows:
    data = dict_or_empty(run, "data")
    if not data:
        return [("dataset", _base_name(exportable.origin.settings.get("dataset")))]
    tokens = dict_or_empty(data, "tokens")
    rows: TableRows = [("dataset", _base_name(data.get("name"))), ("tokenizer", data.get("tokenizer"))]
    for split, label in (("train", "training tokens"), ("val", "validation tokens")):
        count = tokens.get(split)
        rows.append((label, f"{count:,}" if isinstance(count, int) else None))
    return [*rows, ("SHA-256 of tokenizer and tokens", data.get("hash") or None)]


def _training_rows(exportable: ExportableModel, run: Record, records: list[Record]) -> TableRows:
    loaded = exportable.origin
    updates, settings = loaded.iter, loaded.settings
    # The checkpoint's own count: each process adds its updates, whose size may differ.
    sequences = dict_or_empty(dict(loaded.state), "progress").get("sequences")
    tokens_seen = sequences * exportable.shape.block_size if isinstance(sequences, int) else None
    # Tokens per update of each process, in order; equal neighbours once.
    sizes = [dict_or_empty(record, "batch").get("tokens") for record in records if record["kind"] == "run"]
    batch_tokens = [size for size, _ in itertools.groupby(size for size in sizes if isinstance(size, int))]
    epochs = None if updates is None or tokens_seen is None else _epochs(run, updates, tokens_seen)
    speeds = [
        speed for record in records if record["kind"] == "step" and (speed := record.get("tokens_per_s"))
    ]
    init_from = settings.get("init_from")
    return [
        ("checkpoint", _base_name(loaded.description)),
        ("updates", None if updates is None else f"{updates:,}"),
        ("tokens per update", ", then ".join(f"{tokens:,}" for tokens in batch_tokens) or None),
        ("tokens seen", None if tokens_seen is None else f"{tokens_seen:,}"),
        ("epochs", None if epochs is None else f"{epochs:.3g}"),
        ("optimizer", settings.get("optimizer")),
        ("learning rate", settings.get("learning_rate")),
        ("initialised from", "random weights" if init_from == "scratch" else _base_name(init_from)),
        ("tokens/s of the last updates", format_count(speeds[-1]) if speeds else None),
    ]


def _epochs(run: Record, updates: int, tokens_seen: int) -> float | None:
    """Epochs up to this checkpoint: its share of those that the whole run was planned to have."""
    batch_tokens = dict_or_empty(run, "batch").get("tokens")
    planned_epochs = dict_or_empty(run, "data").get("epochs")
    planned_updates = dict_or_empty(run, "config").get("max_iters")
    if planned_epochs is None or not planned_updates or not batch_tokens:
        return None
    planned_tokens = tokens_seen + max(0, planned_updates - updates) * batch_tokens
    return float(planned_epochs * tokens_seen / planned_tokens) if planned_tokens else None


def _loss_rows(exportable: ExportableModel, records: list[Record]) -> TableRows:
    loaded = exportable.origin
    rows: TableRows = []
    for record in records:
        if record["kind"] != "eval" or record["iter"] != loaded.iter:
            continue
        split = f"{record['split']}, {'the whole split' if record['whole_split'] else 'sampled'}"
        rows.append((f"{split}: nats per token", f"{record['loss']:.4f}"))
        if record["bits_per_byte"] is not None and record["split"] == "val":
            rows.append((f"{split}: bits per byte", f"{record['bits_per_byte']:.4f}"))
    if not rows and loaded.val_loss is not None and math.isfinite(loaded.val_loss):
        rows.append(("validation loss, nats per token", f"{loaded.val_loss:.4f}"))
    return list(dict.fromkeys(rows))


def _time_rows(records: list[Record]) -> TableRows:
    """Time by phase over all processes of the run, also those after the checkpoint.

    A process that was killed left no ledger, only the times of its records.
    """
    processes: dict[object, list[Record]] = {}
    for record in records:  # an imported run counts as one process: its last record has the whole ledger
        processes.setdefault(record.get("imported") or record.get("process"), []).append(record)
    phase_s: dict[str, float] = {}
    killed_s = []
    for process in processes.values():
        ledgers = [dict_or_empty(record, "ledger") for record in process if record["kind"] == "end"]
        if not any(ledgers):
            killed_s.append(max(0.0, process[-1]["time"] - process[0]["time"]))
        for phase, seconds in (item for ledger in ledgers for item in ledger.items()):
            phase_s[phase] = phase_s.get(phase, 0.0) + seconds
    total_s = sum(phase_s.values()) + sum(killed_s)
    if not total_s:
        return []
    rows: TableRows = [
        (phase, f"{format_duration(seconds)} ({seconds / total_s:.1%})") for phase, seconds in phase_s.items()
    ]
    if not killed_s:
        return [*rows, ("the whole run", format_duration(total_s))]
    share = f"{format_duration(sum(killed_s))} ({sum(killed_s) / total_s:.1%})"
    count = "1 process" if len(killed_s) == 1 else f"{len(killed_s)} processes"
    return [
        *rows,
        (f"{count} that left no ledger", f"{share}, from first to last record"),
        ("the whole run", f"at least {format_duration(total_s)}"),
    ]


def _hardware_rows(run: Record) -> TableRows:
    machine = dict_or_empty(run, "machine")
    if not machine:
        return []
    device, cpu = dict_or_empty(machine, "device"), dict_or_empty(machine, "cpu")
    rows: TableRows = [("device", device.get("name"))]
    if device.get("type") == "cuda":
        rows += [("CUDA, driver", f"{device.get('cuda')}, {device.get('driver')}")]
        rows += [("processor", cpu.get("model"))]
    versions = ", ".join(str(machine.get(name)) for name in ("torch", "python", "os"))
    return [*rows, ("cores", cpu.get("usable_cores")), ("torch, Python, system", versions)]


def _loading_example(exportable: ExportableModel, to: str) -> str:
    """Code to paste, with a prompt that this tokenizer can encode, and no more tokens than the context."""
    tokenizer = exportable.tokenizer
    prompt = "\n"
    if tokenizer.name == "ids":
        prompt = "0"
    elif isinstance(tokenizer, CharTokenizer) and "\n" not in tokenizer.characters:
        prompt = tokenizer.characters[0]
    room = exportable.shape.block_size - len(tokenizer.encode(prompt))
    new_tokens = max(1, min(_EXAMPLE_NEW_TOKENS, room))
    example = _LOADING_EXAMPLES[to].replace("START", json.dumps(prompt, ensure_ascii=False))
    return example.replace("ROOM", str(new_tokens))
