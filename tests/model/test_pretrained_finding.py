"""GPT-2's folders are found by path or name, in the cache, or downloaded; all without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_models import change_config, hf_gpt2

from glassgpt.errors import UserError
from glassgpt.model.pretrained import GPT2_NAMES, find_pretrained, read_pretrained


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # importing it is an ImportError
    return tmp_path / "hf" / "hub"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As `transformers` writes it."""
    folder = tmp_path / "copy"
    hf_gpt2().save_pretrained(folder)
    return folder


def test_a_path_is_a_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_pretrained(str(folder)) == folder
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_pretrained("~/copy") == folder


def cached(hub: Path, folder: Path, repository: str, commit: str, files: tuple[str, ...] = ()) -> Path:
    """As Hugging Face keeps it: snapshots of links into blobs."""
    snapshot = hub / repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in files or ("config.json", "model.safetensors"):
        (snapshot / file).symlink_to(folder / file)
    return snapshot


@pytest.mark.parametrize("name", GPT2_NAMES)
@pytest.mark.parametrize("home", ["models--openai-community--", "models--"])
def test_a_name_is_found_in_the_cache(empty_cache: Path, folder: Path, name: str, home: str) -> None:
    snapshot = cached(empty_cache, folder, home + name, "607a")
    assert find_pretrained(name) == snapshot
    assert read_pretrained(find_pretrained(name))[0].n_layer == 2


def test_the_snapshot_of_main_is_taken_if_it_is_whole(empty_cache: Path, folder: Path) -> None:
    repository = "models--openai-community--gpt2"
    old = cached(empty_cache, folder, repository, "aaaa")
    main = cached(empty_cache, folder, repository, "bbbb")
    cached(empty_cache, folder, repository, "cccc")
    (empty_cache / repository / "refs").mkdir()
    (empty_cache / repository / "refs" / "main").write_text("bbbb")
    assert find_pretrained("gpt2") == main
    (main / "model.safetensors").unlink()
    (main / "model.safetensors").symlink_to(folder / "blob-never-downloaded")
    assert find_pretrained("gpt2") == old


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_hugging_face_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path, variable: str, below: str
) -> None:
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    snapshot = cached(tmp_path / "elsewhere" / below, folder, "models--gpt2-xl", "607a")
    assert find_pretrained("gpt2-xl") == snapshot


def test_a_folder_beside_us_goes_before_the_name(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path, folder: Path
) -> None:
    snapshot = cached(empty_cache, folder, "models--gpt2", "607a")
    (folder.parent / "gpt2").mkdir()
    monkeypatch.chdir(folder.parent)
    assert find_pretrained("gpt2") == snapshot  # any folder of that name is not meant
    folder.rename(folder.parent / "gpt2")
    assert find_pretrained("gpt2") == Path("gpt2")


class FakeHub:
    """In place of the package huggingface_hub; `folder` is what a download gives."""

    def __init__(self, folder: Path | None = None, failure: Exception | None = None) -> None:
        self.folder, self.failure = folder, failure
        self.asked: dict[str, Any] = {}

    def model_info(self, repository: str, *, timeout: float) -> None:
        assert timeout <= 10
        if self.failure:
            raise self.failure

    def snapshot_download(self, repository: str, **options: Any) -> str:
        self.asked = {"repository": repository, **options}
        return str(self.folder)


def test_a_name_that_is_not_here_is_downloaded_without_pickles(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path, folder: Path
) -> None:
    hub = FakeHub(folder)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert find_pretrained("gpt2-large") == folder
    assert hub.asked["repository"] == "openai-community/gpt2-large"
    assert hub.asked["cache_dir"] == empty_cache
    assert set(hub.asked["allow_patterns"]) >= {
        "config.json",
        "model.safetensors",
        "vocab.json",
        "merges.txt",
    }
    assert {path.suffix for path in map(Path, hub.asked["allow_patterns"])} == {
        ".json",
        ".safetensors",
        ".txt",
    }


def test_any_repository_is_found_in_the_cache_or_downloaded(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path, folder: Path
) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub := FakeHub(folder))
    assert find_pretrained("somebody/their-gpt2") == folder
    assert hub.asked["repository"] == "somebody/their-gpt2"
    snapshot = cached(empty_cache, folder, "models--somebody--their-gpt2", "607a")
    assert find_pretrained("somebody/their-gpt2") == snapshot
    (folder.parent / "somebody").mkdir()  # then it is a path, and there is nothing
    with pytest.raises(UserError, match=r"has no config\.json and no model\.safetensors"):
        find_pretrained("somebody/their-gpt2")


def test_of_another_architecture_only_the_config_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    change_config(folder, model_type="llama")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub := FakeHub(folder))
    with pytest.raises(UserError, match='model_type is "llama"'):
        find_pretrained("somebody/llama")
    assert hub.asked["allow_patterns"] == ["config.json"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("RepositoryNotFoundError", "OWNER/NAME; if it is private or gated, log in with `hf auth login`"),
        ("GatedRepoError", "set HF_TOKEN"),
        ("OfflineModeIsEnabled", "unset HF_HUB_OFFLINE"),
    ],
)
def test_a_refusal_says_what_would_help(monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    failure = type(name, (Exception,), {})("no")
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub(failure=failure))
    with pytest.raises(UserError) as caught:
        find_pretrained("somebody/secret")
    assert hint in caught.value.problems[0]


def test_these_are_the_names_of_huggingface_hubs_errors() -> None:
    errors = pytest.importorskip("huggingface_hub.errors")
    assert {"RepositoryNotFoundError", "GatedRepoError", "OfflineModeIsEnabled"} <= set(dir(errors))


@pytest.mark.parametrize(
    "failure", [OSError("no route\nto host" + 999 * "x"), ValueError(), RuntimeError("x" * 9999)]
)
def test_why_a_download_failed_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub(failure=failure))
    reason = type(failure).__name__
    with pytest.raises(UserError) as caught:
        find_pretrained("gpt2")
    (problem,) = caught.value.problems
    start = f"the weights of gpt2 are not on this machine and could not be downloaded ({reason}"
    assert problem.startswith(start)
    assert problem.endswith(
        "): download the folder with config.json, model.safetensors, vocab.json and merges.txt elsewhere "
        "and give its path as --init_from=FOLDER"
    )
    assert len(problem) < 500
    assert "\n" not in problem


def test_without_huggingface_hub_it_is_said_how_to_get_it() -> None:
    with pytest.raises(UserError) as caught:
        find_pretrained("gpt2")
    (problem,) = caught.value.problems
    assert problem.startswith("the weights of gpt2 are not on this machine, and downloading them needs ")
    assert 'pip install "glassgpt[data]"; or download the folder with config.json' in problem
