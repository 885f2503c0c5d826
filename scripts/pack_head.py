"""Packs a trained draft head into the form that this package ships, and prints its registry row.

    python scripts/pack_head.py HEAD_DIR NAME [--target SmolLM2-135M-Instruct] [--description TEXT]

Writes python/specdec_native/heads/NAME without the matrices that are rows of the target's LM head,
with other floating-point tensors in bfloat16, and prints the row for
python/specdec_native/checkpoints/head_registry.py. A head whose training changed its LM head is
refused, unless --with-output includes the LM head.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from specdec_native.checkpoints import head_registry, hub
from specdec_native.checkpoints.draft_config import read_draft_config
from specdec_native.checkpoints.head_files import OUTPUT_MATRIX, sha256_of, without_borrowed
from specdec_native.checkpoints.layout import SINGLE_FILE
from specdec_native.checkpoints.model_registry import find_model
from specdec_native.checkpoints.safetensors_writer import write_shard
from specdec_native.checkpoints.text_files import read_json_object
from specdec_native.speculation.drafter_options import TOKEN_MAP_FILE

MAX_BYTES = 15_000_000  # of all heads together


def pack(
    source: Path, target: Path, directory: Path, *, with_output: bool = False
) -> tuple[tuple[str, ...], str]:
    """Writes the shipped form of a head to `directory`; returns the names of the tensors that were
    left out, and their digest.

    Raises ValueError where its LM head is not the target's.
    """
    specs, borrowed, digest = without_borrowed(source, target)
    own = [spec.name for spec in specs if OUTPUT_MATRIX.fullmatch(spec.name)]
    if own and not with_output:
        raise ValueError(
            f"{', '.join(own)} in {source}: these are not the rows of {target}, so the head was "
            "trained for other weights, or its output head was trained, too: --with-output ships it"
        )
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    write_shard(directory / SINGLE_FILE, specs)
    config = {**read_json_object(source / "config.json"), "torch_dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if (source / TOKEN_MAP_FILE).is_file():
        shutil.copyfile(source / TOKEN_MAP_FILE, directory / TOKEN_MAP_FILE)
    return borrowed, digest


def row_text(head: head_registry.RegistryHead) -> str:
    """The head as the registry spells it."""
    fields = ("name", "method", "target", "description", "sha256", "borrowed", "rows_sha256")
    lines = [f"        {field}={_literal(getattr(head, field))}," for field in fields]
    return "\n".join(["    RegistryHead(", *lines, "    ),"])


def _literal(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return "(" + "".join(f'"{item}", ' for item in value).rstrip(" ") + ")"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("head", type=Path, help="the trained checkpoint's directory")
    parser.add_argument("name", help='such as "SmolLM2-135M-Instruct-eagle3"')
    parser.add_argument("--target", help="a known model; the name's longest beginning if left out")
    parser.add_argument("--description", default="")
    parser.add_argument("--with-output", action="store_true")
    given = parser.parse_args(arguments)
    target = find_model(given.target or given.name.rpartition("-")[0])
    if target is None:
        raise SystemExit("error: --target must be a known model (specdec-native fetch lists them)")
    source = hub.resolve_model(given.head)
    method = read_draft_config(source).method
    if method is None:
        raise SystemExit(f"error: {source / 'config.json'} is not that of a draft head")
    directory = head_registry.DIRECTORY / given.name
    try:
        borrowed, digest = pack(
            source, hub.fetch(target.name), directory, with_output=given.with_output
        )
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    head = head_registry.RegistryHead(
        name=given.name,
        method=method,
        target=target.name,
        description=given.description,
        sha256=sha256_of(directory / SINGLE_FILE),
        borrowed=borrowed,
        rows_sha256=digest,
    )
    print(row_text(head))
    files = [file for file in head_registry.DIRECTORY.rglob("*") if file.is_file()]
    total = sum(file.stat().st_size for file in files)
    print(f"{directory}: all heads together have {total:,} bytes", file=sys.stderr)
    if total > MAX_BYTES:
        raise SystemExit(f"error: that is more than {MAX_BYTES:,} bytes, the most that is shipped")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
