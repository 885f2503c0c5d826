"""Which stages of scripts/test.sh a change runs (scripts/stages.py)."""

import subprocess
from pathlib import Path

import pytest
import stages

READS = "# reads: src :!src/notes.md\n"


def run_git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one stage, `unit`, that reads all of src but its notes."""
    root = tmp_path / "project"
    for name in (*stages.RUNNERS, "src/a.cc", "src/notes.md", "docs/page.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "scripts/stages").mkdir()
    (root / "scripts/stages/unit.sh").write_text(READS)
    (root / "tests").mkdir()
    run_git(root, "init", "-q")
    run_git(root, "add", ".")
    monkeypatch.setattr(stages, "ROOT", root)
    monkeypatch.setattr(stages, "STAGES", root / "scripts/stages")
    monkeypatch.setattr(stages, "PASSED", root / "tests/passed.json")
    stages.inputs.cache_clear()
    return root


def changed(project: Path, name: str, text: str) -> bool:
    """Whether the stage's hash changes with a file, which is put back."""
    path = project / name
    before = path.read_text() if path.exists() else None
    old = stages.hash_of("unit")
    path.write_text(text)
    stages.inputs.cache_clear()
    new = stages.hash_of("unit")
    if before is None:
        path.unlink()
    else:
        path.write_text(before)
    stages.inputs.cache_clear()
    return new != old


@pytest.mark.parametrize(
    "name",
    ["src/a.cc", "src/new.cc", "scripts/test.sh", "scripts/stages.py", "scripts/stages/unit.sh"],
)
def test_a_change_of_an_input_runs_the_stage(project: Path, name: str) -> None:
    assert changed(project, name, READS + "# changed\n")


@pytest.mark.parametrize(
    "name", ["src/notes.md", "docs/page.md", "docs/new.md", "tests/passed.json"]
)
def test_a_change_of_anything_else_does_not(project: Path, name: str) -> None:
    assert not changed(project, name, "changed")


def test_a_removed_input_runs_the_stage(project: Path) -> None:
    old = stages.hash_of("unit")
    (project / "src/a.cc").unlink()
    stages.inputs.cache_clear()
    assert stages.hash_of("unit") != old


def test_what_passed_is_skipped_until_an_input_changes(project: Path) -> None:
    assert stages.main(["passed", "unit"]) == 1
    stages.main(["record", "unit", stages.hash_of("unit")])
    assert stages.main(["passed", "unit"]) == 0
    (project / "src/a.cc").write_text("changed")
    assert stages.main(["passed", "unit"]) == 1


def test_a_change_while_the_stage_runs_is_not_recorded(project: Path) -> None:
    before = stages.hash_of("unit")
    (project / "src/a.cc").write_text("changed")
    stages.main(["record", "unit", before])
    assert stages.passed() == {}


def test_a_build_that_reads_more_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ninja = {
        "inputs": "a.o\nmain\n",
        "deps": "a.o: #deps 2\n    ../src/a.cc\n    ../docs/page.md\n\n"
        "b.o: #deps 1\n    ../src/notes.md\n",
    }
    real = stages.output_of

    def output_of(*command: str) -> str:
        return ninja[command[4]] if command[0] == "ninja" else real(*command)

    monkeypatch.setattr(stages, "output_of", output_of)
    (project / "build").mkdir()
    assert stages.main(["check", "unit", "build", "main"]) == 1
    assert "docs/page.md" in capsys.readouterr().out
    (project / "scripts/stages/unit.sh").write_text(READS + "# reads: docs\n")
    stages.inputs.cache_clear()
    assert stages.main(["check", "unit", "build", "main"]) == 0


@pytest.mark.parametrize("stage", stages.stage_names())
def test_every_pathspec_names_files(stage: str) -> None:
    for pathspec in stages.comments(stage, "reads"):
        assert stages.output_of("git", "ls-files", "--", pathspec.removeprefix(":!")), pathspec


def test_every_stage_is_run_by_the_script() -> None:
    script = (stages.ROOT / "scripts/test.sh").read_text()
    named = [
        word
        for line in script.splitlines()
        if line.startswith(("first=", "further="))
        for word in line.partition("(")[2].rstrip(")").split()
    ]
    assert sorted(named) == stages.stage_names()
