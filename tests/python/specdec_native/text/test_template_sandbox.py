"""Counting what a chat template does changes nothing of what it writes.

What templates that do too much come to is in hostile_files.py.
"""

import json

import jinja2.sandbox
import pytest

from specdec_native.text.chat_template import render

PROGRAMS = [
    "{% for m in messages %}{{ loop.index0 }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}"
    "{{ loop.previtem.role if loop.previtem is defined }}{{ loop.nextitem is defined }}"
    "{{ loop.changed(m.role) }}{{ loop.cycle('a', 'b') }}{{ loop.revindex }};"
    "{% else %}none{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m.content | trim | upper }}{% endfor %}",
    "{% set ns = namespace(text='', last=none) %}{% for m in messages[::-1] %}"
    "{% if m.role == 'system' %}{% continue %}{% endif %}"
    "{% set ns.text = ns.text ~ m.content ~ 1 %}"
    "{% set ns.last = m %}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}"
    "{{ ns.text + '!' * 3 }}{{ ns.last.role }}{{ messages | length - 1 }}{{ 2 ** 10 % 7 }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}"
    "{{ messages | map(attribute='role') | unique | list | tojson }}",
    "{{ messages | tojson(indent=2) }}{{ {'b': 1, 'a': [none, true, 1.5]} | tojson }}",
    "{% macro item(x, depth=0) %}{{ '  ' * depth }}{% if x is mapping %}"
    "{% for k, v in x.items() %}{{ k }}:{{ item(v, depth + 1) }}{% endfor %}"
    "{% elif x is string %}{{ x }}{% elif x is iterable %}{{ x | length }}"
    "{% else %}{{ x }}{% endif %}{% endmacro %}{{ item(messages[0]) }}"
    "{{ item({'a': {'b': [1]}}) }}",
    "{% for n in [1, [2, [3]]] recursive %}{{ loop.depth }}{% if n is iterable %}{{ loop(n) }}"
    "{% else %}{{ n }}{% endif %}{% endfor %}",
    "{{ messages[0]['content'].split('l')[-1].lstrip('o') }}{{ 'a,b'.replace(',', ' - ') }}"
    "{{ '-'.join(['x', 'y']) }}{{ '%s=%05.1f' % ('n', 2) }}{{ '{:>6}|{x}'.format('r', x=1) }}"
    "{{ 'abc'[1:] }}{{ 'q'.center(5) }}{{ 'x\ny' | indent(2) }}{{ 1700000000 ~ '' }}"
    "{{ '%d' % 1700000000 }}{{ 'b' in 'abc' }}{{ 3 in [1, 2] }}{{ (1, 2) < (1, 3) }}",
    "{% set text %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}"
    "{{ text | length }}"
    "{% filter upper %}{{ text }}{% endfilter %}"
    "{% macro box() %}[{{ caller() }}]{% endmacro %}{% call box() %}in{% endcall %}",
    "{{ missing | default('none') }}{{ messages | first | attr('role') }}"
    "{{ [3, 1, 2] | sort | last }}"
    "{{ range(5) | sum }}{{ [1, 2] + [3] }}{{ messages | groupby('role') | length }}"
    "{% for k, v in messages[0] | dictsort %}{{ k }}{% endfor %}{{ dict(a=1) | items | list }}",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_counting_what_a_template_does_changes_nothing(program: str) -> None:
    messages = [
        {"role": "system", "content": "hello world"},
        {"role": "user", "content": " h\u00e9llo "},
        {"role": "assistant", "content": "x" * 50},
        {"role": "user", "content": "again"},
    ]
    plain = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    plain.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    assert render(program, messages) == plain.from_string(program).render(messages=messages)
