"""Datasets on Hugging Face: which of a repository's files are meant, and how they get here.

    glass prepare fineweb_edu                       the sample of 10 billion tokens
    glass prepare roneneldan/TinyStories            any dataset, by its name there
    glass prepare HuggingFaceFW/fineweb-2:hin_Deva  and a configuration of it, or a folder

huggingface_hub does the downloading: its cache (HF_HOME), its resuming of what was cut off, its token
(HF_TOKEN, or `hf auth login`). Only the training files are taken; what is held out is decided here.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from glassgpt.data.decompress import INSTALL_DATA_EXTRA_HINT
from glassgpt.data.document_batches import PARQUET_SUFFIX, is_document_file
from glassgpt.errors import UserError, join_first
from glassgpt.files import nearest_existing_folder
from glassgpt.format import format_bytes

_PARQUET_BRANCH = (
    "refs/convert/parquet"  # where Hugging Face keeps a copy in parquet of what has another format
)
# partial: Hugging Face's copy of a dataset that was too large to copy whole.
_HELD_OUT_PATTERN = re.compile(r"(^|[^a-z])(val|valid|validation|dev|test|partial)([^a-z]|$)")


@dataclass(frozen=True)
class HubDataset:
    """A dataset on Hugging Face. `part`: a configuration, or a folder or pattern; empty: the usual one."""

    repository: str
    subset: str = ""

    def __str__(self) -> str:
        return f"{self.repository}:{self.subset}" if self.subset else self.repository


NAMED_HUB_DATASETS = {
    "fineweb_edu": HubDataset("HuggingFaceFW/fineweb-edu", "sample/10BT"),
    "openwebtext": HubDataset("Skylion007/openwebtext"),
    "tinystories": HubDataset("roneneldan/TinyStories"),
}


def parse_hub_dataset(dataset: str) -> HubDataset | None:
    """What `dataset` means on Hugging Face, or None if it cannot be a name there."""
    if dataset in NAMED_HUB_DATASETS:
        return NAMED_HUB_DATASETS[dataset]
    match = re.fullmatch(r"([\w-]+/[\w.-]*[\w-])(?::(.+))?", dataset, re.ASCII)
    return HubDataset(match[1], match[2] or "") if match else None


@dataclass(frozen=True)
class RepositoryListing:
    """What a repository holds: the size of each file, and what its card says of configurations."""

    branch: str
    commit: str
    sizes: Mapping[str, int]
    configurations: Sequence[Mapping[str, Any]]


def fetch_training_files(name: HubDataset, download: bool = True) -> tuple[list[Path], str]:
    """The training files, downloaded or from the cache, and what to say about them."""
    try:
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise UserError(
            f"{_not_here(name)}to ask Hugging Face needs huggingface_hub: {INSTALL_DATA_EXTRA_HINT}"
        ) from error
    # Whatever library it uses for the network: that one's own errors are among these.
    unreachable: tuple[Any, ...] = (OSError, *HfHubHTTPError.__bases__)
    try:
        listing, files = _list_training_files(name)
        _check_disk_space(name, listing, files)
        folder = _download(name, listing.branch, files if download else [])
    except HFValidationError as error:
        raise UserError(
            f"{_not_here(name)}it cannot be a name on Hugging Face either: check how it is written"
        ) from error
    except unreachable as error:
        return _from_cache(name, error)
    return [folder / file for file in files if download], f"revision {listing.commit[:12]}"


def _list_training_files(name: HubDataset) -> tuple[RepositoryListing, list[str]]:
    listing = _list_repository(name, "main")
    files = training_files(listing, name)
    if not files and not listing.configurations:
        listing = _list_repository(name, _PARQUET_BRANCH)
        files = training_files(listing, name)
    if not files:
        raise UserError(
            f"{name} has no parquet or JSON lines to train on: look at its files on Hugging Face, and name a "
            f"folder of them, {name.repository}:FOLDER"
        )
    return listing, files


def _list_repository(name: HubDataset, branch: str) -> RepositoryListing:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = HfApi().dataset_info(name.repository, revision=branch, files_metadata=True)
    except GatedRepoError as error:
        raise UserError(
            f"{name.repository} wants its terms accepted: do so on its page on Hugging Face, then log in "
            "with  hf auth login  or set HF_TOKEN"
        ) from error
    except RevisionNotFoundError:
        return RepositoryListing(branch, "", {}, ())
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{name.repository} is neither a file or folder here nor a dataset on Hugging Face that you may "
            "read: check the name; a private one needs  hf auth login  or HF_TOKEN"
        ) from error
    card: dict[str, Any] = info.card_data.to_dict() if info.card_data else {}  # type: ignore[no-untyped-call]
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return RepositoryListing(branch, info.sha or branch, sizes, card.get("configs") or ())


def _download(name: HubDataset, branch: str, files: Sequence[str]) -> Path:
    # By the branch's name, so that the cache knows what it was when the network is gone.
    from huggingface_hub import snapshot_download

    patterns = [re.sub(r"([*?[])", r"[\1]", file) for file in files]
    return Path(
        snapshot_download(
            name.repository,
            repo_type="dataset",
            revision=branch,
            allow_patterns=[*patterns, "README.md"],
        )
    )


def _from_cache(name: HubDataset, error: Exception) -> tuple[list[Path], str]:
    """What an earlier download left in huggingface_hub's cache, when the network is not there."""
    for branch in ("main", _PARQUET_BRANCH):
        folder = _cached_folder(name, branch)
        if folder is None:
            continue
        files = training_files(_listing_of(folder, branch), name)
        if files:
            about = "from the cache: Hugging Face could not be asked if that is all"
            return [folder / file for file in files], f"revision {folder.name[:12]}, {about}"
    raise UserError(offline_message(name, error)) from error


def training_files_in(folder: Path, name: HubDataset) -> list[Path]:
    """The training files of a dataset that somebody brought here: all of its folder, or only what matters."""
    listing = _listing_of(folder, "main")
    files = training_files(listing, name)
    if not files and not listing.configurations:
        files = training_files(
            listing, HubDataset(name.repository)
        )  # they lie in `folder` without their own folder
    return [folder / file for file in files]


def _listing_of(folder: Path, branch: str) -> RepositoryListing:
    """As the hub would tell it. Hidden files are huggingface_hub's own."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    sizes = {path.as_posix(): 0 for path in paths if not any(part.startswith(".") for part in path.parts)}
    return RepositoryListing(branch, folder.name, sizes, _card(folder).get("configs") or ())


def _card(folder: Path) -> Mapping[str, Any]:
    path = folder / "README.md"
    if not path.is_file() or not path.read_bytes().startswith(b"---"):
        return {}
    try:
        from huggingface_hub import metadata_load
    except ImportError as error:
        raise UserError(
            f"{path} says which files are for training, and needs huggingface_hub: {INSTALL_DATA_EXTRA_HINT}"
        ) from error
    return metadata_load(path) or {}


def _cached_folder(name: HubDataset, branch: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(name.repository, repo_type="dataset", revision=branch, local_files_only=True)
        )
    except LocalEntryNotFoundError as error:
        # Newer versions complain if not all of the repository is there, which is never all we wanted.
        incomplete = getattr(error, "snapshot_path", None)
        return Path(incomplete) if incomplete else None


def offline_message(name: HubDataset, error: Exception) -> str:
    known = next((short for short, known in NAMED_HUB_DATASETS.items() if known == name), str(name))
    include = f' --include "{name.subset}/*"' if name.subset else ""
    reason = re.split(r"\. |\n", str(error))[0] or type(error).__name__
    return (
        f"{_not_here(name)}{name} could not be read from Hugging Face ({reason}): where there is a "
        f"network, run  hf download {name.repository} --repo-type dataset{include} --local-dir FOLDER, "
        f"bring FOLDER here, and run  glass prepare {known} --source FOLDER"
    )


def _not_here(name: HubDataset) -> str:
    """Whoever mistyped a path should hear that first."""
    return "" if name in NAMED_HUB_DATASETS.values() else f"there is no file or folder {name} here, and "


def _check_disk_space(name: HubDataset, listing: RepositoryListing, files: Sequence[str]) -> None:
    """For what is not in the cache already."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    def is_here(file: str) -> bool:
        found = try_to_load_from_cache(name.repository, file, repo_type="dataset", revision=listing.commit)
        return isinstance(found, str)

    needed = sum(listing.sizes[file] for file in files if not is_here(file))
    nearest = nearest_existing_folder(Path(HF_HUB_CACHE).absolute())
    free = shutil.disk_usage(nearest).free
    if needed > free:
        raise UserError(
            f"{name} is a download of {format_bytes(needed)}, and {nearest} has {format_bytes(free)} free: "
            "make room, or set HF_HOME to a folder on a larger disk"
        )


# --- which files ---


def training_files(listing: RepositoryListing, name: HubDataset) -> list[str]:
    """The training files: as the dataset's card says, else those that are not named as held out."""
    files = sorted(file for file in listing.sizes if is_document_file(file))
    in_folder = [file for file in files if file.startswith(f"{name.subset}/")] if name.subset else []
    if listing.configurations and not in_folder:
        return _training_files_by_card(files, listing.configurations, name)
    if name.subset:
        files = in_folder or [file for file in files if fnmatchcase(file, name.subset)]
    return _for_training(files)


def _training_files_by_card(
    files: Sequence[str], configurations: Sequence[Mapping[str, Any]], name: HubDataset
) -> list[str]:
    by_name = {str(config.get("config_name", "default")): config for config in configurations}
    marked = [config for config in configurations if config.get("default")]
    if name.subset in by_name:
        config = by_name[name.subset]
    elif not name.subset and (marked or "default" in by_name or len(by_name) == 1):
        config = marked[0] if marked else by_name.get("default", configurations[0])
    else:
        what = f"has no {name.subset!r}; there are" if name.subset else "has several configurations:"
        raise UserError(
            f"{name.repository} {what} {join_first(by_name, 20)}: name one, {name.repository}:NAME"
        )
    folder = str(config.get("data_dir") or "")
    by_split = _patterns(config.get("data_files") or "**")
    named = [file for file in files if _matches(file, folder, by_split.get("train", []))]
    unnamed = [file for file in files if _matches(file, folder, by_split.get(None, []))]
    return sorted({*named, *_for_training(unnamed)})


def _for_training(files: Sequence[str]) -> list[str]:
    """Where nobody says which split a file is of, its name does."""
    files = [file for file in files if not _HELD_OUT_PATTERN.search(file.lower())]
    # The same text is often there in two formats.
    return [file for file in files if file.endswith(PARQUET_SUFFIX)] or files


def _patterns(data_files: Any) -> dict[str | None, list[str]]:
    """Of a card's data_files, by split; None where it names none.

    They may be a pattern, a list of them, or one or more for each split, as a mapping or as a list.
    """
    if isinstance(data_files, str):
        return {None: [data_files]}
    if isinstance(data_files, Mapping):
        data_files = [{"split": split, "path": path} for split, path in data_files.items()]
    result: dict[str | None, list[str]] = {}
    for item in data_files:
        split, path = (None, item) if isinstance(item, str) else (item.get("split"), item["path"])
        result.setdefault(split, []).extend([path] if isinstance(path, str) else path)
    return result


def _matches(file: str, folder: str, patterns: Sequence[str]) -> bool:
    """Patterns are relative to the folder."""
    full = [posixpath.normpath(posixpath.join(folder, pattern)) for pattern in patterns]
    return any(fnmatchcase(file, one) or fnmatchcase(file, one.replace("**/", "")) for one in full)
