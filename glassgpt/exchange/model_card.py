"""README.md of an export: what the model is, what it was trained on, for how long, on what, and how well.

Everything is from the run's journal and checkpoint. What is not recorded is said to be so, never guessed; and
no path is told, because a path may say whose machine it was.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

from glassgpt import format
from glassgpt.data.tokenizers import CharTokenizer, Tokenizer
from glassgpt.estimate import flops
from glassgpt.exchange.exportable import ExportableModel
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.version import VERSION

TRAINING_FILE = "training.toml"
_UNKNOWN = "not recorded"
_EXAMPLE_NEW_TOKENS = 100  # that the example writes, if the context holds them

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

Or `glass sample --init_from=FOLDER`. The layout, and a loader that needs torch alone, are in GlassGPT's
docs/export.md.""",
    "nanogpt": "In nanoGPT's folder: `python sample.py --out_dir=FOLDER`. A `meta.pkl` that is here must be "
    "at `data/DATASET/meta.pkl` there.",
}


def render_model_card(parcel: ExportableModel, to: str) -> str:
    whole = _journal(parcel)
    records = records_until_checkpoint(whole, parcel.origin.iter)
    run = next((record for record in reversed(records) if record["kind"] == "run"), {})
    sections = [
        _front(parcel, to),
        f"# {parcel.name}\n\nA small GPT{_trained_by(run)}, exported by GlassGPT {VERSION}.",
        _table("Model", _model_rows(parcel, to)),
        _table("Data", _data(run, parcel)),
        _table("Training", _training_rows(parcel, run, records)),
        _table("Loss", _loss_rows(parcel, records)),
        _table("Where the time went", _time_rows(whole)),
        _table("Hardware", _hardware_rows(run)),
        _command(parcel),
        f"## How to load it\n\n{_use(parcel, to)}",
        "What it writes it learned from the data above, mistakes included. Nobody has checked it.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _journal(parcel: ExportableModel) -> list[Record]:
    """Every record there is, also of after the checkpoint; empty if there is no journal."""
    path = parcel.origin.folder / journal.FILE_NAME
    return list(journal.read(path)) if parcel.origin.kind == "run" and path.is_file() else []


def records_until_checkpoint(whole: list[Record], update: int | None) -> list[Record]:
    """What the journal says up to the checkpoint that is exported, as far as it holds.

    Later processes do not count: one that went on from an older checkpoint would take back what led to this.
    """
    savers = [
        record.get("process")
        for record in whole
        if record["kind"] == "checkpoint" and record["iter"] == update
    ]
    places = [place for place, record in enumerate(whole) if savers and record.get("process") == savers[-1]]
    told = whole[: places[-1] + 1] if places else whole
    return [
        record for record in journal.effective_records(told) if update is None or record["iter"] <= update
    ]


def _front(parcel: ExportableModel, to: str) -> str:
    library = "transformers" if to == "hf" else "glassgpt"
    kind = "gpt2" if parcel.shape.arch == "gpt2" else "nanochat"
    return f"---\nlibrary_name: {library}\npipeline_tag: text-generation\ntags:\n- glassgpt\n- {kind}\n---"


def _trained_by(run: Record) -> str:
    version = _dict_field(run, "machine").get("glassgpt")
    return f" trained with GlassGPT {version}" if version else ""


def _dict_field(record: Record, name: str) -> dict[str, Any]:
    value = record.get(name)
    return value if isinstance(value, dict) else {}


TableRows = list[tuple[str, object]]


def _table(title: str, rows: TableRows) -> str:
    if not rows:
        return f"## {title}\n\n{_UNKNOWN.capitalize()}."
    lines = [f"| {name} | {_plain(_UNKNOWN if value is None else value)} |" for name, value in rows]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *lines])


def _plain(value: object) -> str:
    """Nothing in a name may end the table's row."""
    return " ".join(str(value).replace("|", "\\|").split())


def _model_rows(parcel: ExportableModel, to: str) -> TableRows:
    shape = parcel.shape
    padding = (
        f"; {format.pluralize(parcel.padding_rows, 'row')} of padding were left out"
        if parcel.padding_rows
        else ""
    )
    biases = "none; zeros in this layout" if not shape.bias and shape.arch == "gpt2" else str(shape.bias)
    layout = "; NanoChat in transformers" if to == "hf" and shape.arch == "modern" else ""
    return [
        ("architecture", f"{shape.arch}{layout}"),
        ("parameters", f"{flops.model_parameters(shape, shape.vocab_size):,}"),
        ("layers, heads, channels", f"{shape.n_layer}, {shape.n_head}, {shape.n_embd}"),
        ("context", format.pluralize(shape.block_size, "token")),
        ("vocabulary", f"{format.pluralize(shape.vocab_size, 'token')} ({parcel.tokenizer.name}){padding}"),
        ("biases", biases),
        ("activation", shape.activation),
        ("one matrix reads and predicts tokens", shape.tie_embeddings),
    ]


def _data(run: Record, parcel: ExportableModel) -> TableRows:
    data = _dict_field(run, "data")
    if not data:
        return [("dataset", _name(parcel.origin.settings.get("dataset")))]
    tokens = _dict_field(data, "tokens")
    rows: TableRows = [("dataset", _name(data.get("name"))), ("tokenizer", data.get("tokenizer"))]
    for split, what in (("train", "tokens to learn from"), ("val", "tokens held out")):
        count = tokens.get(split)
        rows.append((what, f"{count:,}" if isinstance(count, int) else None))
    return [*rows, ("SHA-256 of tokenizer and tokens", data.get("hash") or None)]


def _name(value: object) -> str | None:
    return Path(str(value)).name if value else None


def _training_rows(parcel: ExportableModel, run: Record, records: list[Record]) -> TableRows:
    updates, seen = parcel.origin.iter, _tokens_seen(parcel)
    epochs = None if updates is None or seen is None else _epochs(run, updates, seen)
    speeds = [
        speed for record in records if record["kind"] == "step" and (speed := record.get("tokens_per_s"))
    ]
    settings = parcel.origin.settings
    began = settings.get("init_from")
    return [
        ("checkpoint", _name(parcel.origin.description)),
        ("updates", None if updates is None else f"{updates:,}"),
        ("tokens per update", ", then ".join(f"{tokens:,}" for tokens in _batches(records)) or None),
        ("tokens seen", None if seen is None else f"{seen:,}"),
        ("passes over the data", None if epochs is None else f"{epochs:.3g}"),
        ("optimizer", settings.get("optimizer")),
        ("learning rate", settings.get("learning_rate")),
        ("began from", "random weights" if began == "scratch" else _name(began)),
        ("tokens/s of the last updates", format.format_count(speeds[-1]) if speeds else None),
    ]


def _epochs(run: Record, updates: int, seen: int) -> float | None:
    """The share, up to here, of those that the whole run was to make."""
    batch, of_run = _dict_field(run, "batch").get("tokens"), _dict_field(run, "data").get("epochs")
    planned = _dict_field(run, "config").get("max_iters")
    if of_run is None or not planned or not batch:
        return None
    in_all = seen + max(0, planned - updates) * batch
    return float(of_run * seen / in_all) if in_all else None


def _tokens_seen(parcel: ExportableModel) -> int | None:
    """As the checkpoint counts them: each process adds its own updates, whose size may differ."""
    sequences = _dict_field(dict(parcel.origin.state), "progress").get("sequences")
    return sequences * parcel.shape.block_size if isinstance(sequences, int) else None


def _batches(records: list[Record]) -> list[int]:
    """Tokens per update of the processes that led here, in order; what stayed the same is there once."""
    sizes = [_dict_field(record, "batch").get("tokens") for record in records if record["kind"] == "run"]
    return [size for size, _ in itertools.groupby(size for size in sizes if isinstance(size, int))]


def _loss_rows(parcel: ExportableModel, records: list[Record]) -> TableRows:
    evals = [record for record in records if record["kind"] == "eval"]
    here = [record for record in evals if record["iter"] == parcel.origin.iter]
    rows: TableRows = []
    for record in here:
        what = f"{record['split']}, {'the whole split' if record['whole_split'] else 'sampled'}"
        rows.append((f"{what}: nats per token", f"{record['loss']:.4f}"))
        if record["bits_per_byte"] is not None and record["split"] == "val":
            rows.append((f"{what}: bits per byte", f"{record['bits_per_byte']:.4f}"))
    if not rows and parcel.origin.val_loss is not None and math.isfinite(parcel.origin.val_loss):
        rows.append(("validation loss, nats per token", f"{parcel.origin.val_loss:.4f}"))
    return list(dict.fromkeys(rows))


def _time_rows(whole: list[Record]) -> TableRows:
    """Over all processes of the run, up to its end: the checkpoint may be of before.

    One that was killed left no ledger, only the times of its records.
    """
    total: dict[str, float] = {}
    spans = []
    for mine in _by_process(whole):
        ledgers = [_dict_field(record, "ledger") for record in mine if record["kind"] == "end"]
        if not any(ledgers):
            spans.append(max(0.0, mine[-1]["time"] - mine[0]["time"]))
        for phase, seconds in (item for ledger in ledgers for item in ledger.items()):
            total[phase] = total.get(phase, 0.0) + seconds
    took = sum(total.values()) + sum(spans)
    if not took:
        return []
    rows: TableRows = [(phase, f"{format.format_duration(s)} ({s / took:.1%})") for phase, s in total.items()]
    if not spans:
        return [*rows, ("the whole run", format.format_duration(took))]
    those = "1 process" if len(spans) == 1 else f"{len(spans)} processes"
    known = f"{format.format_duration(sum(spans))} ({sum(spans) / took:.1%}), from first to last record"
    return [
        *rows,
        (f"{those} that left no ledger", known),
        ("the whole run", f"at least {format.format_duration(took)}"),
    ]


def _by_process(records: list[Record]) -> list[list[Record]]:
    """An imported run is one: its last record has the ledger of all."""
    processes: dict[object, list[Record]] = {}
    for record in records:
        processes.setdefault(record.get("imported") or record.get("process"), []).append(record)
    return list(processes.values())


def _hardware_rows(run: Record) -> TableRows:
    machine = _dict_field(run, "machine")
    if not machine:
        return []
    device, processor = _dict_field(machine, "device"), _dict_field(machine, "cpu")
    rows: TableRows = [("device", device.get("name"))]
    if device.get("type") == "cuda":
        rows += [("CUDA, driver", f"{device.get('cuda')}, {device.get('driver')}")]
        rows += [("processor", processor.get("model"))]
    rows += [("cores", processor.get("usable_cores"))]
    return [
        *rows,
        ("torch, Python, system", ", ".join(str(machine.get(x)) for x in ("torch", "python", "os"))),
    ]


def _use(parcel: ExportableModel, to: str) -> str:
    """With a text to begin from that this tokenizer knows, and as much more as the context holds."""
    start = _start(parcel.tokenizer)
    room = parcel.shape.block_size - len(parcel.tokenizer.encode(start))
    literal = json.dumps(start, ensure_ascii=False)
    return (
        _LOADING_EXAMPLES[to]
        .replace("START", literal)
        .replace("ROOM", str(max(1, min(_EXAMPLE_NEW_TOKENS, room))))
    )


def _start(tokenizer: Tokenizer) -> str:
    """A new line, which a text may well begin after; where there is none, the first token."""
    if tokenizer.name == "ids":
        return "0"
    if isinstance(tokenizer, CharTokenizer) and "\n" not in tokenizer.characters:
        return tokenizer.characters[0]
    return "\n"


def _command(parcel: ExportableModel) -> str:
    if not parcel.origin.settings:
        return ""
    where = f"with `{TRAINING_FILE}` beside this file, which has every setting of the run."
    return f"## Command\n\n    glass train {TRAINING_FILE}\n\n{where}"
