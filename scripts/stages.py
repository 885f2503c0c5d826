"""Tells what each stage of scripts/test.sh reads, and whether that changed since it last passed.

A stage is a file of scripts/stages, whose comments `# reads:` are git pathspecs. The hash of its
inputs covers those files, the scripts that run the stage, and the compilers. tests/passed.json has
the hash that each stage last passed with.

    stages.py hash STAGE             prints the hash of the stage's inputs
    stages.py passed STAGE           exits with 0 where the stage passed with these inputs
    stages.py record STAGE HASH      notes that the stage passed with these inputs
    stages.py check STAGE FOLDER TARGET...
                                     refuses files that these targets of a build were compiled
                                     from and that the stage's pathspecs leave out
    stages.py table                  which stages a change in each folder runs
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGES = ROOT / "scripts/stages"
PASSED = ROOT / "tests/passed.json"
# Read by every stage: how stages are run, and what they install.
RUNNERS = ["scripts/setup.sh", "scripts/stages.py", "scripts/test.sh"]
# Never read: the record itself.
NEVER = [":(exclude)tests/passed.json"]
# Read by stages that read all documents, and by no build.
READMES = ["cpp/*.md", "cuda/*.md"]
# Programs whose versions decide what a stage finds.
PROGRAMS = [["g++", "--version"], ["cmake", "--version"], [sys.executable, "--version"]]


def stage_names() -> list[str]:
    return sorted(path.stem for path in STAGES.glob("*.sh"))


def comments(stage: str, key: str) -> list[str]:
    """The words after `# key:` in the stage's file."""
    text = (STAGES / f"{stage}.sh").read_text()
    return " ".join(re.findall(rf"^# {key}: (.*)$", text, re.MULTILINE)).split()


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@functools.cache
def inputs(stage: str) -> frozenset[str]:
    """Paths of the files that a stage reads: tracked ones, and new ones that are not ignored."""
    pathspecs = [*comments(stage, "reads"), *NEVER]
    if not {".", "*.md"} & set(pathspecs):
        pathspecs += [f":(exclude){readmes}" for readmes in READMES]
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    read = set(output_of(*command, *pathspecs).split("\0")) - {""}
    return frozenset(read | {*RUNNERS, f"scripts/stages/{stage}.sh"})


def hash_of(stage: str) -> str:
    digest = hashlib.sha256()
    for program in PROGRAMS:
        digest.update(output_of(*program).encode())
    for path in sorted(inputs(stage)):
        file = ROOT / path
        content = file.read_bytes() if file.is_file() else b"removed"
        digest.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def passed() -> dict[str, str]:
    return dict(json.loads(PASSED.read_text())) if PASSED.exists() else {}


def record(stage: str, inputs_hash: str) -> None:
    """Records that the stage passed, unless a file changed while it ran."""
    if hash_of(stage) != inputs_hash:
        print(f"{stage} passed, but its inputs changed meanwhile: not recorded")
        return
    records = passed() | {stage: inputs_hash}
    PASSED.write_text(json.dumps(records, indent=2, sort_keys=True) + "\n")


def read_by_build(folder: Path, targets: Iterable[str]) -> set[str]:
    """The project's files that targets were compiled from, as ninja noted them."""
    objects = set(output_of("ninja", "-C", str(folder), "-t", "inputs", *targets).splitlines())
    found = set()
    of_targets = False
    for line in output_of("ninja", "-C", str(folder), "-t", "deps").splitlines():
        if line.startswith("    "):
            if of_targets:
                found.add((folder / line.strip()).resolve())
        else:
            of_targets = line.partition(":")[0] in objects
    tracked = set(output_of("git", "ls-files").splitlines())
    return tracked & {str(path.relative_to(ROOT)) for path in found if path.is_relative_to(ROOT)}


def folder_of(path: str) -> str:
    """The folder that a row of the table is for: two levels deep at most."""
    parts = path.split("/")
    return "/".join(parts[: min(2, len(parts) - 1)]) or "(top)"


def stages_of_folders(stages: Iterable[str]) -> dict[str, list[str]]:
    """Per folder of the project, the stages that read any of its files."""
    readers: dict[str, set[str]] = defaultdict(set)
    for stage in stages:
        for path in inputs(stage):
            readers[folder_of(path)].add(stage)
    return {folder: sorted(readers[folder]) for folder in sorted(readers)}


def main(arguments: list[str]) -> int:
    match arguments:
        case ["hash", stage]:
            print(hash_of(stage))
        case ["passed", stage]:
            return passed().get(stage) != hash_of(stage)
        case ["record", stage, inputs_hash]:
            record(stage, inputs_hash)
        case ["check", stage, folder, *targets]:
            if missing := sorted(read_by_build(ROOT / folder, targets) - inputs(stage)):
                print(f"scripts/stages/{stage}.sh reads files that `# reads:` leaves out:")
                print(*(f"  {path}" for path in missing), sep="\n")
                return 1
        case ["table"]:
            for folder, stages in stages_of_folders(stage_names()).items():
                print(f"{folder:24} {' '.join(stages)}")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
