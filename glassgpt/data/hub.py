"""Datasets on Hugging Face: which of a repository's files are meant, and how they get here.

    glass prepare fineweb_edu                       the sample of 10 billion tokens
    glass prepare roneneldan/TinyStories            any dataset, by its name there
    glass prepare HuggingFaceFW/fineweb-2:hin_Deva  and a configuration of it, or a folder

huggingface_hub does the downloading: its cache (HF_HOME), its resuming of what was cut off, its token
(HF_TOKEN, or `hf auth login`). Only the training files are taken; what is held out is decided here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from glassgpt.data.parcels import PARQUET, holds_documents
from glassgpt.errors import UserError
from glassgpt.figures import size

_EXTRA = 'pip install "glassgpt[data]"'
_CONVERTED = "refs/convert/parquet"  # where Hugging Face keeps a copy in parquet of what has another format
# partial: Hugging Face's copy of a dataset that was too large to copy whole.
_HELD_OUT = re.compile(r"(^|[^a-z])(val|valid|validation|dev|test|partial)([^a-z]|$)")


@dataclass(frozen=True)
class HubName:
    """A dataset on Hugging Face. `part`: a configuration, or a folder or pattern; empty: the usual one."""

    repository: str
    part: str = ""

    def __str__(self) -> str:
        return f"{self.repository}:{self.part}" if self.part else self.repository


KNOWN = {
    "fineweb_edu": HubName("HuggingFaceFW/fineweb-edu", "sample/10BT"),
    "openwebtext": HubName("Skylion007/openwebtext"),
    "tinystories": HubName("roneneldan/TinyStories"),
}


def hub_name(dataset: str) -> HubName | None:
    """What `dataset` means on Hugging Face, or None if it cannot be a name there."""
    if dataset in KNOWN:
        return KNOWN[dataset]
    match = re.fullmatch(r"([\w-]+/[\w.-]*[\w-])(?::(.+))?", dataset, re.ASCII)
    return HubName(match[1], match[2] or "") if match else None


@dataclass(frozen=True)
class Listing:
    """What a repository holds: the size of each file, and what its card says of configurations."""

    branch: str
    commit: str
    sizes: Mapping[str, int]
    configurations: Sequence[Mapping[str, Any]]


def fetch(name: HubName, download: bool = True) -> tuple[list[Path], str]:
    """The training files, downloaded or from the cache, and what to say about them."""
    try:
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise UserError(f"{name} is on Hugging Face, which needs huggingface_hub: {_EXTRA}") from error
    # Whatever library it uses for the network: that one's own errors are among these.
    unreachable: tuple[Any, ...] = (OSError, *HfHubHTTPError.__bases__)
    try:
        listing, files = _look_up(name)
        _check_room(name, listing, files)
        folder = _download(name, listing.branch, files if download else [])
    except unreachable as error:
        return _from_cache(name, error)
    return [folder / file for file in files if download], f"revision {listing.commit[:12]}"


def _look_up(name: HubName) -> tuple[Listing, list[str]]:
    listing = _list(name, "main")
    files = chosen(listing, name)
    if not files and not listing.configurations:
        listing = _list(name, _CONVERTED)
        files = chosen(listing, name)
    if not files:
        raise UserError(
            f"{name} has no parquet or JSON lines to train on: look at its files on Hugging Face, and name a "
            f"folder of them, {name.repository}:FOLDER"
        )
    return listing, files


def _list(name: HubName, branch: str) -> Listing:
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
        return Listing(branch, "", {}, ())
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{name.repository} is neither a file or folder here nor a dataset on Hugging Face that you may "
            "read: check the name; a private one needs  hf auth login  or HF_TOKEN"
        ) from error
    card: dict[str, Any] = info.card_data.to_dict() if info.card_data else {}  # type: ignore[no-untyped-call]
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return Listing(branch, info.sha or branch, sizes, card.get("configs") or ())


def _download(name: HubName, branch: str, files: Sequence[str]) -> Path:
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


def _from_cache(name: HubName, error: Exception) -> tuple[list[Path], str]:
    """What an earlier download left in huggingface_hub's cache, when the network is not there."""
    from huggingface_hub import metadata_load

    for branch in ("main", _CONVERTED):
        folder = _cached_folder(name, branch)
        if folder is None:
            continue
        card = metadata_load(folder / "README.md") if (folder / "README.md").is_file() else None
        sizes = {path.relative_to(folder).as_posix(): 0 for path in folder.rglob("*") if path.is_file()}
        files = chosen(Listing(branch, folder.name, sizes, (card or {}).get("configs") or ()), name)
        if files:
            about = "from the cache: Hugging Face could not be asked if that is all"
            return [folder / file for file in files], f"revision {folder.name[:12]}, {about}"
    raise UserError(offline(name, error)) from error


def _cached_folder(name: HubName, branch: str) -> Path | None:
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


def offline(name: HubName, error: Exception) -> str:
    known = next((short for short, known in KNOWN.items() if known == name), str(name))
    include = f' --include "{name.part}/*"' if name.part else ""
    reason = re.split(r"\. |\n", str(error))[0] or type(error).__name__
    return (
        f"{name} could not be read from Hugging Face ({reason}): where there is a network, run  hf download "
        f"{name.repository} --repo-type dataset{include} --local-dir FOLDER, "
        f"bring FOLDER here, and run  glass prepare {known} --source FOLDER"
    )


def _check_room(name: HubName, listing: Listing, files: Sequence[str]) -> None:
    """For what is not in the cache already."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    def is_here(file: str) -> bool:
        found = try_to_load_from_cache(name.repository, file, repo_type="dataset", revision=listing.commit)
        return isinstance(found, str)

    needed = sum(listing.sizes[file] for file in files if not is_here(file))
    folder = Path(HF_HUB_CACHE).absolute()
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(nearest).free
    if needed > free:
        raise UserError(
            f"{name} is a download of {size(needed)}, and {nearest} has {size(free)} free: "
            "make room, or set HF_HOME to a folder on a larger disk"
        )


# --- which files ---


def chosen(listing: Listing, name: HubName) -> list[str]:
    """The training files: as the dataset's card says, else those that are not named as held out."""
    files = sorted(file for file in listing.sizes if holds_documents(file))
    in_folder = [file for file in files if file.startswith(f"{name.part}/")] if name.part else []
    if listing.configurations and not in_folder:
        return _by_card(files, listing.configurations, name)
    if name.part:
        files = in_folder or [file for file in files if fnmatchcase(file, name.part)]
    files = [file for file in files if not _HELD_OUT.search(file.lower())]
    # The same text is often there in two formats.
    return [file for file in files if file.endswith(PARQUET)] or files


def _by_card(files: Sequence[str], configurations: Sequence[Mapping[str, Any]], name: HubName) -> list[str]:
    by_name = {str(config.get("config_name", "default")): config for config in configurations}
    marked = [config for config in configurations if config.get("default")]
    if name.part in by_name:
        config = by_name[name.part]
    elif not name.part and (marked or "default" in by_name or len(by_name) == 1):
        config = marked[0] if marked else by_name.get("default", configurations[0])
    else:
        shown = ", ".join(list(by_name)[:20]) + (", ..." if len(by_name) > 20 else "")
        what = f"has no {name.part!r}; there are" if name.part else "has several configurations:"
        raise UserError(f"{name.repository} {what} {shown}: name one, {name.repository}:NAME")
    patterns = _train_patterns(config.get("data_files", "**"))
    return [file for file in files if any(_matches(file, pattern) for pattern in patterns)]


def _train_patterns(data_files: Any) -> list[str]:
    """Of a card's data_files, which may be a pattern, a list of them, or one or more for each split."""
    if isinstance(data_files, str):
        return [data_files]
    if all(isinstance(item, str) for item in data_files):
        return list(data_files)
    paths = [item["path"] for item in data_files if item.get("split", "train") == "train"]
    return [pattern for path in paths for pattern in ([path] if isinstance(path, str) else path)]


def _matches(file: str, pattern: str) -> bool:
    return fnmatchcase(file, pattern) or fnmatchcase(file, pattern.replace("**/", ""))
