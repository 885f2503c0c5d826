"""Fetches checkpoints from the Hugging Face hub, through the optional package huggingface_hub."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdec_native.checkpoints.errors import (
    CheckpointError,
    DownloadError,
    ModelNotFoundError,
)
from specdec_native.checkpoints.layout import (
    INDEX_FILE,
    NOT_WEIGHTS,
    SINGLE_FILE,
    TORCH_INDEX_FILE,
    TORCH_SINGLE_FILE,
    checkpoint_kind,
    indexed_names,
)
from specdec_native.checkpoints.optional import import_optional
from specdec_native.checkpoints.progress import ProgressCallback, ProgressMeter

_REACH_TIMEOUT_S = 3.0  # for each of the few tries huggingface_hub makes
_SMALL_FILES = (".json", ".jinja", ".txt", ".model")


class HubUnreachableError(DownloadError):
    """The hub cannot be asked: not installed, offline or no answer. Another source may serve."""


def hub_installed() -> bool:
    """Whether huggingface_hub can be imported. This does not import it."""
    return importlib.util.find_spec("huggingface_hub") is not None


def _import_hub(repo_id: str) -> Any:
    return import_optional(
        "huggingface_hub", purpose=f"fetching {repo_id} from the Hugging Face hub", extra="hub"
    )


def cached_snapshot(
    repo_id: str, revision: str | None = None, *, weights: bool = True
) -> Path | None:
    """The repository's files as an earlier download left them, if they make a checkpoint.

    Without `weights`: if they have its configuration.
    """
    if not hub_installed():
        return None
    hub = _import_hub(repo_id)
    try:
        path = Path(hub.snapshot_download(repo_id, revision=revision, local_files_only=True))
    except Exception:  # each version of the package has its own way to say "not cached"
        return None
    if not weights:
        return path if (path / "config.json").is_file() else None
    return path if _is_complete(path) else None


def download_snapshot(
    repo_id: str,
    *,
    revision: str | None = None,
    weights: bool = True,
    progress: ProgressCallback | None = None,
) -> Path:
    """Downloads what the engine reads of a repository and returns its directory.

    Without `weights`: its configuration and tokenizer.

    Raises HubUnreachableError within a few seconds if the hub does not answer,
    ModelNotFoundError if it has no such repository or revision, CheckpointError if the repository
    needs an accepted licence or holds no weights this package reads.
    """
    hub = _import_hub(repo_id)
    files = _list_files(repo_id, revision)

    def download(name: str) -> Path:
        try:
            # The package's own bars show each file; this meter moves from file to file.
            return Path(hub.hf_hub_download(repo_id, name, revision=revision))
        except Exception as fault:  # its own classes and those of whichever HTTP library it uses
            raise DownloadError(f"{repo_id}: downloading {name} failed: {_brief(fault)}") from fault

    wanted = _wanted_files(repo_id, files, weights, download)
    meter = ProgressMeter(progress, sum(files[name] for name in wanted), "download")
    directories: set[Path] = set()
    for name in wanted:
        path = download(name)
        directories.add(path.parents[name.count("/")])
        meter.add(files[name])
    if len(directories) != 1:  # one for each commit
        raise DownloadError(f"{repo_id} changed while it was downloaded; try again")
    return directories.pop()


def _list_files(repo_id: str, revision: str | None) -> dict[str, int]:
    """Bytes of each file in the repository, by its path."""
    hub = _import_hub(repo_id)
    errors = importlib.import_module("huggingface_hub.errors")
    try:
        info = hub.HfApi().model_info(
            repo_id, revision=revision, files_metadata=True, timeout=_REACH_TIMEOUT_S
        )
    except errors.GatedRepoError as fault:
        raise CheckpointError(
            f"{repo_id} is gated: accept its licence on its hub page, then log in (hf auth login)"
        ) from fault
    except errors.RevisionNotFoundError as fault:
        raise ModelNotFoundError(f"{repo_id} has no revision {revision!r} on the hub") from fault
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as fault:
        raise ModelNotFoundError(
            f"the hub has no model {repo_id!r}; check the spelling, or log in if it is private "
            "(hf auth login)"
        ) from fault
    except Exception as fault:  # offline mode, no network, no answer, in the HTTP library's classes
        raise HubUnreachableError(
            f"the Hugging Face hub cannot be reached for {repo_id}: {_brief(fault)}"
        ) from fault
    siblings: list[Any] = info.siblings or []
    return {s.rfilename: int(s.size or 0) for s in siblings}


def _wanted_files(
    repo_id: str, files: dict[str, int], with_weights: bool, download: Callable[[str], Path]
) -> list[str]:
    """Configuration and tokenizer files, and one form of the weights: safetensors if available.

    `download` fetches an index, which names the weight files.
    """
    root = [name for name in files if "/" not in name]
    small = [name for name in root if name.endswith(_SMALL_FILES)]
    small += [name for name in files if name.startswith("additional_chat_templates/")]
    if not with_weights and "config.json" in files:
        return small
    for single, index in ((SINGLE_FILE, INDEX_FILE), (TORCH_SINGLE_FILE, TORCH_INDEX_FILE)):
        if "config.json" not in files or not files.keys() & {single, index}:
            continue
        # Some repositories hold the weights both whole and in shards; the whole file is enough.
        weights = [single] if single in files else indexed_names(download(index))
        missing = [name for name in weights if name not in files]
        if missing:
            raise CheckpointError(f"{repo_id}: {index} names {missing[0]}, which is not there")
        return small + weights
    quantised = [name for name in root if name.endswith(".gguf")]
    if quantised:
        raise CheckpointError(
            f"{repo_id} holds GGUF files; download one and give its path: {', '.join(quantised)}"
        )
    for ending in (".safetensors", ".bin", ".pt"):  # the other names that draft heads have
        weights = [n for n in root if n.endswith(ending) and n not in NOT_WEIGHTS]
        if len(weights) == 1 and "config.json" in files:
            return small + weights
    raise CheckpointError(
        f"{repo_id} holds no checkpoint: config.json with model.safetensors or pytorch_model.bin"
    )


def _is_complete(path: Path) -> bool:
    """Whether a snapshot has its configuration and every weight file its index names."""
    try:
        return checkpoint_kind(path) is not None
    except CheckpointError:
        return False


def _brief(fault: Exception) -> str:
    """The first line of a message that may be a page long."""
    lines = str(fault).strip().splitlines()
    return f"{type(fault).__name__}: {lines[0]}" if lines else type(fault).__name__
