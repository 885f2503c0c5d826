"""The options of Engine: the core's and Python's own."""

from __future__ import annotations

import ast
import enum
import json
import re
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

from specdec_native import _core
from specdec_native.common.option_text import help_line

_WIDTH = 100


class Row(NamedTuple):
    """An option: its annotation, its default and what it does."""

    name: str
    annotation: str
    default: Any
    text: str


def core_row(option: _core.Option) -> Row:
    """The row of a core option. A 0 that lets the engine choose is None in Python."""
    is_optional = option.zero is not None
    return Row(
        option.name,
        f"{option.type} | None" if is_optional else option.type,
        None if is_optional else option.default,
        f"{help_line(option)}. {option.details}".strip(),
    )


_OWN = """
model: str | os.PathLike[str] = ...
    a directory, a .gguf file or a model name. A draft head that names its target (speculators'
    format) stands for that, and drafts for it.
tokenizer: Any = None
    another checkpoint's directory or name, or a tokenizer object.
hf_overrides: HfOverrides | None = None
    put over config.json: a dict, whose keys replace those there, or a function that is given the
    configuration and returns it changed.
max_logprobs: int = 20
    the most a request may ask for; -1 for no limit.
skip_tokenizer_init: bool = False
    work with token ids only.
trust_remote_code: bool = False
    run tokenizer code of the checkpoint (other formats only).
revision: str | None = None
    branch, tag or commit of a model name.
chat_template: str | os.PathLike[str] | None = None
    file, Jinja source or name of one to use in place of the default.
generation_config: str | os.PathLike[str] = "auto"
    where sampling parameters come from if a request brings none. "auto": the checkpoint's
    generation_config.json; a folder: the one in it, whose end-of-sequence tokens count, too;
    "vllm": none, SamplingParams() as it is.
override_generation_config: Mapping[str, Any] | None = None
    replaces keys of it, such as {"temperature": 0.5}.
speculative_config: Mapping[str, Any] | None = None
    drafts tokens ahead and verifies several at once, such as {"method": "ngram"}. The keys are
    described in specdec_native.speculation.speculative_config.
structured_outputs_config: Mapping[str, bool] | None = None
    what holds for all requests as if each said it: {"disable_any_whitespace": True,
    "disable_additional_properties": True} or one of them; see StructuredOutputsParams.
logits_processors: Sequence[type[Any] | str] | None = None
    classes of vLLM's form, or "module:Class", that change the logits of every request; see
    specdec_native.requests.batch_logits_processors. Needs torch.
taps: Sequence[int | Literal["final"]] | None = None
    states of the model that finished completions return (tapped_states): the residual stream as
    each of these layers reads it, counted from 0, then "final": what the output head reads. Draft
    heads are trained on them.
"""
_MODEL, _TOKENIZER, *_OTHERS = (
    Row(name, annotation, ast.literal_eval(default), " ".join(text.split()))
    for name, annotation, default, text in re.findall(
        r"^(\w+): (.*) = (.*)\n((?:    .*\n)+)", _OWN, re.MULTILINE
    )
)
ROWS = [_TOKENIZER, *map(core_row, _core.EngineConfig.options), *_OTHERS]

_FILE = '''\
"""The arguments of Engine. Written by scripts/write_options.py; do not edit."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from specdec_native.checkpoints.hf_config import HfOverrides


@dataclasses.dataclass(frozen=True)
class EngineArguments:
    """Engine's options, which EngineSignature describes."""

{fields}


class EngineSignature:
    """The constructor of Engine."""

    def __init__(
        self,
        {model},
        *,
{parameters}
    ) -> None:
        """Loads a checkpoint.

        Args:
{descriptions}

        Raises ValueError for a bad option or checkpoint, MemoryError where it does not fit,
        RuntimeError where the device is not available.
        """
        arguments = EngineArguments(
{names}
        )  # fmt: skip
        self._load(model, arguments)

    def _load(self, model: {model_type}, arguments: EngineArguments) -> None:
        raise NotImplementedError


EngineSignature.__init__.__qualname__ = "Engine.__init__"  # as errors call it
'''


def write_engine_arguments(_: str) -> str:
    """python/specdec_native/options/engine_arguments.py."""
    descriptions = "\n".join(_wrapped(f"{r.name}: {r.text}", " " * 12) for r in [_MODEL, *ROWS])
    return _FILE.format(
        model=f"{_MODEL.name}: {_MODEL.annotation}",
        model_type=_MODEL.annotation,
        fields="\n".join(f"    {row.name}: {row.annotation}" for row in ROWS),
        parameters="\n".join(
            f"        {row.name}: {row.annotation} = {_code(row.default)}," for row in ROWS
        ),
        descriptions=descriptions,
        names=_wrapped(", ".join(row.name for row in ROWS) + ",", " " * 12, hanging=""),
    )


def table_of(rows: Iterable[Row]) -> str:
    """A page's table."""
    lines = ["| | default | |", "|---|---|---|"]
    for name, _, default, text in rows:
        shown = default if isinstance(default, enum.Enum) else repr(default)
        cell = text.replace("|", "\\|")
        lines.append(f"| `{name}` | `{shown}` | {cell} |")
    return "\n".join(lines)


def _code(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _wrapped(text: str, indent: str, hanging: str = "    ") -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
