"""The list of classes in docs/supported.md is what the engine loads and refuses."""

import re
from pathlib import Path

import pytest

from every_family import families, known_families, refusal_of_class
from specdec_native import _core
from supported_page import (
    BEGIN,
    DRAFT_HEAD,
    END,
    PAGE,
    SUFFIX,
    UNCHECKED,
    WRAPPER,
    refusals,
    write_page,
)

UNKNOWN = {
    family.architecture: family
    for family in families().values()
    if family.architecture not in _core.known_architectures()
    and family.architecture not in [*refusals().get(WRAPPER, []), *refusals()[DRAFT_HEAD]]
}


@pytest.mark.parametrize("architecture", UNKNOWN)
def test_a_class_that_is_not_known_is_refused_by_its_name(
    architecture: str, tmp_path: Path
) -> None:
    text = refusal_of_class(UNKNOWN[architecture], tmp_path)
    assert f"config.json: architectures: '{architecture}' is not known" in text


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert BEGIN in page
    assert END in page
    assert write_page(page, {}) == page, "run tests/python/testing/supported_page.py"
    assert UNCHECKED not in page, "the models of these classes are not transformers'"


def test_a_page_that_differs_is_seen() -> None:
    page = PAGE.read_text()
    for old, new in ((" Arcee,", " "), (" Mamba,", " Llama,")):
        spoiled = page.replace(old, new)
        assert spoiled != page
        assert write_page(spoiled, {}) != spoiled


def test_every_class_of_the_engine_is_on_the_page() -> None:
    page = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    for architecture in _core.known_architectures():
        assert re.search(rf"\b{architecture.removesuffix(SUFFIX)}({SUFFIX})?\b", page)


def test_every_class_is_on_the_page_once() -> None:
    refused = [name for names in refusals().values() for name in names]
    known = {family.architecture for family in known_families().values()}
    assert len(refused) == len(set(refused))
    assert {*refused, *known} == {family.architecture for family in families().values()}
