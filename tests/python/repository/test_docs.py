"""README and the site: all code runs, all links lead somewhere."""

import importlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import specdec_native
import tiny_text_model
import training_runs
from doc_snippets import ROOT, Fence, Runner, SnippetError, anchors, fences, links
from specdec_native.checkpoints import hugging_face
from specdec_native.checkpoints.cache import source_key
from specdec_native.checkpoints.head_registry import HEADS
from specdec_native.checkpoints.hub import _registry_entry
from specdec_native.checkpoints.model_registry import MODELS

SITE = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "examples/serving/README.md", *SITE]
WITH_CODE = [page for page in PAGES if any(f.language != "text" for f in fences(page))]

HEAD_VARIANTS = {"eagle3": "eagle3_own_head"}
# Commands that train and measure do so with less here.
SHORTER = {
    "train-head": [
        f"--{name.replace('_', '-')}={value}"
        for name, value in {
            **training_runs.TRAINING,
            **training_runs.DATA,
            **training_runs.ENGINE,
            "answer_tokens": 600,
            "epochs": 0.5,
            "data": "prompts.jsonl",
        }.items()
    ],
    "eval-head": [
        *("--prompts=prompts.jsonl", "--limit=2", "--max-tokens=8", "--temperature=0"),
        "--method=head",
    ],
    "verify": ["--tokens=8"],
    "plan": [
        *("--batch-sizes=1,2", "--contexts=8", "--spec-tokens=2", "--prompts=prompts.jsonl"),
        "--max-tokens=8",
    ],
}


@pytest.fixture(scope="module")
def home(
    checkpoint: Callable[[str], Path],
    head: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A $SPECDEC_HOME in which tiny checkpoints lie where the known models and heads would."""
    home = tmp_path_factory.mktemp("home")
    model = tiny_text_model.add_byte_text(checkpoint("llama"), home / "tiny")
    tiny_text_model.lengthen(model)
    for known in MODELS:
        (home / _registry_entry(known)).parent.mkdir(exist_ok=True)
        shutil.copytree(model, home / _registry_entry(known))
    (home / "heads").mkdir()
    for known_head in HEADS:
        target = next(known for known in MODELS if known.name == known_head.target)
        weights = sorted((home / _registry_entry(target)).glob("*.safetensors"))
        key = source_key(weights, head=known_head.sha256)
        shutil.copytree(
            head(HEAD_VARIANTS[known_head.method]), home / "heads" / f"{known_head.name}-{key}"
        )
    return home


@pytest.fixture
def runner(
    home: Path, toy_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runner]:
    environment = {
        "SPECDEC_HOME": str(home),
        "HOME": str(tmp_path),
        "HF_HOME": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OPENAI_API_KEY": "EMPTY",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    for name in ("SPECDEC_HOME", "HOME"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.setattr(hugging_face, "cached_snapshot", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    words = {
        "SMALL_MODEL": "SmolLM2-135M-Instruct",
        "MODEL": str(training_runs.make_target(toy_target, tmp_path / "target")),
        "DIR": "made",
    }
    training_runs.write_prompts(tmp_path / "prompts.jsonl", 60)
    with Runner(tmp_path, words, SHORTER, environment) as runner:
        yield runner


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_runs(page: Path, runner: Runner) -> None:
    for fence in fences(page):
        runner.run(fence)


def test_the_stand_ins_are_used(runner: Runner) -> None:
    script = 'from specdec_native import LLM\nllm = LLM("SmolLM2-135M-Instruct")\n'
    runner.run(Fence("page", 1, "python", {}, script))
    assert runner.namespace["llm"].engine.model_info().vocab_size == 160


@pytest.mark.parametrize(
    ("language", "attributes", "text"),
    [
        ("", {}, "x"),
        ("console", {}, "$ ls"),
        ("sh", {"data-skip": "slow"}, "ls"),
        ("sh", {"data-ignored": "because of this"}, "ls"),
        ("sh", {"data-skip": "needs a GPU"}, "if"),
        ("sh", {}, "false | true"),
        ("sh", {"data-fails": "no such thing"}, "true"),
        ("sh", {"data-fails": "no such thing"}, "false"),
        ("sh", {}, "specdec-native serve SmolLM2-135M-Instruct --no-such-flag"),
        ("python", {"data-skip": "needs a GPU"}, "if"),
        ("python", {}, "from specdec_native import no_such_name"),
        ("json", {}, "{1}"),
        ("json", {}, '{"method": "no_such_method"}'),
        ("yaml", {}, "a: [1"),
        ("cpp", {}, "int x;"),
        ("cpp", {}, '--8<-- "cpp/include/specdec/engine.h"\n'),
    ],
)
def test_wrong_code_is_seen(
    runner: Runner, language: str, attributes: dict[str, str], text: str
) -> None:
    with pytest.raises(Exception) as caught:
        runner.run(Fence("page", 1, language, attributes, text))
    if language in ("", "sh", "cpp"):
        assert isinstance(caught.value, SnippetError)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """mkdocs checks those of the site, too; README and GitHub's view of docs/ are checked here."""
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_file(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_files_are_there(page: Path) -> None:
    folders = "bench|cpp|docs|examples|python|scripts|tests"
    for name in re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text()):
        path = ROOT / name
        assert path.exists() or path.with_suffix(".py").exists(), f"{page.name}: {name}"


def test_the_reference_is_of_the_public_names() -> None:
    page = (ROOT / "docs/api.md").read_text()
    missing = [name for name in specdec_native.__all__ if not re.search(rf"\b{name}\b", page)]
    assert missing == []
    for name in re.findall(r"^::: ([\w.]+)$", page, re.M):
        module, _, attribute = name.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)
        assert getattr(specdec_native, attribute) is found, name


def test_readme_is_short_and_has_every_page() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) < 110
    paths = {link.partition("#")[0] for link in links(readme)}
    listed = {path for path in paths if path.startswith("docs/") and path.endswith(".md")}
    written = {
        f"docs/{name}.md" for name in ("api", "serve-flags", "vllm-arguments")
    }  # which other pages lead to
    assert listed == {page.relative_to(ROOT).as_posix() for page in SITE} - written
