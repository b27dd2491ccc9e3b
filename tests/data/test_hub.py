"""Datasets from Hugging Face, through huggingface_hub itself, from a server that speaks its language."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from corpora import make_documents, texts_in, write_fineweb_parquet, write_json_lines

from glassgpt.data.corpus import could_be_on_hub, is_corpus, open_corpus
from glassgpt.data.dataset import open_dataset
from glassgpt.data.hub import (
    NAMED_HUB_DATASETS,
    HubDataset,
    RepositoryListing,
    parse_hub_dataset,
    training_files,
)
from glassgpt.errors import UserError

SHA = "0123456789abcdef0123456789abcdef01234567"
TEXTS = make_documents(120)


class Hub:
    """Repositories of files, each a folder; what is asked for is noted down."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        self.claimed_bytes: int | None = None  # what it says a file has, if not the truth
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.asked.append(f"{self.command} {path}")
                if path.startswith("/api/datasets/"):
                    self._tell_about("/".join(path.split("/")[3:5]), path)
                elif path.startswith("/datasets/"):
                    _, _, owner, name, _, _, *file = path.split("/")
                    self._send_file(hub.root / owner / name / "/".join(file))
                else:
                    self._answer(404, b"", {})

            do_HEAD = do_GET

            def _tell_about(self, repository: str, path: str) -> None:
                folder = hub.root / repository
                if not folder.is_dir():
                    self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
                    return
                if "refs" in path:
                    self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
                    return
                files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
                card = folder / "card.json"
                siblings = [
                    {
                        "rfilename": file.relative_to(folder).as_posix(),
                        "size": hub.claimed_bytes or file.stat().st_size,
                    }
                    for file in files
                    if file != card
                ]
                if "/tree/" in path:
                    tree = [
                        {"type": "file", "path": one["rfilename"], "size": one["size"], "oid": "0"}
                        for one in siblings
                    ]
                    self._answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
                    return
                about = {"id": repository, "sha": SHA, "siblings": siblings, "private": False, "tags": []}
                about |= {"downloads": 0, "likes": 0, "disabled": False, "gated": False}
                if card.exists():
                    about["cardData"] = json.loads(card.read_text())
                self._answer(200, json.dumps(about).encode(), {"Content-Type": "application/json"})

            def _send_file(self, file: Path) -> None:
                if not file.is_file():
                    self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                    return
                content = file.read_bytes()
                etag = hashlib.sha256(content).hexdigest()
                self._answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": SHA})

            def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            def log_message(self, *arguments: object) -> None:
                pass

        return Handler


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    served = Hub(tmp_path / "hub")
    yield served
    served.server.shutdown()
    served.server.server_close()


def glass(tmp_path: Path, address: str, *words: str) -> subprocess.CompletedProcess[str]:
    settings = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, "-m", "glassgpt", "prepare", *words, "--val_fraction=0.2", "--tokenizer=bpe:300"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **settings, "HF_HUB_ETAG_TIMEOUT": "2"},
        timeout=120,
    )


NOWHERE = "http://127.0.0.1:9"


def test_fineweb_edu_is_downloaded_once_and_then_needs_no_network(tmp_path: Path, hub: Hub) -> None:
    folder = hub.root / "HuggingFaceFW" / "fineweb-edu"
    for i in range(3):
        write_fineweb_parquet(
            folder / "sample" / "10BT" / f"{i:03}_00000.parquet", TEXTS[i * 40 : i * 40 + 40]
        )
    write_fineweb_parquet(folder / "data" / "CC-MAIN-2013-20" / "train-00000-of-00014.parquet", ["much more"])
    done = glass(tmp_path, hub.address, "fineweb_edu")
    assert done.returncode == 0, done.stderr
    dataset = open_dataset(tmp_path / "data" / "fineweb_edu")
    assert sorted(texts_in(dataset, "train") + texts_in(dataset, "val")) == sorted(TEXTS)
    assert dataset.manifest.source == (
        "HuggingFaceFW/fineweb-edu:sample/10BT on Hugging Face, revision 0123456789ab, 3 files of documents"
    )
    assert not any("CC-MAIN" in asked for asked in hub.asked)
    downloads = sum(asked.startswith("GET /datasets/") for asked in hub.asked)
    again = glass(tmp_path, hub.address, "fineweb_edu", "--out_dir=again")
    assert again.returncode == 0, again.stderr
    assert sum(asked.startswith("GET /datasets/") for asked in hub.asked) == downloads
    offline = glass(tmp_path, NOWHERE, "fineweb_edu", "--out_dir=offline")
    assert offline.returncode == 0, offline.stderr
    assert open_dataset(tmp_path / "offline").hash == dataset.hash
    assert (
        "from the cache: Hugging Face could not be asked"
        in open_dataset(tmp_path / "offline").manifest.source
    )


def test_a_configuration_of_the_card(tmp_path: Path, hub: Hub) -> None:
    folder = hub.root / "someone" / "texts"
    write_json_lines(folder / "hi" / "train.jsonl.gz", TEXTS[:60])
    write_json_lines(folder / "hi" / "test.jsonl.gz", ["never"])
    write_json_lines(folder / "ar" / "train.jsonl.gz", TEXTS[60:])
    splits = {
        name: [{"split": "train", "path": f"{name}/train*"}, {"split": "test", "path": f"{name}/test*"}]
        for name in ("hi", "ar")
    }
    configs = [{"config_name": name, "data_files": files} for name, files in splits.items()]
    (folder / "card.json").write_text(json.dumps({"configs": configs}))
    done = glass(tmp_path, hub.address, "someone/texts:hi")
    assert done.returncode == 0, done.stderr
    dataset = open_dataset(tmp_path / "data" / "texts-hi")
    assert sorted(texts_in(dataset, "train") + texts_in(dataset, "val")) == sorted(TEXTS[:60])
    unnamed = glass(tmp_path, hub.address, "someone/texts")
    assert unnamed.returncode == 2
    assert "someone/texts has several configurations: hi, ar: name one, someone/texts:NAME" in unnamed.stderr


def test_without_a_network_it_says_how_to_bring_the_files(tmp_path: Path) -> None:
    done = glass(tmp_path, NOWHERE, "fineweb_edu")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    for part in (
        "fineweb-edu:sample/10BT could not be read from Hugging Face",
        "hf download HuggingFaceFW/fineweb-edu --repo-type dataset",
        '--include "sample/10BT/*" --local-dir FOLDER',
        "glass prepare fineweb_edu --source FOLDER",
    ):
        assert part in done.stderr
    assert not (tmp_path / "data").exists()
    write_fineweb_parquet(tmp_path / "brought" / "sample" / "10BT" / "000_00000.parquet", TEXTS)
    brought = glass(tmp_path, NOWHERE, "fineweb_edu", "--source", "brought")
    assert brought.returncode == 0, brought.stderr
    dataset = open_dataset(tmp_path / "data" / "fineweb_edu")
    assert sorted(texts_in(dataset, "train") + texts_in(dataset, "val")) == sorted(TEXTS)


def test_a_name_that_is_not_there(tmp_path: Path, hub: Hub) -> None:
    done = glass(tmp_path, hub.address, "nobody/nothing")
    assert done.returncode == 2
    assert "nobody/nothing is neither a file or folder here nor a dataset on Hugging Face" in done.stderr
    (hub.root / "someone" / "pictures").mkdir(parents=True)
    (hub.root / "someone" / "pictures" / "cat.png").write_bytes(b"png")
    done = glass(tmp_path, hub.address, "someone/pictures")
    assert done.returncode == 2
    assert "someone/pictures has no parquet or JSON lines to train on" in done.stderr


def test_a_download_that_does_not_fit_is_refused_unless_it_is_there(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 30 exabytes, said the server; and then one that is in the cache already."""
    folder = hub.root / "someone" / "texts"
    write_json_lines(folder / "train.jsonl.gz", TEXTS)
    hub.claimed_bytes = 2**62
    done = glass(tmp_path, hub.address, "someone/texts")
    assert done.returncode == 2
    assert "someone/texts is a download of 4194304.0 TiB, and" in done.stderr
    assert "set HF_HOME" in done.stderr
    hub.claimed_bytes = None
    assert glass(tmp_path, hub.address, "someone/texts").returncode == 0
    hub.claimed_bytes = 2**62
    again = glass(tmp_path, hub.address, "someone/texts", "--out_dir=again")
    assert again.returncode == 0, again.stderr


# --- names and files ---


def test_names() -> None:
    assert (
        parse_hub_dataset("tinystories")
        == NAMED_HUB_DATASETS["tinystories"]
        == HubDataset("roneneldan/TinyStories")
    )
    assert parse_hub_dataset("allenai/c4:en") == HubDataset("allenai/c4", "en")
    assert parse_hub_dataset("no-owner") is None
    assert parse_hub_dataset("a/b/c") is None
    assert could_be_on_hub("allenai/c4")
    assert not could_be_on_hub("texts/mine.txt")
    assert not could_be_on_hub("crawl/a.jsonl.gz")
    assert not could_be_on_hub("shakespeare_char")


def test_a_path_that_is_not_there_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not is_corpus("texts/more")
    assert is_corpus("elsewhere/more")


def test_which_files_are_for_training(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str, list[str]]] = [
        (["data/train-0.parquet", "data/validation-0.parquet", "README.md"], "", ["data/train-0.parquet"]),
        (["a.jsonl", "a.parquet", "test/a.parquet"], "", ["a.parquet"]),
        (["en/c4-train.0.json.gz", "en/c4-validation.0.json.gz"], "en", ["en/c4-train.0.json.gz"]),
        (["en/a.jsonl", "de/a.jsonl"], "de", ["de/a.jsonl"]),
        (["en/a.jsonl", "de/a.jsonl"], "e*.jsonl", ["en/a.jsonl"]),
        (["latest/contest.parquet"], "", ["latest/contest.parquet"]),
        (["pictures.tar"], "", []),
        (["default/partial-train/0000.parquet"], "", []),
    ]
    for files, part, expected in cases:
        with subtests.test(repr(files)):
            listing = RepositoryListing("main", SHA, dict.fromkeys(files, 1), ())
            assert training_files(listing, HubDataset("some/one", part)) == expected


def test_cards_in_all_their_forms() -> None:
    sizes = dict.fromkeys(["a/train.parquet", "a/test.parquet", "b.parquet"], 1)
    for data_files in (
        "a/train*",
        ["a/train*"],
        [{"split": "train", "path": ["a/train*"]}],
        [{"path": "a/tr*"}],
    ):
        listing = RepositoryListing(
            "main", SHA, sizes, [{"config_name": "default", "data_files": data_files}]
        )
        assert training_files(listing, HubDataset("some/one")) == ["a/train.parquet"]
    for config in (
        {"data_files": {"train": "a/train*", "test": "a/test*"}},
        {"data_files": {"train": ["a/tr*"]}, "data_dir": "."},
        {"data_files": "a/*"},
        {"data_files": ["a/*.parquet"]},
        {"data_dir": "a"},
        {"data_dir": "./a/", "data_files": "*.parquet"},
        {"data_dir": "a", "data_files": [{"split": "train", "path": "train*"}]},
    ):
        assert training_files(RepositoryListing("main", SHA, sizes, [config]), HubDataset("some/one")) == [
            "a/train.parquet"
        ], config
    # A file that the card says is for training is, whatever it is called.
    called_test = {"data_files": {"train": "a/test*"}}
    assert training_files(RepositoryListing("main", SHA, sizes, [called_test]), HubDataset("some/one")) == [
        "a/test.parquet"
    ]
    two: list[dict[str, object]] = [
        {"config_name": "x", "data_files": "a/*"},
        {"config_name": "y", "data_files": "b*", "default": True},
    ]
    assert training_files(RepositoryListing("main", SHA, sizes, two), HubDataset("some/one")) == ["b.parquet"]
    with pytest.raises(UserError, match="has no 'z'; there are x, y"):
        training_files(RepositoryListing("main", SHA, sizes, two), HubDataset("some/one", "z"))


def test_a_folder_that_was_brought_is_chosen_from_as_the_hub_is(tmp_path: Path) -> None:
    folder = tmp_path / "brought"
    for name in ("a/train.parquet", "a/test.parquet", "b/train.parquet", ".cache/x.parquet"):
        write_fineweb_parquet(folder / name, TEXTS[:5])

    def files(name: str) -> list[str]:
        corpus = open_corpus(name, str(folder), "text")
        return [piece.path.relative_to(folder).as_posix() for piece in corpus.readers]

    assert files("some/one") == ["a/train.parquet", "b/train.parquet"]
    assert files("some/one:a") == ["a/train.parquet"]
    assert files("fineweb_edu") == ["a/train.parquet", "b/train.parquet"]  # without sample/10BT
    assert open_corpus("some/one", str(folder), "text").notes == ("skipped 1 file of documents",)
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: x\n  data_files:\n    train: b/*\n"
        "- config_name: y\n  data_dir: a\n---\nAbout it.\n"
    )
    assert files("some/one:x") == ["b/train.parquet"]
    assert files("some/one:y") == ["a/train.parquet"]
    with pytest.raises(UserError, match="has several configurations: x, y"):
        files("some/one")
    for path in (folder / "a" / "train.parquet", folder / "b" / "train.parquet"):
        path.unlink()
    with pytest.raises(UserError, match=r"none of the 1 file of documents in .* is for training"):
        files("some/one:x")


def test_a_mistyped_path_is_told_as_one(tmp_path: Path) -> None:
    for name in ("nodir/file.dat", "foo/a--b"):
        done = glass(tmp_path, NOWHERE, name)
        assert done.returncode == 2
        assert f"there is no file or folder {name} here, and" in done.stderr
        assert "Hugging Face" in done.stderr
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("missing", "name"),
    [("pyarrow", "a.parquet"), ("zstandard", "a.jsonl.zst"), ("huggingface_hub", "some/one")],
)
def test_without_the_extra_it_says_what_to_install(tmp_path: Path, missing: str, name: str) -> None:
    (tmp_path / name.replace("/", "-")).touch()
    code = f"import sys; sys.modules[{missing!r}] = None; from glassgpt.cli import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "prepare", name, "--tokenizer=byte"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert f"needs {missing}: " in done.stderr
    assert 'pip install "glassgpt[data]"' in done.stderr
