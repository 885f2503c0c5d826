"""A Jinja sandbox in which every template ends: its work is charged to a budget.

Time and memory are bounded without threads, signals or child processes. Every loop iteration, call
and filter costs a step, every text it makes costs its length, and an operation whose result could
be far longer than its operands (`'a' * n`, replace, join, a format's width) is refused beforehand.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

_BUDGET = 1 << 29  # characters made, over a rendering
_STEP = 1024  # cost of a step in characters: half a million steps at most
_MOST_AT_ONCE = 1 << 26  # characters one operation may make
_MOST_BITS = 1 << 13  # bits of an integer
_ITEM = 128  # charge per element of a list, in characters, beside the element's own length

# Filters and methods whose result is never longer than their input.
_WITHOUT_GROWTH = re.compile(
    "abs|attr|count|d|default|first|float|get|int|items|keys|last|length|list|map|random|reject|"
    "rejectattr|reverse|select|selectattr|values"
).fullmatch
_MULTIPLYING = frozenset(("expandtabs", "indent", "tojson", "translate", "wordwrap"))
_FORMATTING = frozenset(("%", "format", "format_map"))

_left: contextvars.ContextVar[list[int]] = contextvars.ContextVar("left of the budget")


class TemplateTooCostlyError(Exception):
    """A template does more than any chat template has to."""


@contextlib.contextmanager
def budget() -> Iterator[None]:
    """Sets the budget for compiling and rendering a template together."""
    token = _left.set([_BUDGET])
    try:
        yield
    finally:
        _left.reset(token)


def charge(amount: int) -> None:
    """Takes `amount` from the budget. Raises TemplateTooCostlyError when it is spent."""
    left = _left.get()
    left[0] -= amount
    if left[0] < 0:
        raise TemplateTooCostlyError(
            f"it takes more than {_BUDGET // _STEP} steps or makes more than {_BUDGET} characters"
        )


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Compiles templates that are rendered within budget()."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_weighed, **options)
        self.globals.pop("lipsum")  # text as long as one likes
        for name, filter_ in list(self.filters.items()):
            self.add_filter(name, filter_)
        self.filters |= {_COUNTED: _counted, _WEIGHED: _weighed, _MEASURED: _charged}
        self.tests = {name: _bounded_test(test) for name, test in self.tests.items()}  # type: ignore[arg-type]

    def add_filter(self, name: str, filter_: Callable[..., Any]) -> None:
        """Registers a filter, with its cost."""
        hidden = 1 if hasattr(filter_, "jinja_pass_arg") else 0  # a context comes first

        @functools.wraps(filter_)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            charge(_STEP)
            given = list(args)
            if not _WITHOUT_GROWTH(name) and len(given) > hidden:
                if isinstance(given[hidden], Iterator):
                    given[hidden] = list(given[hidden])
                _charged(given[hidden])
                _refuse_growth(name, given[hidden], [*given[hidden + 1 :], *kwargs.values()])
            return _charged(filter_(*given, **kwargs))

        self.filters[name] = bounded

    def call(
        self, context: jinja2.runtime.Context, called: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Charges calls of macros, functions and methods."""
        charge(_STEP)
        method = getattr(called, "__wrapped__", called)  # str.format has been wrapped
        if isinstance(method, types.BuiltinMethodType) and (args or kwargs):
            name, value, given = method.__name__, method.__self__, [*args, *kwargs.values()]
            _charged(value)
            if name == "join":  # as in the filter: the texts, then the separator
                given[0] = list(given[0])
                _refuse_growth(name, given[0], [value])
                args = (given[0],)
            elif not _WITHOUT_GROWTH(name) or isinstance(value, list):
                _refuse_growth(name, value, given)
        if isinstance(called, jinja2.runtime.LoopContext) and args:  # a recursive loop's next level
            args = (_counted(args[0], 0), *args[1:])
        elif isinstance(getattr(called, "__self__", None), jinja2.runtime.LoopContext):
            _weighed(args)  # loop.changed() compares them
        return _charged(super().call(context, called, *args, **kwargs))

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """`+`, `*`, `**` and `%`."""
        if operator == "+" and isinstance(left, str):  # the usual case, quickly
            charge(len(left) + (len(right) if isinstance(right, str) else 0))
            return left + right
        _refuse_growth(operator, left, [right])
        return _charged(super().call_binop(context, operator, left, right))

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(jinja2.nodes.For)):
            constant = sum(len(text.data) for text in loop.find_all(jinja2.nodes.TemplateData))
            loop.iter = self._filtered(loop.iter, _COUNTED, jinja2.nodes.Const(constant))
        for concat in list(tree.find_all(jinja2.nodes.Concat)):
            concat.nodes = [self._filtered(part, _WEIGHED) for part in concat.nodes]
        for compare in list(tree.find_all(jinja2.nodes.Compare)):
            compare.expr = self._filtered(compare.expr, _WEIGHED)
            for operand in compare.ops:
                operand.expr = self._filtered(operand.expr, _WEIGHED)
        for item in list(tree.find_all(jinja2.nodes.Getitem)):
            if isinstance(item.arg, jinja2.nodes.Slice):
                item.node = self._filtered(item.node, _MEASURED)
        return tree

    def _filtered(self, node: Any, name: str, *args: jinja2.nodes.Expr) -> jinja2.nodes.Expr:
        filtered = jinja2.nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)
        filtered.set_environment(self)
        return filtered


# Suffix of internal filters; the space keeps templates from naming them.
_COUNTED = " counted"
_WEIGHED = " weighed"
_MEASURED = " measured"


def _counted(items: Iterable[Any], constant: int) -> Iterator[Any]:
    """The items of a loop. An iteration also writes `constant` characters of the template."""
    for item in items:
        charge(_STEP + constant)
        yield item


def _weighed(value: Any) -> Any:
    """Charges the whole length of a value that is written or compared."""
    if isinstance(value, str):  # the usual case, quickly
        charge(len(value))
        return value
    _refuse_growth("text", value, [])
    charge(_weight(value))
    return value


def _bounded_test(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def bounded(*args: Any) -> Any:
        charge(_STEP)
        if len(args) > 1:
            _weighed(args)
        return test(*args)

    return bounded


def _charged(result: Any) -> Any:
    """Charges one pass over an operand or result."""
    charge(len(result) if isinstance(result, (str, bytes, Sequence)) else _bits(result))
    return result


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _weight(value: Any) -> int:
    """An upper bound of len(str(value)). Counting stops once it reaches _MOST_AT_ONCE."""
    total = 0
    waiting = [value]
    while waiting and total < _MOST_AT_ONCE:
        item = waiting.pop()
        if isinstance(item, jinja2.utils.Namespace):
            item = item._Namespace__attrs
        if isinstance(item, (str, bytes)):
            total += len(item)
        elif isinstance(item, Mapping):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting += item
        total += _ITEM + _bits(item)
    return total


def _amount(value: Any) -> int:
    return abs(value) if isinstance(value, int) else _weight(value)


def _refuse_growth(name: str, value: Any, arguments: list[Any]) -> None:
    """Raises TemplateTooCostlyError for an operation whose result could be too long."""
    numbers = isinstance(value, int) and all(isinstance(given, int) for given in arguments)
    if name in ("+", "*", "**") and numbers:
        power = abs(arguments[0]) if name == "**" else 1
        bits = power * max(1, _bits(value)) + _bits(arguments[0])
        most = bits * (_MOST_AT_ONCE // _MOST_BITS)
    elif name == "replace" and isinstance(value, str) and len(arguments) > 1:
        most = len(value) + value.count(str(arguments[0])) * _weight(arguments[1])
    elif name == "join":
        between = sum(map(_weight, arguments))
        most = _weight(value) + (len(value) if isinstance(value, Sequence) else 1) * between
    elif name in _FORMATTING and isinstance(value, str):
        fields = re.findall(r"%[-+ #\d.*]*|\{[^{}]*[{}]?", value)
        widths = sum(int(digits[:12]) for digits in re.findall(r"\d+", "".join(fields)))
        # A number may be a width itself: %*d, {:{}}.
        nested = any("*" in field or "{" in field[1:] for field in fields)
        flat: list[Any] = []
        for given in arguments:
            flat += given if isinstance(given, tuple) else [given]
        most = len(value) + widths
        most += (1 + len(fields)) * sum(
            _amount(given) if nested else _weight(given) for given in flat
        )
    elif name == "sum":  # of lists: each sum is a copy
        is_long = any(isinstance(given, (list, tuple)) for given in arguments)
        most = _weight(value) * (1 + _weight(value) // _ITEM if is_long else 1)
    elif name == "+":
        most = sum(len(side) for side in (value, *arguments) if isinstance(side, Sequence))
    elif name == "*":
        most = math.prod(
            len(side) if isinstance(side, Sequence) else _amount(side)
            for side in (value, *arguments)
        )
    elif name in _MULTIPLYING:
        most = _weight(value) * (1 + sum(map(_amount, arguments)))
    else:
        most = _weight(value) + sum(map(_amount, arguments))
    if most > _MOST_AT_ONCE:
        raise TemplateTooCostlyError(f"{name!r} could make more than {_MOST_AT_ONCE} characters")
