"""Datasets on Hugging Face: selects and downloads the training files of a repository.

    glass prepare fineweb_edu                       the sample of 10 billion tokens
    glass prepare roneneldan/TinyStories            any dataset, by its name there
    glass prepare HuggingFaceFW/fineweb-2:hin_Deva  and one of its configurations, or a folder

huggingface_hub downloads, with its cache (HF_HOME), its resume and its token (HF_TOKEN, or `hf auth login`).
Only the training files are downloaded; GlassGPT makes its own validation split.
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

from glassgpt.data.document_readers import PARQUET_SUFFIX, is_document_file
from glassgpt.data.text_files import INSTALL_DATA_EXTRA_HINT
from glassgpt.errors import UserError, join_first
from glassgpt.files import nearest_existing_folder
from glassgpt.format import format_bytes

# Hugging Face's copy in parquet of a dataset in another format.
_PARQUET_BRANCH = "refs/convert/parquet"
# partial: a parquet copy of only a part of a large dataset.
_HELD_OUT_PATTERN = re.compile(r"(^|[^a-z])(val|valid|validation|dev|test|partial)([^a-z]|$)")


@dataclass(frozen=True)
class HubDataset:
    """A dataset on Hugging Face. `subset`: a configuration, folder or pattern; empty: the default one."""

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
    """The Hugging Face dataset that `dataset` names, or None if it cannot be a name there."""
    if dataset in NAMED_HUB_DATASETS:
        return NAMED_HUB_DATASETS[dataset]
    match = re.fullmatch(r"([\w-]+/[\w.-]*[\w-])(?::(.+))?", dataset, re.ASCII)
    return HubDataset(match[1], match[2] or "") if match else None


@dataclass(frozen=True)
class RepositoryListing:
    """The files of a repository with their sizes, and the configurations in its dataset card."""

    branch: str
    commit: str
    sizes: Mapping[str, int]
    configurations: Sequence[Mapping[str, Any]]


def fetch_training_files(name: HubDataset, download: bool = True) -> tuple[list[Path], str]:
    """The training files, downloaded or from the cache, and a description of the revision."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise UserError(
            f"{_not_local(name)}to ask Hugging Face needs huggingface_hub: {INSTALL_DATA_EXTRA_HINT}"
        ) from error
    # The base classes include the errors of the HTTP library that it uses.
    network_errors: tuple[Any, ...] = (OSError, *HfHubHTTPError.__bases__)
    try:
        listing = _list_repository(name, "main")
        files = training_files(listing, name)
        if not files and not listing.configurations:
            listing = _list_repository(name, _PARQUET_BRANCH)
            files = training_files(listing, name)
        if not files:
            raise UserError(
                f"{name} has no parquet or JSON lines to train on: look at its files on Hugging Face, and "
                f"name a folder of them, {name.repository}:FOLDER"
            )
        _check_disk_space(name, listing, files)
        # By the name of the branch, under which the cache finds it again without a network.
        patterns = [re.sub(r"([*?[])", r"[\1]", file) for file in files if download]
        snapshot = snapshot_download(
            name.repository,
            repo_type="dataset",
            revision=listing.branch,
            allow_patterns=[*patterns, "README.md"],
        )
    except HFValidationError as error:
        raise UserError(
            f"{_not_local(name)}it cannot be a name on Hugging Face either: check how it is written"
        ) from error
    except network_errors as error:
        return _cached_training_files(name, error)
    return [Path(snapshot, file) for file in files if download], f"revision {listing.commit[:12]}"


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


def _cached_training_files(name: HubDataset, error: Exception) -> tuple[list[Path], str]:
    """The training files that an earlier download left in huggingface_hub's cache, else the error."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    for branch in ("main", _PARQUET_BRANCH):
        snapshot: str | None
        try:
            snapshot = snapshot_download(
                name.repository, repo_type="dataset", revision=branch, local_files_only=True
            )
        except LocalEntryNotFoundError as not_found:
            # Newer versions complain if the repository is not complete, and we never download all of it.
            snapshot = getattr(not_found, "snapshot_path", None)
        if not snapshot:
            continue
        folder = Path(snapshot)
        files = training_files(_listing_of_folder(folder, branch), name)
        if files:
            note = "from the cache: Hugging Face could not be asked if that is all"
            return [folder / file for file in files], f"revision {folder.name[:12]}, {note}"
    raise UserError(offline_message(name, error)) from error


def training_files_in(folder: Path, name: HubDataset) -> list[Path]:
    """The training files in a local copy of a repository, or of the subset's folder."""
    listing = _listing_of_folder(folder, "main")
    files = training_files(listing, name)
    if not files and not listing.configurations:  # `folder` is the subset's own folder
        files = training_files(listing, HubDataset(name.repository))
    return [folder / file for file in files]


def _listing_of_folder(folder: Path, branch: str) -> RepositoryListing:
    """A local copy listed as `_list_repository` does. Hidden files are huggingface_hub's own."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    sizes = {path.as_posix(): 0 for path in paths if not any(part.startswith(".") for part in path.parts)}
    card_path, card = folder / "README.md", {}
    if card_path.is_file() and card_path.read_bytes().startswith(b"---"):
        try:
            from huggingface_hub import metadata_load
        except ImportError as error:
            raise UserError(
                f"{card_path} says which files are for training, and needs huggingface_hub: "
                f"{INSTALL_DATA_EXTRA_HINT}"
            ) from error
        card = metadata_load(card_path) or {}
    return RepositoryListing(branch, folder.name, sizes, card.get("configs") or ())


def offline_message(name: HubDataset, error: Exception) -> str:
    known = next((short for short, known in NAMED_HUB_DATASETS.items() if known == name), str(name))
    include = f' --include "{name.subset}/*"' if name.subset else ""
    reason = re.split(r"\. |\n", str(error))[0] or type(error).__name__
    return (
        f"{_not_local(name)}{name} could not be read from Hugging Face ({reason}): where there is a "
        f"network, run  hf download {name.repository} --repo-type dataset{include} --local-dir FOLDER, "
        f"bring FOLDER here, and run  glass prepare {known} --source FOLDER"
    )


def _not_local(name: HubDataset) -> str:
    """The beginning of a message for a name that may be a mistyped path."""
    return "" if name in NAMED_HUB_DATASETS.values() else f"there is no file or folder {name} here, and "


def _check_disk_space(name: HubDataset, listing: RepositoryListing, files: Sequence[str]) -> None:
    """Compares the sizes of the files that are not in the cache yet with the free disk space."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    def is_cached(file: str) -> bool:
        path = try_to_load_from_cache(name.repository, file, repo_type="dataset", revision=listing.commit)
        return isinstance(path, str)

    needed = sum(listing.sizes[file] for file in files if not is_cached(file))
    nearest = nearest_existing_folder(Path(HF_HUB_CACHE).absolute())
    free = shutil.disk_usage(nearest).free
    if needed > free:
        raise UserError(
            f"{name} is a download of {format_bytes(needed)}, and {nearest} has {format_bytes(free)} free: "
            "make room, or set HF_HOME to a folder on a larger disk"
        )


# --- which files are for training ---


def training_files(listing: RepositoryListing, name: HubDataset) -> list[str]:
    """The training files by the dataset's card, else all whose name is not that of a held-out split."""
    files = sorted(file for file in listing.sizes if is_document_file(file))
    in_folder = [file for file in files if file.startswith(f"{name.subset}/")] if name.subset else []
    if listing.configurations and not in_folder:
        return _training_files_by_card(files, listing.configurations, name)
    if name.subset:
        files = in_folder or [file for file in files if fnmatchcase(file, name.subset)]
    return _without_held_out(files)


def _training_files_by_card(
    files: Sequence[str], configurations: Sequence[Mapping[str, Any]], name: HubDataset
) -> list[str]:
    by_name = {str(config.get("config_name", "default")): config for config in configurations}
    defaults = [config for config in configurations if config.get("default")]
    if name.subset in by_name:
        config = by_name[name.subset]
    elif not name.subset and (defaults or "default" in by_name or len(by_name) == 1):
        config = defaults[0] if defaults else by_name.get("default", configurations[0])
    else:
        problem = f"has no {name.subset!r}; there are" if name.subset else "has several configurations:"
        raise UserError(
            f"{name.repository} {problem} {join_first(by_name, 20)}: name one, {name.repository}:NAME"
        )
    folder = str(config.get("data_dir") or "")
    # data_files is a pattern, a list of patterns, or one or more for each split, as a mapping or a list.
    data_files = config.get("data_files") or "**"
    if isinstance(data_files, str):
        data_files = [data_files]
    elif isinstance(data_files, Mapping):
        data_files = [{"split": split, "path": path} for split, path in data_files.items()]
    patterns: dict[str | None, list[str]] = {}  # by split; None: without a split
    for item in data_files:
        split, path = (None, item) if isinstance(item, str) else (item.get("split"), item["path"])
        patterns.setdefault(split, []).extend([path] if isinstance(path, str) else path)
    train_files = [file for file in files if _matches(file, folder, patterns.get("train", []))]
    unassigned = [file for file in files if _matches(file, folder, patterns.get(None, []))]
    return sorted({*train_files, *_without_held_out(unassigned)})


def _without_held_out(files: Sequence[str]) -> list[str]:
    """Drops validation and test files, by their names."""
    files = [file for file in files if not _HELD_OUT_PATTERN.search(file.lower())]
    # The same text often exists in two formats.
    return [file for file in files if file.endswith(PARQUET_SUFFIX)] or files


def _matches(file: str, folder: str, patterns: Sequence[str]) -> bool:
    """Patterns are relative to the folder."""
    full_patterns = [posixpath.normpath(posixpath.join(folder, pattern)) for pattern in patterns]
    return any(
        fnmatchcase(file, pattern) or fnmatchcase(file, pattern.replace("**/", ""))
        for pattern in full_patterns
    )
