"""What releases are made of: examples/serving, extras, versions. None is built here."""

import ast
import configparser
import fnmatch
import importlib.metadata
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from command_line import serve_flags
from specdec_cli.serve_parser import UsageError
from specdec_cli.serve_settings import Settings, settings_of
from specdec_native import _core

tomllib = pytest.importorskip("tomllib")  # of Python 3.11

ROOT = Path(__file__).parents[3]
SERVING = ROOT / "examples" / "serving"
DOCKERFILES = [SERVING / "Dockerfile", SERVING / "Dockerfile.cuda"]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, continued lines joined."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line]  # type: ignore[misc]


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(SERVING / "specdec-native.service")
    return parser


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def of_config() -> Settings:
    return settings_of(serve_flags(["--config", str(SERVING / "serve.yaml")]))


@pytest.fixture
def compose() -> dict[str, Any]:
    services = yaml.safe_load((SERVING / "compose.yaml").read_text())["services"]
    service: dict[str, Any] = services["specdec-native"]
    return service


# Images.


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_files_that_an_image_is_built_with_are_in_its_context(dockerfile: Path) -> None:
    """What the build runs and reads is in the repository, and the ignore file lets it in."""
    commands = " ".join(rest for name, rest in instructions(dockerfile) if name == "RUN")
    scripts = re.findall(r"\bscripts/[\w.]+", commands)
    assert scripts == ["scripts/make_wheel.sh"]
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("not a clone")
    assert set(scripts) <= set(tracked)
    ignored = [
        line
        for line in Path(f"{dockerfile}.dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    left_out = {
        path
        for path in tracked
        for pattern in ignored
        if fnmatch.fnmatch(path, pattern) or path.startswith(f"{pattern}/")
    }
    # The sdist does without the same files.
    assert {path for path in left_out if not path.startswith("bench/results/")} == set()
    assert "bench/results" in PROJECT["tool"]["scikit-build"]["sdist"]["exclude"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_the_server_without_root_or_compiler(dockerfile: Path) -> None:
    stages: list[list[tuple[str, str]]] = []
    for name, rest in instructions(dockerfile):
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, rest))
    builder, final = stages
    said = dict(final)
    assert said["USER"] not in ("0", "root")
    assert said["EXPOSE"] == str(settings_of(serve_flags(["model"])).listen.port) == "8000"
    assert "'/health'" in said["HEALTHCHECK"] and f"{said['EXPOSE']}," in said["HEALTHCHECK"]
    *_, program, command = ast.literal_eval(said["ENTRYPOINT"])
    assert program in PROJECT["project"]["scripts"] and command == "serve"
    assert "g++" in " ".join(rest for _, rest in builder)
    assert "g++" not in " ".join(rest for _, rest in final)
    # A version of Python that wheels are made for, and the one they are then installed into.
    python = re.findall(r"make_wheel.sh .*\bpython(3\.\d+)", " ".join(rest for _, rest in builder))
    assert builder[0][1].startswith(f"python:{python[0]}-slim-bookworm")
    assert f"Programming Language :: Python :: {python[0]}" in PROJECT["project"]["classifiers"]


def test_compose_gives_flags_that_the_server_has(compose: dict[str, Any]) -> None:
    listen = settings_of(serve_flags(compose["command"])).listen
    assert listen.port == 8000 and compose["ports"] == ["127.0.0.1:8000:8000"]
    assert seconds(compose["stop_grace_period"]) > listen.shutdown_timeout > 0
    context = (SERVING / compose["build"]["context"]).resolve()
    assert context == ROOT and (context / compose["build"]["dockerfile"]).is_file()
    with pytest.raises(UsageError):  # so that the first line can fail
        serve_flags([*compose["command"], "--max-num-queued-request=1"])


def test_the_key_of_compose_is_taken(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in compose["environment"]:
        monkeypatch.setenv(name, "secret")
    assert settings_of(serve_flags(compose["command"])).server.api_keys == ("secret",)


# The unit.


def test_the_unit_starts_the_server_with_flags_that_it_has() -> None:
    service = unit()["Service"]
    program, command, *flags = shlex.split(service["ExecStart"])
    assert Path(program).name in PROJECT["project"]["scripts"] and command == "serve"
    assert flags == ["--config", "/etc/specdec-native/serve.yaml"]
    settings = of_config()
    assert settings.listen.host == "127.0.0.1"
    assert not settings.without_effect
    assert service["KillSignal"] == "SIGTERM"
    assert seconds(service["TimeoutStopSec"]) > settings.listen.shutdown_timeout > 0


def test_the_units_folder_is_the_one_it_may_write_to() -> None:
    text = (SERVING / "specdec-native.service").read_text()
    folder = f"%C/{unit()['Service']['CacheDirectory']}"
    for name in ("SPECDEC_HOME", "HF_HOME", "HOME"):
        assert re.search(rf"\b{name}={folder}\b", text), name


# The distribution.


def requirements(extra: str | None) -> Iterator[Requirement]:
    """An extra's requirements, with those of extras that it names; None for the core."""
    project = PROJECT["project"]
    listed = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    for text in listed:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            for other in requirement.extras:
                yield from requirements(other)
        else:
            yield requirement


def closure(wanted: Iterator[Requirement]) -> set[str]:
    """Names of all installed distributions that requirements bring."""
    found: set[str] = set()
    todo = [(each.name, frozenset(each.extras)) for each in wanted]
    while todo:
        name, extras = todo.pop()
        found.add(canonicalize_name(name))
        for text in importlib.metadata.requires(name) or []:
            each = Requirement(text)
            applies = any(
                each.marker is None or each.marker.evaluate({"extra": extra})
                for extra in ("", *extras)
            )
            if applies and canonicalize_name(each.name) not in found:
                todo.append((each.name, frozenset(each.extras)))
    return found


@pytest.mark.parametrize("extra", [None, *PROJECT["project"]["optional-dependencies"]])
def test_extras_name_packages_and_one_another(extra: str | None) -> None:
    for requirement in requirements(extra):
        assert requirement.specifier, f"{requirement} has no lowest version"


def test_all_has_what_the_commands_of_the_pages_need() -> None:
    """But for what is large: torch and Ray."""
    large = {"all", "ray", "torch", "train"}
    extras = set(PROJECT["project"]["optional-dependencies"]) - large
    named = {
        other
        for r in PROJECT["project"]["optional-dependencies"]["all"]
        for other in Requirement(r).extras
    }
    assert named == extras


def test_the_server_imports_only_what_its_extra_brings() -> None:
    packages = importlib.metadata.packages_distributions()
    brought = closure(requirements("serve")) | closure(requirements(None))
    missing = {}
    for path in (ROOT / "python/specdec_serve/http").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in {name.split(".")[0] for name in names}:
                owners = {canonicalize_name(each) for each in packages.get(name, [])}
                if owners and not name.startswith("specdec_") and not owners & brought:
                    missing[name] = path.name
    assert missing == {}
    assert "fastapi" in brought and "starlette" in brought


def test_the_version_is_written_once() -> None:
    version = (ROOT / "VERSION").read_text().strip()
    assert _core.build_info().version == version
    assert "version" in PROJECT["project"]["dynamic"] and "version" not in PROJECT["project"]
    assert PROJECT["tool"]["scikit-build"]["metadata"]["version"]["input"] == "VERSION"
    files = [ROOT / "CMakeLists.txt", *SERVING.iterdir(), ROOT / "scripts/make_wheel.sh"]
    assert [path.name for path in files if version in path.read_text()] == []


def test_wheels_are_built_with_what_the_project_asks_for() -> None:
    """make_wheel.sh builds without isolation: its pinned packages are the build system's, too."""
    pinned = {
        canonicalize_name(each.name): each.specifier
        for each in map(Requirement, PROJECT["dependency-groups"]["wheel"])
    }
    for requirement in map(Requirement, PROJECT["build-system"]["requires"]):
        (pin,) = pinned[canonicalize_name(requirement.name)]
        assert pin.operator == "==" and requirement.specifier.contains(pin.version)


def test_the_script_makes_wheels_for_the_versions_that_are_named() -> None:
    script = (ROOT / "scripts/make_wheel.sh").read_text()
    minors = re.search(r"for minor in ([\d ]+);", script)
    assert minors is not None
    assert [f"Programming Language :: Python :: 3.{each}" for each in minors[1].split()] == [
        each for each in PROJECT["project"]["classifiers"] if "Python :: 3." in each
    ]
    assert "manylinux_2_36_" in script  # the glibc of Debian 12
