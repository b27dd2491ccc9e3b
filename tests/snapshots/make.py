"""Writes what GlassGPT says and computes to files, to compare two commits.

    python tests/snapshots/make.py BEFORE            # at one commit
    python tests/snapshots/make.py AFTER             # at the other
    python tests/snapshots/compare.py BEFORE AFTER

Uses the command line, the documented Python API and the files of runs: no internal module. So the same
script works on both sides of a refactoring. What depends on the machine or on the time is masked with "*".

    OUT/logs/       the generated logs
    OUT/explain/    explain --json and its text, of each log and of each old run in checkpoints/
    OUT/compare/    the same of pairs
    OUT/plan/       the same of presets and cards
    OUT/mistakes/   wrong commands: message and exit code
    OUT/runs/       tiny CPU runs: journal, config.toml, digest of each tensor of the last checkpoint
    OUT/old_runs/   show, runs, verify, sample, report on the runs in checkpoints/
    OUT/help/       --help of each command
    OUT/start/      third-party packages that a command imports, and its wall time
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KINDS = ("explain", "compare", "plan", "mistakes", "runs", "old_runs", "help", "start")
COMMANDS = (
    *("train", "sample", "look", "eval", "prepare", "plan", "tune", "doctor", "runs", "show"),
    *("explain", "watch", "compare", "report", "export", "import", "track", "verify", "completion"),
)
# For text: a fixed width, no colour, English, one thread.
ENVIRONMENT = {
    "COLUMNS": "100", "LINES": "40", "NO_COLOR": "1", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "LANGUAGE": "",
    "TZ": "UTC", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TERM": "dumb",
}  # fmt: skip

PAIRS: dict[str, list[str]] = {
    "readme-runs": ["nanogpt-cpu-readme", "nanogpt-h200-shakespeare"],
    "note-003": ["note-003-cpu", "note-003-gpu"],
    "note-004-bare": ["note-004-small", "note-004-large"],
    "same-run-twice": ["note-003-gpu", "note-003-gpu"],
    "note-and-real": ["note-003-gpu", "nanogpt-h200-shakespeare"],
    "slower": ["planted-healthy-nanogpt", "planted-slower-from-1000"],
    "overfitted": ["planted-healthy-nanogpt", "planted-overfitted"],
    "nan": ["planted-healthy-nanogpt", "planted-loss-nan"],
    "resumed": ["planted-healthy-nanogpt", "planted-resume-jump"],
    "evals": ["planted-eval-every-iteration", "planted-healthy-nanogpt"],
    "llmc-mfu": ["planted-healthy-llmc", "planted-mfu-impossible"],
    "nanogpt-llmc": ["planted-healthy-nanogpt", "planted-healthy-llmc"],
    "nanochat-litgpt": ["printed-nanochat", "printed-litgpt"],
    "trainer-modded": ["printed-trainer", "printed-modded-nanogpt"],
    "three": ["printed-nanogpt", "printed-build-nanogpt", "printed-llm-c"],
    "unknown-nanogpt": ["printed-unknown", "printed-nanogpt"],
}

PLANS: dict[str, list[str]] = {
    "gpt2-h100": ["gpt2_124m", "--gpu=h100"],
    "gpt2-8-h100-2-nodes": ["gpt2_124m", "--gpu=h100", "--gpus=8", "--nodes=2", "--network=50"],
    "gpt2-rtx4070": ["gpt2_124m", "--gpu=rtx4070"],
    "gpt2-fast-rtx4090-price": ["gpt2_124m_fast", "--gpu=rtx4090", "--price=0.4"],
    "shakespeare-rtx3060": ["shakespeare_char", "--gpu=rtx3060"],
    "shakespeare-fast-t4": ["shakespeare_char_fast", "--gpu=t4"],
    "fineweb-rtx4070ti": ["fineweb_edu_12gb", "--gpu=RTX 4070 Ti"],
    "quickstart-m3-max": ["quickstart", "--gpu=m3-max"],
    "gpt2-mi300x": ["gpt2_124m", "--gpu=mi300x"],
    "finetune-xl-a100": ["finetune_shakespeare", "--gpu=a100"],
    "too-large-rtx3060": ["gpt2_124m", "--gpu=rtx3060", "--n_layer=48", "--n_embd=1600", "--n_head=25"],
    "checkpointing-l4": ["gpt2_124m", "--gpu=l4", "--activation_checkpointing=True", "--batch_size=64"],
    "muon-modern-a100": ["gpt2_124m", "--gpu=a100", "--arch=modern", "--optimizer=muon"],
    "hours-8-rtx4090": ["--hours=8", "--gpu=rtx4090"],
}

MISTAKES: dict[str, list[str]] = {
    "command": ["trian"],
    "flag": ["train", "--n_lyaer=3"],
    "value": ["train", "--n_layer=three"],
    "several": ["train", "--n_layer=-1", "--dropout=2", "--batch_size=0"],
    "preset": ["plan", "gpt2_125m", "--gpu=h100"],
    "card": ["plan", "gpt2_124m", "--gpu=rtx9999"],
    "no-file": ["explain", "nothing.log"],
    "empty-log": ["explain", "empty.log"],
    "no-run": ["sample", "nothing"],
    "one-run": ["compare", "empty.log"],
    "no-dataset": ["train", "--dataset=nothing", "--device=cpu"],
    "heads": ["train", "--n_embd=10", "--n_head=3"],
    "no-source": ["prepare", "nothing.txt"],
    "show-nothing": ["show", "nothing"],
    "language": ["explain", "empty.log", "--lang=xx"],
}

SETTINGS: dict[str, Any] = {
    "data_dir": "data/char", "n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 8, "dtype": "float32",
    "batch_size": 4, "gradient_accumulation_steps": 1, "learning_rate": 1e-2, "warmup_iters": 3,
    "max_iters": 20, "lr_decay_iters": 20, "eval_interval": 10, "device": "cpu", "compile": "off",
    "probe_seconds": 0.0, "threads": 1,
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "muon": {"arch": "modern", "optimizer": "muon"},
    "accumulation": {"batch_size": 2, "gradient_accumulation_steps": 4, "schedule": "wsd", "bias": True},
    "dropout": {"dropout": 0.2},
    "documents": {"data_dir": "data/documents", "documents": "apart"},
    "bpe": {"data_dir": "data/bpe", "tie_embeddings": False, "eval_tokens": 64, "sample_tokens": 8},
}
# These stop after 10 updates and resume: they must end with the digests of the runs above.
RESUMED = ("muon", "dropout", "documents")

# Keys of journals whose values depend on the machine, the clock or chance.
_MASKED = re.compile(
    r"time|start|machine|memory|memory_bytes|phases|ledger|tokens_per_s|flops_per_s|mfu|(.*_)?(ms|s)"
)
# In text: durations, speeds, dates.
_TIMING = re.compile(r"\d[\d.,]*k?M? ?(ms|s|tok/s|tokens per second)\b|\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?")


@dataclass(frozen=True)
class Result:
    out: str
    err: str
    code: int

    def text(self) -> str:
        return self.out + (f"\n[stderr]\n{self.err}" if self.err else "") + f"\n[exit code {self.code}]\n"


def run_command(words: Sequence[str]) -> Result:
    """`python -m glassgpt WORDS`, in this process: it is faster."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    arguments, code = sys.argv, 0
    sys.argv = ["glass", *words]
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            runpy.run_module("glassgpt", run_name="__main__", alter_sys=False)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    finally:
        sys.argv = arguments
    out, err = (bytes(stream.buffer.getvalue()).decode() for stream in streams)
    return Result(out, err, code)


def document(words: Sequence[str]) -> Any:
    """The JSON that a command prints, with its exit code."""
    result = run_command([*words, "--json"])
    try:
        return {"exit_code": result.code, "document": json.loads(result.out), "stderr": result.err}
    except json.JSONDecodeError:
        return {"exit_code": result.code, "document": None, "stderr": result.err}


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, str):
        content = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    path.write_text(content, encoding="utf-8")


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """An empty current folder, a fixed environment and a large disk. Outputs name files relative to it."""
    before, environment = Path.cwd(), dict(os.environ)
    terabyte = SimpleNamespace(total=2**40, used=0, free=2**40)
    with tempfile.TemporaryDirectory() as folder, mock.patch("shutil.disk_usage", return_value=terabyte):
        os.environ.update(ENVIRONMENT)
        os.environ["HOME"] = os.environ["XDG_CACHE_HOME"] = folder  # no cache of this machine
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environment)


# --- the parts ---


def copy_old_runs() -> list[str]:
    """The runs in checkpoints/, beside their datasets: real journals with fixed times."""
    for folder in sorted((HERE / "checkpoints").iterdir()):
        shutil.copytree(folder / "run", f"runs/{folder.name}")
    return [f"runs/{folder.name}" for folder in sorted((HERE / "checkpoints").iterdir())]


def write_logs(more: Path | None) -> dict[str, str]:
    """Name -> path, relative to the current folder. `more`: a folder with further logs."""
    from snapshot_logs import every_log

    Path("logs").mkdir()
    paths = {}
    for name, text in every_log().items():
        paths[name] = f"logs/{name}.log"
        Path(paths[name]).write_text(text, encoding="utf-8")
    if more is not None:
        shutil.copytree(more, "more")
        suffixes = (".log", ".csv", ".jsonl", ".txt")
        for path in sorted(Path("more").iterdir()):
            is_log = path.suffix in suffixes or path.name.endswith("trainer_state.json")
            if is_log:
                paths[f"more-{path.name}"] = str(path)
    return paths


def explain_items(logs: dict[str, str]) -> Iterator[tuple[str, Any]]:
    for name, path in logs.items():
        yield f"explain/{name}.json", document(["explain", path])
        yield f"explain/{name}.txt", run_command(["explain", path]).text()
    for name in ("nanogpt-cpu-readme", "nanogpt-h200-shakespeare", "note-001"):
        yield f"explain/{name}.full.txt", run_command(["explain", logs[name], "--full"]).text()
        yield f"explain/{name}.4090.txt", run_command(["explain", logs[name], "--gpu=rtx4090"]).text()
        for language in ("hi", "ar"):
            words = ["explain", logs[name], f"--lang={language}"]
            yield f"explain/{name}.{language}.txt", run_command(words).text()


def compare_items(logs: dict[str, str], text: bool = True) -> Iterator[tuple[str, Any]]:
    from snapshot_logs import note_004_flags

    pairs = {name: [logs[one] for one in names] for name, names in PAIRS.items()}
    pairs["note-004"] = [*pairs["note-004-bare"], *note_004_flags()]
    pairs["old-runs"] = ["runs/format-1", "runs/format-2", "runs/format-2-muon"]
    for name, words in pairs.items():
        yield f"compare/{name}.json", document(["compare", *words])
        if text:
            yield f"compare/{name}.txt", run_command(["compare", *words]).text()


def plan_items(text: bool = True, cards: bool = True) -> Iterator[tuple[str, Any]]:
    for name, words in PLANS.items():
        yield f"plan/{name}.json", document(["plan", *words])
        if text:
            yield f"plan/{name}.txt", run_command(["plan", *words]).text()
    if cards:
        yield "plan/cards.txt", run_command(["plan", "--cards"]).text()


def mistake_items() -> Iterator[tuple[str, Any]]:
    Path("empty.log").touch()
    for name, words in MISTAKES.items():
        yield f"mistakes/{name}.txt", run_command(words).text()


def old_run_items() -> Iterator[tuple[str, Any]]:
    yield "old_runs/runs.txt", run_command(["runs", "runs"]).text()
    for name in ("format-1", "format-2", "format-2-muon"):
        run = f"runs/{name}"
        yield f"old_runs/{name}.show.txt", run_command(["show", run]).text()
        yield f"old_runs/{name}.verify.json", document(["verify", run])
        words = ["sample", run, "--num_samples=2", "--max_new_tokens=40", "--device=cpu", "--dtype=float32"]
        sampled = run_command(words)
        yield f"old_runs/{name}.sample.out", sampled.out
        yield f"old_runs/{name}.sample.txt", _TIMING.sub("*", sampled.err)
        run_command(["track", run, "--to=csv"])
        for path in sorted(Path(run).rglob("*.csv")):
            yield f"old_runs/{name}.{path.name}", path.read_text()
        report = run_command(["report", run, f"--out={name}.html"])
        yield f"old_runs/{name}.report.txt", report.text()
        page = Path(f"{name}.html").read_text(encoding="utf-8")
        # Of the page, the words; not the style sheet and the scripts.
        words_of_page = re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]*>", "\n", page)
        yield f"old_runs/{name}.page.txt", re.sub(r"\s*\n\s*", "\n", words_of_page)


def help_items() -> Iterator[tuple[str, Any]]:
    yield "help/glass.txt", run_command(["--help"]).text()
    for command in COMMANDS:
        yield f"help/{command}.txt", run_command([command, "--help"]).text()


# --- tiny runs ---


def make_datasets() -> None:
    draw = random.Random(7)
    words = ("glass", "house", "room", "door", "a", "sees", "the", "light", "through", "wall")
    lines = [" ".join(draw.choices(words, k=6)) for _ in range(150)]
    Path("tiny.txt").write_text("\n".join(lines) + "\n")
    texts = [" ".join(draw.choices(words, k=draw.choice([1, 2, 5, 40]))) for _ in range(150)]
    Path("tiny.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    in_bulk = ["--tokenizer=bpe:280", "--val_fraction=0.1", "--shard_tokens=500", "--workers=1"]
    for name, source, more in (
        ("char", "tiny.txt", []),
        ("bpe", "tiny.txt", ["--tokenizer=bpe:280"]),
        ("documents", "tiny.jsonl", in_bulk),
    ):
        result = run_command(["prepare", source, f"--out_dir=data/{name}", *more])
        if result.code:
            raise SystemExit(result.err)


def journal(run: Path) -> list[Any]:
    """Its records, masked. Checkpoints are written in the background, so their place is chance: last."""
    records = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    records.sort(key=lambda record: record["kind"] == "checkpoint")
    return [_masked(record) for record in records]


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: "*" if _MASKED.fullmatch(key) and item is not None else _masked(item)
            for key, item in value.items()
        }
    return [_masked(item) for item in value] if isinstance(value, list) else value


def digests(run: Path) -> dict[str, str]:
    """FILE:TENSOR -> SHA-256 of its dtype, shape and bytes, of the last checkpoint."""
    from safetensors.numpy import load_file

    last = sorted((run / "checkpoints").iterdir())[-1]
    return {
        f"{last.name}/{path.name}:{name}": hashlib.sha256(
            f"{tensor.dtype} {tensor.shape} ".encode() + tensor.tobytes()
        ).hexdigest()
        for path in sorted(last.glob("*.safetensors"))
        for name, tensor in sorted(load_file(path).items())
    }


def train_tiny(name: str, out_dir: str, stop_at: int | None = None) -> Path:
    """The run RUNS[name]; with `stop_at` it stops there, and is resumed to its end."""
    import glassgpt

    settings = SETTINGS | RUNS[name] | {"out_dir": out_dir}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if stop_at is None:
            glassgpt.train(glassgpt.TrainConfig(**settings))
        else:
            glassgpt.train(glassgpt.TrainConfig(**settings | {"max_iters": stop_at}))
            glassgpt.resume(out_dir, max_iters=settings["max_iters"])
    return Path(out_dir)


def run_items() -> Iterator[tuple[str, Any]]:
    make_datasets()
    tokens = sorted(Path("data").glob("*/*.bin"))
    yield "runs/data.json", {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in tokens}
    whole: dict[str, dict[str, str]] = {}
    for name in RUNS:
        run = train_tiny(name, f"tiny/{name}")
        whole[name] = digests(run)
        yield f"runs/{name}.journal.json", journal(run)
        yield f"runs/{name}.config.toml", (run / "config.toml").read_text()
        yield f"runs/{name}.digests.json", whole[name]
        files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
        yield f"runs/{name}.files.json", files
    for name in RESUMED:
        run = train_tiny(name, f"tiny/{name}-resumed", stop_at=10)
        yield f"runs/{name}-resumed.journal.json", journal(run)
        yield f"runs/{name}-resumed.equal.json", {"same digests": digests(run) == whole[name]}


# --- what starting costs ---

_LIST_IMPORTS = """
import runpy, sys
names, sys.argv = sys.argv[1], ["glass", *sys.argv[2:]]
try:
    runpy.run_module("glassgpt", run_name="__main__", alter_sys=False)
except SystemExit:
    pass
found = sorted({
    name.partition(".")[0] for name, module in list(sys.modules.items())
    if "site-packages" in (getattr(module, "__file__", None) or "")
})
open(names, "w").write("\\n".join(name for name in found if not name.startswith("_")))
"""


def start_items(timing: bool) -> Iterator[tuple[str, Any]]:
    commands = {
        "help": ["--help"],
        "explain": ["explain", "logs/nanogpt-cpu-readme.log"],
        "compare": ["compare", "logs/note-003-cpu.log", "logs/note-003-gpu.log"],
        "plan": ["plan", "gpt2_124m", "--gpu=h100"],
        "runs": ["runs", "runs"],
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    imports: dict[str, Any] = {}
    times: dict[str, float] = {}
    for name, words in commands.items():
        for _ in range(5 if timing else 0):
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "glassgpt", *words], env=environment, capture_output=True, check=True
            )
            times[name] = min(times.get(name, 1e9), round(time.perf_counter() - begin, 3))
        subprocess.run(
            [sys.executable, "-c", _LIST_IMPORTS, "names.txt", *words],
            env=environment,
            capture_output=True,
            check=True,
        )
        found = Path("names.txt").read_text().split()
        imports[name] = {"packages": found, "torch": "torch" in found}
    yield "start/imports.json", imports
    if timing:
        yield "start/times.json", times


# --- all of it ---


def make(out: Path, only: Sequence[str], logs: Path | None, timing: bool) -> dict[str, float]:
    """Seconds by kind."""
    sys.path.insert(0, str(HERE))
    seconds = {}
    with workplace():
        paths = write_logs(logs)
        paths |= {run.replace("/", "-"): run for run in copy_old_runs()}
        for name, path in paths.items():
            if path.startswith("logs/"):
                write(out / "logs" / f"{name}.log", Path(path).read_text(encoding="utf-8"))
        parts: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
            "explain": lambda: explain_items(paths),
            "compare": lambda: compare_items(paths),
            "plan": plan_items,
            "mistakes": mistake_items,
            "old_runs": old_run_items,
            "help": help_items,
            "start": lambda: start_items(timing),
            "runs": run_items,
        }
        for kind in only:
            begin = time.perf_counter()
            for name, content in parts[kind]():
                write(out / name, content)
            seconds[kind] = time.perf_counter() - begin
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="the folder to write to; emptied first if it is such a corpus")
    parser.add_argument("--only", default=",".join(KINDS), help=f"some of {','.join(KINDS)}")
    parser.add_argument("--logs", type=Path, help="a folder with more logs to explain")
    parser.add_argument("--no-timing", action="store_true", help="do not measure wall times")
    given = parser.parse_args()
    out, only = given.out.resolve(), given.only.split(",")
    if unknown := set(only) - set(KINDS):
        parser.error(f"--only: no such kind: {', '.join(sorted(unknown))}")
    if out.exists() and any(out.iterdir()) and not (out / "logs").is_dir():
        parser.error(f"{out} holds something else")
    shutil.rmtree(out, ignore_errors=True)
    seconds = make(out, only, given.logs and given.logs.resolve(), not given.no_timing)
    files = [path for path in out.rglob("*") if path.is_file()]
    print(f"{out}: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")
    print(", ".join(f"{kind} {spent:.1f} s" for kind, spent in seconds.items()))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
