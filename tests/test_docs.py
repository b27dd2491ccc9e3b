"""The pages in docs/ say what is true: help texts, links, flags, examples, every field of the journal, every
fact, every finding."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from glassgpt.cli import COMMAND_MODULES, load_command
from glassgpt.config import TrainConfig
from glassgpt.flags import SYNONYMS
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.record.run_requests import RequestWatch, RunRequested
from glassgpt.runs.facts import Facts
from glassgpt.runs.lines import read_lines
from glassgpt.runs.overrides import parse_overrides
from glassgpt.runs.recognise import KNOWN, read_log
from glassgpt.runs.run_log import RunLog
from glassgpt.track.tracker_feed import EVAL_METRICS, MEMORY_METRICS, STEP_METRICS
from glassgpt.training.learner import Learner
from glassgpt.training.session import train

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
PAGES_AND_README = [*PAGES, *sorted(ROOT.glob("README*.md"))]


def load_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load_build()


# --- outputs ---


def blocks(kind: str) -> list[Any]:
    found = []
    for page in PAGES_AND_README:
        for block in build.BLOCK.finditer(page.read_text(encoding="utf-8")):
            if block["kind"] == kind:
                found.append(pytest.param(block, id=f"{page.name}: {block['command']}"))
    return found


@pytest.mark.parametrize("block", blocks("output"))
def test_an_output_block_is_what_the_program_prints_now(block: re.Match[str], tmp_path: Path) -> None:
    build.write_inputs(tmp_path)
    made = build.run_command(block["command"], tmp_path, exit_codes=(0, 2, 3))
    assert made == block["content"], "run: python docs/build.py"


def test_every_example_shows_what_its_page_expects_of_it() -> None:
    """Building a page checks the exit code too, which the text in the page does not have."""
    examples = [block.values[0] for block in blocks("example")]
    assert len(examples) > 50
    wrong = [block["command"] for block in examples if not build.is_as_expected(block, block["content"])]
    assert not wrong, "run: python docs/build.py"
    assert not [block["pattern"] for block in examples if re.search(block["pattern"], "", re.S | re.M)]


def test_no_block_is_empty_or_left_out() -> None:
    for page in PAGES_AND_README:
        text = page.read_text(encoding="utf-8")
        found = list(build.BLOCK.finditer(text))
        assert len(found) == len(re.findall(r"^<!--", text, re.M)), f"{page.name}: a comment that is no block"
        for block in found:
            assert block["content"].startswith(f"$ {block['command']}\n"), f"python docs/build.py {page.name}"


def test_a_block_is_filled_in_its_place_and_must_be_as_expected(tmp_path: Path) -> None:
    def fill(page: str) -> str:
        return str(build.BLOCK.sub(lambda block: build.fill_block(block, tmp_path), page))

    head = "<!-- example: echo 12; exit 3\nexpect exit 3: ^[1-9]\\d$ -->\n```text\n"
    assert fill(f"a\n{head}old\n```\nb\n") == f"a\n{head}$ echo 12; exit 3\n12\n```\nb\n"
    for wrong in (head.replace("echo 12", "echo 02"), head.replace("expect exit 3", "expect")):
        with pytest.raises(SystemExit):
            fill(f"{wrong}```\n")


def test_settings_page_is_made_of_the_config() -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert page == build.settings_page(), "run: python docs/build.py settings.md"
    named = re.findall(r"^\| `(\w+)`(?:, also `(\w+)`)? \|", page, re.M)
    assert [name for name, _ in named] == [field.name for field in dataclasses.fields(TrainConfig)]
    of_training = {field.name for field in dataclasses.fields(TrainConfig)}
    expected = {name: synonym for name, synonym in SYNONYMS.items() if name in of_training}
    assert {name: synonym for name, synonym in named if synonym} == expected


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES} - set(re.findall(r"\]\(([\w-]+\.md)", index)) == {"README.md"}
    assert len((DOCS / "train.md").read_text(encoding="utf-8").splitlines()) <= 350


# --- links and flags ---


def anchors(page: Path) -> set[str]:
    """Headings as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_relative_links_lead_somewhere() -> None:
    for page in PAGES_AND_README:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if "://" in target or target.startswith("mailto:"):
                continue
            path, _, anchor = target.partition("#")
            place = page.parent / path if path else page
            assert place.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(place), f"{page.name}: {target}"


TORCHRUNS = {
    "standalone",
    "nproc_per_node",
    "nnodes",
    "max_restarts",
    "no_python",
    "rdzv_backend",
    "rdzv_id",
    "rdzv_endpoint",
}


def known_flags() -> set[str]:
    words = {"help", "version", "key", "logdir", "signal"}  # the last are TensorBoard's and Slurm's
    names = {field.name for name in COMMAND_MODULES for field in dataclasses.fields(load_command(name).flags)}
    return names | {*SYNONYMS.values()} | words | TORCHRUNS


def test_every_flag_mentioned_exists() -> None:
    known = known_flags()
    for page in PAGES_AND_README:
        text = page.read_text(encoding="utf-8")
        commands = [block["command"] for block in build.BLOCK.finditer(text) if block["kind"] == "example"]
        prose = build.BLOCK.sub("", text)  # `output` blocks are compared with the program, mistakes and all
        mentioned = re.findall(r"(?<![\w-])--([a-z]\w*)(?![\w.])", "\n".join([prose, *commands]))
        assert set(mentioned) - known == set(), page.name


# --- explain and compare ---


def rows(page: str, section: str) -> list[str]:
    """The names in the first column of a section's tables."""
    _, _, rest = (DOCS / page).read_text(encoding="utf-8").partition(f"\n## {section}\n")
    return re.findall(r"^\| `([\w-]+)` \|", re.split(r"^## ", rest, flags=re.M)[0], re.M)


def named_in(folder: Path, kind: str) -> set[str]:
    """The ids of all findings, or conclusions, that the code makes."""
    found = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == kind:
                (id,) = (
                    [node.args[0]] if node.args else [key.value for key in node.keywords if key.arg == "id"]
                )
                assert isinstance(id, ast.Constant), f"{file.name}: an id that cannot be read from the code"
                found.add(str(id.value))
    return found


def test_every_fact_is_defined_in_its_order() -> None:
    assert rows("explain.md", "Facts") == [field.name for field in dataclasses.fields(Facts)]


def test_every_finding_is_documented_and_no_other() -> None:
    documented = rows("explain.md", "Findings")
    assert len(documented) == len(set(documented))
    assert set(documented) == named_in(ROOT / "glassgpt/explain/rules", "make_finding")


def test_every_conclusion_is_documented_and_no_other() -> None:
    documented = rows("compare.md", "The verdict")
    assert len(documented) == len(set(documented))
    assert set(documented) == named_in(ROOT / "glassgpt/compare", "Claim")


def example_logs() -> list[tuple[str, str]]:
    return re.findall(
        r"^```text (\S+)\n(.*?)^```$", (DOCS / "explain.md").read_text(encoding="utf-8"), re.S | re.M
    )


def read_example(name: str, lines: str) -> RunLog:
    return read_log(read_lines(io.BytesIO(lines.encode())), name)


@pytest.mark.parametrize(("name", "lines"), example_logs(), ids=[name for name, _ in example_logs()])
def test_the_lines_shown_of_each_format_are_read_as_such(name: str, lines: str) -> None:
    history = read_example(name, lines)
    assert history.trainer.id == name
    assert len(history.steps) == (3 if name == "unknown" else 1)
    # These do not evaluate, or not by loss.
    assert len(history.evals) == (0 if name in ("unknown", "minimind", "torchtune", "verl") else 1)


def test_every_format_has_its_lines() -> None:
    titles = {read_example(*example).trainer.name for example in example_logs()}
    assert titles == {*KNOWN.split(", "), "unknown trainer"}


def test_what_can_be_said_about_a_run() -> None:
    page = (DOCS / "explain.md").read_text(encoding="utf-8")
    names = re.findall(
        r"`(\w+)`", page.partition("any setting of `glass train`, and ")[2].partition("`33M`")[0]
    )
    assert len(names) > 10
    for name in names:
        value = "gpt2" if name in ("tokenizer", "device_name") else "33M"
        assert parse_overrides([f"--a.{name}={value}"], 1)[0].from_flags.keys() == {name}


def test_the_example_of_stopping_really_stops_a_run_that_trains() -> None:
    text = (DOCS / "crashes-and-resuming.md").read_text(encoding="utf-8")
    page = text.partition("## Stopping")[2].partition("\n## ")[0]
    stopped = [
        int(count.replace(",", "")) for count in re.findall(r"interrupted after ([\d,]+) update", page)
    ]
    (resumed,) = (
        int(count.replace(",", "")) for count in re.findall(r"^resume .* ([\d,]+) update", page, re.M)
    )
    assert 0 < stopped[0] == resumed < stopped[1]


# --- Python ---


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)


def run_python(code: str, folder: Path) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_from_python_works_as_written(tiny_data: Path, tmp_path: Path) -> None:
    (code,) = python_blocks(DOCS / "train.md")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/pylib").symlink_to(tiny_data)
    output = run_python(code.replace("max_iters=30", "max_iters=3, probe_seconds=0"), tmp_path)
    assert "step 3\n" in output
    assert output.splitlines()[-1].startswith("runs/run finished ")


def test_reading_a_journal_works_as_written(journals: Path) -> None:
    (code,) = python_blocks(DOCS / "journal.md")
    output = run_python(code.replace("runs/tiny", "whole") + "print(losses)", journals)
    read = journal.effective_records(journal.read(journals / "whole/journal.jsonl"))
    assert output == f"{ {record['iter']: record['loss'] for record in read if record['kind'] == 'step'} }\n"


# --- the journal ---


@pytest.fixture
def journals(tiny: Callable[..., TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with runs that finish, resume, crash, lose their loss, and cannot compile."""
    whole = tiny(
        "whole", max_iters=4, eval_interval=2, log_interval=2, eval_tokens=64, sample_tokens=4, profile="1:3"
    )
    train(whole)
    train(dataclasses.replace(whole, init_from="resume", max_iters=6))
    with monkeypatch.context() as patch:
        patch.setattr("glassgpt.training.forecast_check._MIN_PACE_SECONDS", 0.0)
        train(tiny("revised", max_iters=9, log_interval=2))
        patch.setattr(RequestWatch, "take", lambda watch, run_dir: [RunRequested("1", "save", "page", 0.0)])
        train(tiny("requested", max_iters=2))
    train(tiny("bad", max_iters=4, learning_rate=1e30, grad_clip=0.0))

    def fail(*arguments: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr("torch.compile", lambda hidden, **_: fail)
    train(tiny("eager", max_iters=2, compile="on"))
    monkeypatch.setattr(Learner, "update", fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        train(tiny("crashed", max_iters=2))
    return tmp_path


def documented() -> dict[str, dict[str, str]]:
    """By kind (and `Every record`): field -> the rest of its row."""
    sections = re.split(r"^## ", (DOCS / "journal.md").read_text(encoding="utf-8"), flags=re.M)[1:]
    rows = re.compile(r"^\| `([\w.*]+)` \|(.*)\|$", re.M)
    found = {section.splitlines()[0].strip(): dict(rows.findall(section)) for section in sections}
    return {title: fields for title, fields in found.items() if fields}


def fields_of(record: Record, prefix: str = "") -> Iterator[str]:
    for name, value in record.items():
        path = prefix + name
        yield path
        parts = value if isinstance(value, list) else [value]
        for part in parts:
            if isinstance(part, dict):
                yield from fields_of(part, f"{path}.")


def covers(names: dict[str, str], field: str) -> bool:
    return field in names or f"{field.rpartition('.')[0]}.*" in names


def test_journal_page_has_every_kind_and_field_and_no_other(journals: Path) -> None:
    pages = documented()
    common = pages.pop("Every record")
    seen: dict[str, set[str]] = {kind: set() for kind in pages}
    for path in sorted(journals.glob("*/journal.jsonl")):
        for record in journal.read(path):
            assert record["kind"] in pages, f"docs/journal.md lacks the kind {record['kind']}"
            assert common.keys() <= record.keys()
            seen[record["kind"]] |= set(fields_of(record)) - common.keys()
    for kind, names in pages.items():
        assert seen[kind], f"no run here has a record of kind {kind}"
        unknown = {field for field in seen[kind] if not covers(names, field)}
        assert not unknown, f"docs/journal.md lacks these fields of {kind}"
        always = {name for name, row in names.items() if "only " not in row and not name.endswith("*")}
        assert always <= seen[kind], f"docs/journal.md has fields of {kind} that no record has"


def test_journal_page_names_the_fields_that_may_be_nan() -> None:
    text = (DOCS / "journal.md").read_text(encoding="utf-8")
    said = re.search(r"These fields may have them: (.+?)\.\n", text, re.S)
    assert said is not None
    assert set(re.findall(r"`(\w+)`", said[1])) == journal.NONFINITE_FIELDS


def test_track_page_has_every_metric() -> None:
    page = (DOCS / "track.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+)`", "".join(re.findall(r"^\| (`.+?) \|", page, re.M))))
    evaluated = {f"val/{name}" for name in EVAL_METRICS} | {"train_split/loss", "val_whole/loss"}
    assert named == {*STEP_METRICS.values(), *MEMORY_METRICS.values(), *evaluated}


def test_ledger_page_has_every_phase() -> None:
    from glassgpt.record.ledger import PHASES

    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "where-time-goes.md").read_text(encoding="utf-8"), re.M)
    assert tuple(rows) == PHASES


def test_manifest_fields_are_all_on_the_page() -> None:
    from glassgpt.data.manifest import Manifest

    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "prepare.md").read_text(encoding="utf-8"), re.M)
    assert {field.name for field in dataclasses.fields(Manifest)} <= set(rows)


def test_the_map_and_the_rules_name_only_files_that_exist() -> None:
    for page in (DOCS / "architecture.md", ROOT / "CONTRIBUTING.md"):
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"(?<![\w./])((?:[a-z_]+/)*[a-z_]+\.(?:py|toml))\b", text)
        assert len(named) > 10
        places = (
            ROOT,
            ROOT / "glassgpt",
            ROOT / "glassgpt/training",
            ROOT / "glassgpt/training/distributed",
            ROOT / "glassgpt/runs",
            DOCS,
        )
        missing = {name for name in named if not any((place / name).is_file() for place in places)}
        assert not missing, page.name
