"""Options are written once, in the tables of cpp/include/specdec; everything else follows."""

import ast
import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import write_options as script

from specdec_cli.command_options import engine_options, sampling_options
from specdec_native import Engine, SamplingParams, _core, engine, engine_checkpoint
from specdec_native.common.option_text import help_line
from specdec_native.options.engine_arguments import EngineArguments
from specdec_native.options.engine_options import OPTIONS, make_config
from specdec_native.requests.sampling_params import MAXIMA
from specdec_native.speculation import speculative_config
from specdec_vllm.arguments import ENGINE_ARGUMENTS


@pytest.mark.parametrize("path", script.FILES, ids=lambda path: path.name)
def test_what_is_written_from_the_tables_is_up_to_date(path: Path) -> None:
    assert script.FILES[path](path.read_text()) == path.read_text(), "run scripts/write_options.py"


@pytest.mark.parametrize("path", script.FILES, ids=lambda path: path.name)
def test_a_file_that_differs_is_seen(path: Path) -> None:
    spoiled = path.read_text()
    for word in ("max_model_len", "--max-model-len", "| edit |"):
        spoiled = spoiled.replace(word, "something")
    assert script.FILES[path](spoiled) != spoiled


def test_the_signature_of_engine_has_the_tables_defaults() -> None:
    parameters = inspect.signature(Engine).parameters
    for name, option in OPTIONS.items():
        assert parameters[name].default == (None if option.zero else option.default), name


def test_engine_uses_all_its_arguments() -> None:
    """Options of the core are taken by name; what is left over from one must not linger."""
    source = inspect.getsource(engine) + inspect.getsource(engine_checkpoint)
    own = {field.name for field in dataclasses.fields(EngineArguments)} - set(OPTIONS)
    assert own <= {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "arguments"
    }


def test_the_docstring_of_sampling_params_says_what_the_table_says() -> None:
    described = {row.name: row.text for row in script.sampling_rows()}
    for option in _core.SamplingParams.options:
        if "list" not in option.type:  # lists hold text in Python
            line = help_line(option, MAXIMA.get(option.name))
            assert described[option.name] == f"{line}. {option.details}".strip()


def test_every_option_of_the_core_can_be_set() -> None:
    values = {"str": "auto", "int": 32, "float": 0.5, "bool": False}
    given = {name: [values[option.type], *option.choices][-1] for name, option in OPTIONS.items()}
    config = make_config(given)
    for name, value in given.items():
        assert getattr(config, name) == value


def test_sampling_params_default_as_in_the_core() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    for option in _core.SamplingParams.options:
        if option.name == "eos_token_ids":  # the checkpoint's, which no user gives
            continue
        assert fields[option.name] in (option.default, option.default or None), option.name


@pytest.mark.parametrize("option", _core.SamplingParams.options, ids=lambda option: option.name)
def test_sampling_params_refuse_what_the_core_refuses(option: _core.Option) -> None:
    if option.lowest is None:
        pytest.skip("takes any value")
    below: Any = option.lowest if option.above_lowest else option.lowest - 1
    too_large: list[Any] = [] if option.highest is None else [option.highest + 1]
    for value in (below, *too_large):
        number = int(value) if "int" in option.type else value
        fields: dict[str, Any] = {option.name: number}
        with pytest.raises(ValueError, match=option.name):
            SamplingParams(**fields)
        core = _core.SamplingParams(**fields)
        if number == 0 and option.zero is not None:
            core.validate()
        else:
            with pytest.raises(_core.InvalidArgument, match=option.name):
                core.validate()


def test_the_command_line_has_every_option_of_the_engine() -> None:
    names = {parameter.name for parameter in engine_options()}
    assert names == set(OPTIONS) - {"seed"}  # --seed is a request's
    assert "temperature" in {parameter.name for parameter in sampling_options()}


def test_vllms_arguments_contain_the_engines() -> None:
    assert set(OPTIONS) <= set(ENGINE_ARGUMENTS)


def test_the_document_of_speculation_has_every_key_and_its_default() -> None:
    text = speculative_config.__doc__ or ""
    internal = {"sampling", "verification"}  # which users call by vLLM's names
    options = (*_core.SpeculativeConfig.options, *_core.DrafterConfig.options)
    stated = dict(re.findall(r"(\w+) \((\d[\d.]*|\"\w+\")[,)]", text))
    for option in options:
        assert option.name in text or option.name in internal
        if option.name in stated:
            assert json.loads(stated[option.name]) == option.default, option.name
    assert {"suffix_decoding_max_tree_depth", "min_confidence", "tree_width"} <= set(stated)
