"""Whatever has a digest is compared with it, and what is damaged is named with a way to continue."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_runs import prepare_dataset, train_run

from glassgpt.cli import main
from glassgpt.data.digests import EXPORT_RECORD_FILE
from glassgpt.data.manifest import LADDER_FILE
from glassgpt.errors import UserError
from glassgpt.exchange.exchange_options import ExportOptions
from glassgpt.exchange.export import export
from glassgpt.record import journal
from glassgpt.verify_files import VerifyReport, find_target, verify

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, a run on it with three checkpoints, and an export of the run."""
    place = tmp_path_factory.mktemp("verify")
    data = prepare_dataset(place, "mine", "bpe:300")
    run = train_run(place / "runs" / "small", data)
    export(f"{run}@last", ExportOptions(to="glass", out=str(place / "exports" / "small")))
    return place


@pytest.fixture
def place(originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to spoil, and to be in."""
    shutil.copytree(originals, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def verified(name: str) -> VerifyReport:
    return verify(*find_target(name), lambda size: None)


def damaged(name: str) -> dict[str, str]:
    return {part.name: part.message for part in verified(name).with_verdict("damaged")}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_everything_is_good_and_torch_is_not_needed(place: Path) -> None:
    code = (
        "import sys; from glassgpt.cli import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    words = ["verify", "runs/small", "mine", "exports/small", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["good"]
    assert [(told["kind"], told["path"]) for told in document["verified"]] == [
        ("run", "runs/small"),
        ("dataset", "data/mine"),
        ("export", "exports/small"),
    ]
    run, dataset, exported = (
        {part["name"]: part["verdict"] for part in told["parts"]} for told in document["verified"]
    )
    points = {f"checkpoints/{number:08}": "good" for number in (1, 2, 3)}
    rest = {"config.toml": "no digest", "journal.jsonl": "no digest", "tokenizer": "good"}
    assert run.items() >= (points | rest).items()
    derived = {LADDER_FILE}  # it can be deleted, and made again
    assert set(dataset) == {path.name for path in Path("data/mine").iterdir()} - derived
    assert set(exported) == {path.name for path in Path("exports/small").iterdir()}
    assert set(dataset.values()) == set(exported.values()) == {"good"}


def test_a_flipped_bit_or_a_missing_file_is_named(place: Path, capsys: Capture) -> None:
    """Of every file that has a digest, or is one."""
    spoil: tuple[Callable[[Path], None], ...] = (flip, Path.unlink)
    for name in ("runs/small/tokenizer", "runs/small/checkpoints/00000002", "data/mine", "exports/small"):
        run = Path(*Path(name).parts[:2])
        for path in sorted(path for path in Path(name).iterdir() if path.name != LADDER_FILE):
            content = path.read_bytes()
            for change in spoil:
                if change is not flip and path.name in ("manifest.json", EXPORT_RECORD_FILE):
                    continue  # then it is something else
                change(path)
                (part,) = damaged(str(run)).items()
                assert path.name in "".join(part) or path.parent.name in part[0]
                path.write_bytes(content)
    assert not damaged("runs/small")
    flip(Path("data/mine/train.bin"))
    assert main(["verify", "runs/small", "data/mine"]) == 1
    assert "damaged    train.bin" in capsys.readouterr().out


def test_a_torn_line_of_the_journal_is_counted_and_no_damage(place: Path) -> None:
    with (Path("runs/small") / journal.FILE_NAME).open("ab") as file:
        file.write(b'{"kind": "st')
    told = {part.name: part for part in verified("small").parts}
    assert told[journal.FILE_NAME].verdict == "no digest"
    assert told[journal.FILE_NAME].message.endswith("1 torn line")
    assert not verified("small").next


def test_settings_that_are_cut_off(place: Path) -> None:
    path = Path("runs/small/config.toml")
    path.write_text(path.read_text()[:300])
    assert damaged("small").keys() == {"config.toml"}
    path.unlink()
    assert damaged("small").keys() == {"config.toml"}


def commands(name: str) -> list[list[str]]:
    return [shlex.split(step.command)[1:] for step in verified(name).next]


def test_the_way_to_continue_works(place: Path, capsys: Capture) -> None:
    flip(Path("runs/small/checkpoints/00000003/model.safetensors"))
    (resume,) = commands("small")
    assert main(resume) == 0
    assert not damaged("small")
    assert Path("runs/small/checkpoints/damaged-00000003").is_dir()
    flip(Path("exports/small/model.safetensors"))
    (again,) = commands("exports/small")
    shutil.rmtree("exports/small")
    assert main(again) == 0
    assert not damaged("exports/small")
    flip(Path("data/mine/val.bin"))
    (prepare,) = commands("data/mine")
    assert main([word.replace("TEXT", "mine.txt") for word in prepare]) == 0
    assert not damaged("data/mine")


def test_the_way_to_continue_depends_on_what_is_good(place: Path) -> None:
    points = sorted(Path("runs/small/checkpoints").iterdir())
    flip(points[0] / "model.safetensors")
    assert commands("small") == [["sample", "runs/small@last"]]
    for point in points[1:]:
        flip(point / "model.safetensors")
    assert commands("small") == [["train", "runs/small/config.toml"]]
    flip(points[-1] / "model.safetensors")  # back
    points[-1].rename(points[-1].with_name("20261116"))
    (step,) = verified("small").next
    assert step.command == f"mv runs/small/checkpoints/20261116 {points[-1]}"
    shutil.rmtree("runs/small/checkpoints")
    assert damaged("small").keys() == {"checkpoints"}
    flip(Path("exports/small") / EXPORT_RECORD_FILE)
    assert damaged("exports/small").keys() == {EXPORT_RECORD_FILE}


def test_what_cannot_be_verified_is_an_error(place: Path, capsys: Capture) -> None:
    Path("nano").mkdir()
    Path("nano/train.bin").write_bytes(b"ab")
    assert main(["verify", "nothing", "runs", "nano"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in said] == ["nothing", "runs", "nano"]
    assert "records no digests" in said[2]
    assert main(["verify"]) == 2
    with pytest.raises(UserError, match="neither a run"):
        find_target("runs/small/config.toml")
