"""bench/gpu/prebuild refuses programs that would not start elsewhere, and too many of them."""

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu import build, machine, main, prebuilt
from gpu.steps import Context, FailedError, NotRunError

DYNAMIC = """
Dynamic section at offset 0x3d70 contains 29 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libstdc++.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [libm.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [ld-linux-x86-64.so.2]
 0x000000000000000c (INIT)               0x2000
"""
VERSIONS = """
Version needs section '.gnu.version_r' contains 3 entries:
 Addr: 0x0000000000000d48  Offset: 0x000d48  Link: 6 (.dynstr)
  000000: Version: 1  File: libc.so.6  Cnt: 3
  0x0010:   Name: GLIBC_2.34  Flags: none  Version: 9
  0x0020:   Name: GLIBC_2.2.5  Flags: none  Version: 4
  0x0030:   Name: GLIBC_ABI_DT_RELR  Flags: none  Version: 7
  0x0040: Version: 1  File: libstdc++.so.6  Cnt: 2
  0x0050:   Name: GLIBCXX_3.4.30  Flags: none  Version: 5
  0x0060:   Name: CXXABI_1.3.9  Flags: none  Version: 3
  0x0070: Version: 1  File: libgcc_s.so.1  Cnt: 1
  0x0080:   Name: GCC_3.0  Flags: none  Version: 2
"""


def test_the_newest_version_of_each_family_counts() -> None:
    assert prebuilt.describe(prebuilt.needed_versions(VERSIONS)) == {
        "GLIBC": "2.34",
        "GLIBCXX": "3.4.30",
        "CXXABI": "1.3.9",
        "GCC": "3.0",
    }
    assert prebuilt.problems(DYNAMIC, VERSIONS) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("GLIBC_2.34", "GLIBC_2.39", None),
        ("GLIBC_2.34", "GLIBC_2.40", "it needs GLIBC_2.40"),
        ("GLIBCXX_3.4.30", "GLIBCXX_3.4.34", "it needs GLIBCXX_3.4.34"),
        ("CXXABI_1.3.9", "CXXABI_1.3.16", "it needs CXXABI_1.3.16"),
        ("GCC_3.0", "GCC_15.0.0", "it needs GCC_15.0.0"),
        ("GCC_3.0", "XZ_5.2", "it needs XZ_5.2"),
    ],
)
def test_symbols_that_are_newer_than_the_system_are_refused(
    old: str, new: str, problem: str | None
) -> None:
    found = prebuilt.problems(DYNAMIC, VERSIONS.replace(old, new))
    assert found == ([problem] if problem else [])


@pytest.mark.parametrize("library", ["libcudart.so.13", "libnccl.so.2", "libcrypt.so.1"])
def test_libraries_that_not_every_system_has_are_refused(library: str) -> None:
    dynamic = DYNAMIC.replace("libm.so.6", library)
    assert prebuilt.problems(dynamic, VERSIONS) == [f"it needs {library}"]


def needs_tools(*names: str) -> pytest.MarkDecorator:
    absent = [name for name in names if shutil.which(name) is None]
    return pytest.mark.skipif(bool(absent), reason=f"no {', '.join(absent)}")


@needs_tools("readelf", "xz", "true")
def test_programs_of_this_system_are_read() -> None:
    path = shutil.which("true")
    assert path is not None
    newest = prebuilt.check_program(Path(path).resolve())
    assert (2, 0) < newest["GLIBC"] <= (2, 39)
    compressor = shutil.which("xz")
    assert compressor is not None
    with pytest.raises(prebuilt.UnfitProgramError, match=r"xz: .*it needs liblzma\.so\.5"):
        prebuilt.check_program(Path(compressor).resolve())


def program(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)
    return path


def test_a_program_must_start_or_say_that_there_is_no_gpu(tmp_path: Path) -> None:
    no_gpu = program(tmp_path / "bench", "echo 'not run: no GPU'", "exit 3")
    prebuilt.check_start(no_gpu, "--smoke")
    with pytest.raises(prebuilt.UnfitProgramError, match="crash --smoke: a reason"):
        prebuilt.check_start(program(tmp_path / "crash", "echo a reason", "exit 1"), "--smoke")


@pytest.mark.parametrize(
    ("archive", "tree", "folder", "problem"),
    [
        (20, 22, 30, None),
        (41, 22, 42, "programs.tar.xz has 41.0 MiB, and 40 are allowed"),
        (20, 30, 40, "the tree has 30.0 MiB and the folder 40.0, and 64 are allowed together"),
    ],
)
def test_more_than_travels_is_refused(
    archive: int, tree: int, folder: int, problem: str | None
) -> None:
    sizes = [size << 20 for size in (archive, tree, folder)]
    if problem is None:
        prebuilt.check_sizes(*sizes)
        return
    with pytest.raises(prebuilt.TooLargeError, match=problem):
        prebuilt.check_sizes(*sizes)


@needs_tools("git")
def test_the_tree_is_what_git_does_not_ignore(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name, size in {"tracked": 10, "new": 20, "ignored": 1000}.items():
        (tmp_path / name).write_text("x" * size)
    (tmp_path / ".gitignore").write_text("ignored\n")
    subprocess.run(["git", "-C", tmp_path, "add", "tracked"], check=True)
    assert prebuilt.tree_bytes(tmp_path) == 10 + 20 + len("ignored\n")


Fill = Callable[..., Path]


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """A function that fills a folder as bench/gpu/prebuild does, with programs of one line."""

    def make(first: str = "exit 0", architecture: str = "90a-real") -> Path:
        staged, folder = tmp_path / "staged", tmp_path / "filled"
        names = [f"bench/{name}" for name in build.BENCHES] + ["tests/cuda/specdec_cuda_a_test"]
        for name in names:
            program(staged / name, first)
        prebuilt.pack(staged, names, folder / build.ARCHIVE)
        facts = {"architecture": architecture, "commit": "abc"}
        (folder / build.FACTS).write_text(json.dumps(facts))
        return folder

    return make


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(build, "architecture", lambda: "90a-real")
    return Context(tmp_path, tmp_path / "build", tmp_path / "out", tmp_path / "scratch")


@needs_tools("xz", "tar")
def test_packed_programs_are_unpacked_and_started(fill: Fill, context: Context) -> None:
    context.prebuilt = fill()
    assert build.unpack(context)["commit"] == "abc"
    assert context.programs() == context.scratch / "programs"
    assert (context.programs() / "tests/cuda/specdec_cuda_a_test").is_file()
    with pytest.raises(NotRunError, match="built beforehand"):
        build.benches(context)


@needs_tools("xz", "tar")
@pytest.mark.parametrize(
    ("first", "problem"),
    [
        ("echo 'libc.so.6: version GLIBC_2.99 not found'; exit 1", "GLIBC_2.99 not found"),
        ("kill -4 $$", "does not start"),
    ],
)
def test_programs_that_do_not_start_are_said_to_be_built(
    first: str, problem: str, fill: Fill, context: Context
) -> None:
    context.prebuilt = fill(first)
    with pytest.raises(FailedError, match=f"{problem}.*: benchmarks are built here"):
        build.unpack(context)
    assert context.programs() == context.build


@needs_tools("xz", "tar")
def test_half_an_archive_and_one_for_another_gpu_are_not_used(fill: Fill, context: Context) -> None:
    context.prebuilt = fill()
    archive = context.prebuilt / build.ARCHIVE
    archive.write_bytes(archive.read_bytes()[:50])
    with pytest.raises(FailedError, match="not unpacked"):
        build.unpack(context)
    context.prebuilt = fill(architecture="100a-real")
    with pytest.raises(FailedError, match="the programs are for 100a-real, and this GPU is 90a"):
        build.unpack(context)


@needs_tools("xz", "tar")
def test_without_xz_python_unpacks(
    fill: Fill, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.prebuilt = fill()
    monkeypatch.setattr(machine, "find_tool", lambda name: None)
    build.unpack(context)
    with tarfile.open(context.prebuilt / build.ARCHIVE) as archive:
        assert all((context.programs() / name).is_file() for name in archive.getnames())


def test_a_folder_without_programs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(build.PrebuiltError, match=r"has no programs\.json: bench/gpu/prebuild"):
        build.read_programs(tmp_path)
    (tmp_path / build.FACTS).write_text("{}")
    (tmp_path / build.ARCHIVE).touch()
    with pytest.raises(build.PrebuiltError, match="not as bench/gpu/prebuild writes it"):
        build.read_programs(tmp_path)
    monkeypatch.setattr(machine, "gpus", lambda: [{"name": "NVIDIA H100"}])
    absent = tmp_path / "absent"
    assert main.main(["--prebuilt", str(absent), "--out", str(tmp_path / "out")]) == 2
    assert f"{absent} has no programs.json" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main.main(["--prebuilt", str(absent)])
    assert "need --out" in capsys.readouterr().err
