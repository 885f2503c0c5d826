"""How each family of models writes calls of tools, by the names of --tool-call-parser."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
import string
from collections.abc import Callable, Mapping, Sequence

from specdec_serve.http.tools.call_parser import CallParser, Frame
from specdec_serve.http.tools.call_reader import CallSyntax
from specdec_serve.http.tools.events import AnswerParser, new_call_id
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.gemma_reader import GemmaCalls
from specdec_serve.http.tools.named_reader import NamedCalls
from specdec_serve.http.tools.object_reader import ObjectCalls
from specdec_serve.http.tools.python_reader import PythonCalls
from specdec_serve.http.tools.xml_reader import XmlCalls

TAG = re.compile(r"<[^<>]+>|\[[A-Z_]+\]")  # the parts of marks that may be special tokens
_NAME = r"\s*(?P<name>[\w.\-/]+)\s*"
_MISTRAL_ID = string.ascii_letters + string.digits


def _new_mistral_id() -> str:
    """An id of nine letters and digits: the templates refuse others."""
    return "".join(random.SystemRandom().choices(_MISTRAL_ID, k=9))


@dataclasses.dataclass(frozen=True)
class CallFormat:
    """One syntax of calls.

    Attributes:
        names: vLLM's names of --tool-call-parser that mean it; the first is ours.
        template_marks: what shows that a chat template asks for this syntax: all texts of any of
            these groups. The first format of the table that is shown counts.
        is_bare: whether models write calls without the frame's marks.
        writes_lists: whether models write calls as a list, where the frame may have one.
    """

    names: tuple[str, ...]
    template_marks: tuple[tuple[str, ...], ...]
    frame: Frame
    calls: CallSyntax
    new_id: Callable[[], str] = new_call_id
    is_bare: bool = False
    writes_lists: bool = False

    @functools.cached_property
    def tags(self) -> frozenset[str]:
        """Texts that the parser has to see, though they may be special tokens."""
        marks = [mark for pair in self.frame.marks for mark in pair] + [*self.calls.marks]
        return frozenset(tag for mark in marks for tag in TAG.findall(mark))

    def parser(self, functions: Sequence[Function] = ()) -> AnswerParser:
        """A parser of one answer; `functions` are the request's, whose schemas type values."""
        return CallParser(self.frame, self.calls, functions, self.new_id)


_QWEN_XML = XmlCalls(
    begin="<function=",
    name_end=">",
    key_begin="<parameter=",
    key_end=">",
    value_begin="",
    value_end="</parameter>",
    end="</function>",
    trims=True,
    is_wrapped=True,
)
_INVOKE_XML = XmlCalls(
    begin='<invoke name="',
    name_end='">',
    key_begin='<parameter name="',
    key_end='">',
    value_begin="",
    value_end="</parameter>",
    end="</invoke>",
)
# Values of other types than strings have string="false".
_DSML = dataclasses.replace(
    _INVOKE_XML,
    begin='<｜DSML｜invoke name="',
    key_begin='<｜DSML｜parameter name="',
    key_end='" string="false">',
    text_key_end='" string="true">',
    value_end="</｜DSML｜parameter>",
    end="</｜DSML｜invoke>",
)
_DEEPSEEK_SECTION = Frame((("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),), repeats=True)
_FORMATS = (
    # -- tags around each parameter
    CallFormat(
        ("seed_oss",),
        (("<seed:tool_call>",),),
        Frame((("<seed:tool_call>", "</seed:tool_call>"),), bare="<function=", repeats=True),
        dataclasses.replace(_QWEN_XML, is_wrapped=False),
    ),
    CallFormat(
        ("minimax_m2",),
        (("<minimax:tool_call>",),),
        Frame((("<minimax:tool_call>", "</minimax:tool_call>"),), repeats=True),
        _INVOKE_XML,
    ),
    CallFormat(
        ("deepseek_v32",),
        (("<｜DSML｜function_calls>",),),
        Frame((("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),), repeats=True),
        _DSML,
    ),
    CallFormat(
        ("deepseek_v4",),
        (("<｜DSML｜tool_calls>",),),
        Frame((("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),), repeats=True),
        _DSML,
    ),
    CallFormat(
        ("step3",),
        (("<steptml:invoke",),),
        Frame((("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),), repeats=True),
        XmlCalls(
            begin='<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
            name_end='">',
            key_begin='<steptml:parameter name="',
            key_end='">',
            value_begin="",
            value_end="</steptml:parameter>",
            end="</steptml:invoke><｜tool_call_end｜>",
        ),
    ),
    CallFormat(
        ("mimo",),
        (),
        Frame((("<tool_call>", "</tool_call>"),), bare="<function=", repeats=True),
        dataclasses.replace(_QWEN_XML, trims=False, is_wrapped=False),
    ),
    CallFormat(
        ("qwen3_coder", "qwen3_xml", "step3p5"),
        (("<tool_call>", "<function=", "<parameter="),),
        Frame((("<tool_call>", "</tool_call>"),), bare="<function=", repeats=True),
        _QWEN_XML,
    ),
    CallFormat(
        ("glm45", "glm47"),
        (("<arg_key>", "<arg_value>"),),
        Frame((("<tool_call>", ""),)),
        XmlCalls(
            begin="",
            name_end="",
            key_begin="<arg_key>",
            key_end="</arg_key>",
            value_begin="<arg_value>",
            value_end="</arg_value>",
            end="</tool_call>",
        ),
    ),
    # -- Gemma's own notation
    CallFormat(
        ("gemma4",),
        (("<|tool_call>", "<tool_call|>"),),
        Frame((("<|tool_call>", "<tool_call|>"),), repeats=True),
        GemmaCalls('<|"|>'),
    ),
    CallFormat(
        ("functiongemma",),
        (("<start_function_call>",),),
        Frame((("<start_function_call>", "<end_function_call>"),), repeats=True),
        GemmaCalls("<escape>"),
    ),
    # -- a name, and JSON behind it
    CallFormat(
        ("deepseek_v3",),
        (("<｜tool▁calls▁begin｜>", "```json"),),
        _DEEPSEEK_SECTION,
        NamedCalls(
            begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            header=_NAME,
            header_ends=("```json",),
            after_name=r"\n",
            end="```<｜tool▁call▁end｜>",
        ),
    ),
    CallFormat(
        ("deepseek_v31",),
        (("<｜tool▁calls▁begin｜>",),),
        _DEEPSEEK_SECTION,
        NamedCalls(
            begin="<｜tool▁call▁begin｜>",
            header=_NAME,
            header_ends=("<｜tool▁sep｜>",),
            end="<｜tool▁call▁end｜>",
        ),
    ),
    CallFormat(
        ("kimi_k2",),
        (("<|tool_calls_section_begin|>",),),
        Frame((("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),), repeats=True),
        NamedCalls(
            begin="<|tool_call_begin|>",
            header=r"\s*(?P<id>(?:functions\.)?(?P<name>[\w.\-/]+):\d+)\s*",
            header_ends=("<|tool_call_argument_begin|>",),
            end="<|tool_call_end|>",
            before_name="functions.",
            after_name=":[0-9]{1,3}",
        ),
    ),
    CallFormat(
        ("mistral",),
        (("[TOOL_CALLS]",),),
        Frame((("[TOOL_CALLS]", ""),), lists="maybe"),
        NamedCalls(
            header=_NAME,
            id_begin="[CALL_ID]",
            header_ends=("[ARGS]", "{"),
        ),
        _new_mistral_id,
    ),
    CallFormat(
        ("apertus",),
        (("<|tools_prefix|>",),),
        Frame((("<|tools_prefix|>", "<|tools_suffix|>"),), lists="always"),
        NamedCalls(begin='{"', header=_NAME, header_ends=('":',), end="}"),
    ),
    # -- Python
    CallFormat(
        ("olmo3",),
        (("<function_calls>",),),
        Frame((("<function_calls>", "</function_calls>"),), repeats=True),
        PythonCalls(),
    ),
    CallFormat(
        ("lfm2",),
        (("<|tool_call_start|>",), ("<|tool_list_start|>",)),
        Frame((("<|tool_call_start|>", "<|tool_call_end|>"),), lists="always"),
        PythonCalls(),
    ),
    CallFormat(
        ("pythonic", "llama4_pythonic"),
        (("<|python_start|>",), ("[func_name1(",)),
        Frame(
            (("<|python_start|>", "<|python_end|>"),),
            bare="[",
            bare_at_start=True,
            lists="always",
        ),
        PythonCalls(),
        is_bare=True,
    ),
    # -- JSON objects, with the name inside
    CallFormat(
        ("longcat",),
        (("<longcat_tool_call>",),),
        Frame((("<longcat_tool_call>", "</longcat_tool_call>"),), lists="maybe"),
        ObjectCalls(),
    ),
    CallFormat(
        ("jamba", "hunyuan_a13b"),
        (("<tool_calls>",),),
        Frame((("<tool_calls>", "</tool_calls>"),), lists="maybe", repeats=True),
        ObjectCalls(),
        writes_lists=True,
    ),
    CallFormat(
        ("nemotron_json",),
        (("<TOOLCALL>",),),
        Frame((("<TOOLCALL>", "</TOOLCALL>"),), lists="maybe"),
        ObjectCalls(),
        writes_lists=True,
    ),
    CallFormat(
        ("internlm",),
        (("<|action_start|>", "<|plugin|>"),),
        Frame((("<|action_start|><|plugin|>", "<|action_end|>"),)),
        ObjectCalls(key="parameters"),
    ),
    CallFormat(
        ("phi4_mini_json",),
        (("<|/tool_call|>",), ("functools[",)),
        Frame((("<|tool_call|>", "<|/tool_call|>"), ("functools", "")), lists="always"),
        ObjectCalls(),
    ),
    CallFormat(
        ("granite",),
        (("<|tool_call|>",),),
        Frame((("<|tool_call|>", ""), ("<tool_call>", "")), lists="always"),
        ObjectCalls(),
    ),
    CallFormat(
        ("gigachat3",),
        (("<|function_call|>",), ("function call<|role_sep|>",)),
        Frame((("<|function_call|>", ""), ("function call<|role_sep|>\n", ""))),
        ObjectCalls(),
    ),
    CallFormat(
        ("granite-20b-fc",),
        (("<function_call>",),),
        Frame((("<function_call>", ""),)),
        ObjectCalls(),
    ),
    CallFormat(
        ("xlam",),
        (('[{"name": "tool_call_name", "arguments":',),),
        Frame(
            (
                *(("<tool_call>", "</tool_call>"), ("[TOOL_CALLS]", "")),
                *(("```json", "```"), ("```", "```")),
            ),
            bare="[",
            bare_at_start=True,
            lists="maybe",
        ),
        ObjectCalls(),
        is_bare=True,
        writes_lists=True,
    ),
    CallFormat(
        ("hermes", "qwen3_json", "granite4", "ernie45"),
        (("<tool_call>", '"name"'), ("<tool_call>", r"\"name\"")),
        Frame((("<tool_call>", "</tool_call>"),), lists="maybe"),
        ObjectCalls(),
    ),
    CallFormat(
        ("llama3_json", "llama4_json"),
        (("<|python_tag|>",), ('{"name": function name, "parameters":',)),
        Frame((("<|python_tag|>", ""),), bare="{", skipped=" \t\n\r;"),
        ObjectCalls(key="parameters"),
        is_bare=True,
    ),
)
CALL_FORMATS: Mapping[str, CallFormat] = {
    name: call_format for call_format in _FORMATS for name in call_format.names
}


def call_format_of(chat_template: str) -> CallFormat | None:
    """The format that a chat template's own text shows; None where it shows no calls."""
    for call_format in _FORMATS:
        for marks in call_format.template_marks:
            if all(mark in chat_template for mark in marks):
                return call_format
    return None
