"""Loads hostile files and reports the outcome; test_hostile_files.py runs it in a child process.

hostile_files.py corpus|fuzz KIND SOURCE SCRATCH: SOURCE holds good files, SCRATCH is overwritten.
"""

import base64
import json
import os
import random
import resource
import shutil
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints.gguf_convert import convert_gguf
from specdec_native.checkpoints.hub import resolve_model
from specdec_native.errors import Error, InternalError
from specdec_native.text.chat_template import render
from specdec_native.text.tokenizer import Tokenizer

CASES = {"engine": 250, "tokenizer": 400, "gguf": 150, "bin": 120}
MOST_MEMORY = 12 << 30  # of address space; libraries take a part
LONGEST_S = 30.0  # a good file takes milliseconds
DEPTH = 100_000
MESSAGES = [{"role": "user", "content": "hi"}]
PIECES = [
    "2147483647", "-1", "0", "1e300", "18446744073709551616", "4294967295", "0.5", "null", "true",
    '""', '"x"', '"\\ud800"', '"\\u0000"', "[]", "{}", "[[1]]", '{"a":1}', "NaN", "[", "}", ",",
    '"', ":", "[" * 2000, "{{ 1/0 }}", "x" * 3000,
]  # fmt: skip

Edit = Callable[[Path], object]


# ---- what is done with the files of a kind


def load_engine(directory: Path) -> None:
    with Engine(directory, num_threads=1) as engine:
        engine.get_default_sampling_params()
        engine.generate("ab", SamplingParams(max_tokens=2), use_tqdm=False)


def load_tokenizer(directory: Path) -> None:
    tokenizer = Tokenizer.from_directory(directory)
    ids = tokenizer.encode("hello world, \u00fc")
    tokenizer.decode(ids)
    tokenizer.decode(list(range(10)), skip_special_tokens=True)
    if tokenizer.chat_template is not None:
        tokenizer.render_chat(MESSAGES)


def load_gguf(directory: Path) -> None:
    target = directory / "converted"
    target.mkdir()
    convert_gguf(directory / "model.gguf", target, keep_integers=True)


def load_bin(directory: Path) -> None:
    os.environ["SPECDEC_HOME"] = str(directory / "home")
    Engine(resolve_model(directory), num_threads=1, skip_tokenizer_init=True).close()


def load_template(directory: Path) -> None:
    render((directory / "template").read_text(), MESSAGES)


LOAD = {
    "engine": load_engine,
    "tokenizer": load_tokenizer,
    "gguf": load_gguf,
    "bin": load_bin,
    "template": load_template,
}


# ---- cases that once crashed, hung or raised something else, by kind and name


def set_fields(name: str, **fields: Any) -> Edit:
    def edit(directory: Path) -> None:
        file = directory / name
        content = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(content | fields))

    return edit


def nest(name: str, key: str) -> Edit:
    def edit(directory: Path) -> None:
        text = json.dumps({key: None}).replace("null", "[" * DEPTH + "]" * DEPTH)
        (directory / name).write_text(text)

    return edit


def write_index(shard: str) -> Edit:
    def edit(directory: Path) -> None:
        (directory / "model.safetensors").unlink()
        index = {"weight_map": {"a": shard}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))

    return edit


def nest_shape(directory: Path) -> None:
    nested = "[" * DEPTH + "]" * DEPTH
    header = f'{{"a":{{"dtype":"F32","shape":[{nested}],"data_offsets":[0,0]}}}}'.encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def set_charsmap(content: bytes) -> Edit:
    charsmap = base64.b64encode(content).decode()
    return set_fields(
        "tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap}
    )


def overflow_array(directory: Path) -> None:
    """One byte of the length of an array is wrong."""
    file = directory / "model.gguf"
    content = bytearray(file.read_bytes())
    key = b"tokenizer.ggml.token_type"
    content[content.find(key) + len(key) + 8 + 5] = 1
    file.write_bytes(content)


def save_extra(make: Callable[[Any], Any]) -> Edit:
    def edit(directory: Path) -> None:
        import torch

        file = directory / "pytorch_model.bin"
        torch.save(torch.load(file) | {"extra": make(torch)}, file)

    return edit


def template(text: str) -> Edit:
    return lambda directory: (directory / "template").write_text(text)


TOO_COSTLY = "^ValueError: the chat template was stopped"
FAILED = "^ValueError: the chat template failed on this conversation"
LOOP = "{% for i in range(99999) %}"
DOUBLE = "{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}"

# kind: name: (what is done to good files, a pattern of the error, "" where none is right)
CORPUS: dict[str, dict[str, tuple[Edit, str]]] = {
    "engine": {
        "shape nested": (nest_shape, "model.safetensors: the header is nested deeper"),
        "dtype nested": (nest("config.json", "dtype"), "config.json: the file is nested deeper"),
        "layers": (set_fields("config.json", num_hidden_layers=2**31 - 1), "num_hidden_layers"),
        "more layers": (set_fields("config.json", num_hidden_layers=65536), "config.json is 65536"),
        "positions": (set_fields("config.json", max_position_embeddings=2**31 - 1), ""),
        "rope factor": (
            set_fields(
                "config.json",
                rope_parameters={"rope_type": "linear", "factor": 1e300, "rope_theta": 1e4},
            ),
            "",
        ),
        "inner size": (set_fields("config.json", intermediate_size=2**31 - 1), "expected shape"),
        "long shard name": (write_index("x" * 300), "x: the index names this file"),
        "shard name with NUL": (write_index("model\0"), "no file below the folder of the index"),
        "eos nested": (nest("generation_config.json", "eos_token_id"), "nested deeper"),
        "eos outside": (set_fields("generation_config.json", eos_token_id=[2, 5000]), ""),
        "eos negative": (set_fields("generation_config.json", eos_token_id=-1), "eos_token_id"),
        "temperature": (
            set_fields("generation_config.json", temperature=[1]),
            "generation_config.json: temperature",
        ),
        "top_k": (set_fields("generation_config.json", top_k="x"), "config.json: top_k"),
    },
    "tokenizer": {
        "config nested": (nest("tokenizer_config.json", "a"), "tokenizer_config.json: not valid"),
        "tokens a list": (
            set_fields("tokenizer_config.json", added_tokens_decoder=[1]),
            "tokenizer_config.json: added_tokens_decoder: expected",
        ),
        "token without content": (
            set_fields("tokenizer_config.json", added_tokens_decoder={"5": {}}),
            "tokenizer_config.json: added_tokens_decoder: expected",
        ),
        "template without name": (
            set_fields("tokenizer_config.json", chat_template=[{"x": 1}]),
            "tokenizer_config.json: chat_template: expected",
        ),
        "long charsmap": (
            set_charsmap(struct.pack("<I", 2**32 - 16) + bytes(20)),
            "tokenizer.json: precompiled_charsmap: 24 bytes cannot hold",
        ),
        "bad charsmap": (set_charsmap(bytes(8)), r"tokenizer.json: cannot encode.*Panic"),
        "template processing": (
            set_fields(
                "tokenizer.json",
                post_processor={
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
                    "pair": [],
                    "special_tokens": {},
                },
            ),
            r"tokenizer.json: cannot encode.*Panic",
        ),
        "not UTF-8": (
            lambda directory: (directory / "chat_template.jinja").write_bytes(b"\xff"),
            "chat_template.jinja: is not UTF-8",
        ),
    },
    "gguf": {
        "array length": (overflow_array, "model.gguf.*metadata 'tokenizer.ggml.token_type'"),
    },
    "bin": {
        "expanded": (
            save_extra(lambda torch: torch.ones(1).expand(4 * 10**9)),
            "pytorch_model.bin: tensor extra has 16000000000 bytes, but only 4 are stored",
        ),
        "expanded far": (save_extra(lambda torch: torch.ones(1).expand(10**12)), "only 4 are"),
        "expanded a little": (save_extra(lambda torch: torch.ones(1).expand(64)), ""),
        "sparse": (save_extra(lambda torch: torch.eye(4).to_sparse()), "extra has no plain values"),
        "meta": (
            save_extra(lambda torch: torch.empty(4, device="meta")),
            "extra has no plain values",
        ),
        "complex": (save_extra(lambda torch: torch.ones(2) * 1j), "extra has dtype complex64"),
    },
    "template": {
        "division": (template("{{ 1/0 }}"), FAILED),
        "index": (template("{{ '{5}'.format(1) }}"), FAILED),
        "recursion": (template("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"), FAILED),
        "range": (template("{{ range(10**9)|length }}"), FAILED),
        "parentheses": (template("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"), FAILED),
        "loops": (template(LOOP + LOOP + "{% endfor %}{% endfor %}"), TOO_COSTLY),
        "recursive loop": (
            template(LOOP.replace(" %}", " recursive %}") + "{{ loop(range(99999)) }}{% endfor %}"),
            FAILED,
        ),
        "calls": (
            template(
                "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
                "{{ f(60) }}"
            ),
            TOO_COSTLY,
        ),
        "text of a loop": (template(LOOP + "x" * 50_000 + "{% endfor %}"), TOO_COSTLY),
        "repeated": (template("{{ 'a' * 10**10 }}"), TOO_COSTLY),
        "repeated list": (template("{{ ([1] * 10**10)|length }}"), TOO_COSTLY),
        "doubled": (
            template(
                "{% set ns = namespace(s='a') %}"
                + LOOP
                + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
            ),
            TOO_COSTLY,
        ),
        "shared lists written": (template(DOUBLE + "{% endfor %}{{ ns.a }}"), TOO_COSTLY),
        "shared lists as JSON": (template(DOUBLE + "{% endfor %}{{ ns.a|tojson }}"), TOO_COSTLY),
        "shared lists compared": (
            template(DOUBLE + "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}"),
            TOO_COSTLY,
        ),
        "power": (template("{{ 10 ** 10 ** 8 }}"), ""),  # of 10 ** 10
        "large power": (template("{{ 10 ** (10 ** 8) }}"), TOO_COSTLY),
        "width": (template("{{ 'a'.center(10**10) }}"), TOO_COSTLY),
        "filter's width": (template("{{ 'a'|center(10**10) }}"), TOO_COSTLY),
        "format": (template("{{ '%10000000000d' % 1 }}"), TOO_COSTLY),
        "format of width": (template("{{ '%*d' % (10**10, 1) }}"), TOO_COSTLY),
        "nested format": (template("{{ '{:{}}'.format(1, 10**10) }}"), TOO_COSTLY),
        "replace": (
            template("{% set s = 'a' * 10**8 %}{{ s.replace('a', s)|length }}"),
            TOO_COSTLY,
        ),
        "join": (
            template("{{ (range(99999)|map('string')|join('a' * 10**7))|length }}"),
            TOO_COSTLY,
        ),
        "slices": (
            template("{% set s = 'a' * 10**8 %}" + LOOP + "{% set t = s[1:] %}{% endfor %}"),
            TOO_COSTLY,
        ),
        "searches": (
            template("{% set s = 'a' * 10**8 %}" + LOOP + "{% set t = 'b' in s %}{% endfor %}"),
            TOO_COSTLY,
        ),
    },
}


# ---- mutations


def mutated(content: bytes, chance: random.Random, *, text: bool) -> bytes:
    """A few edits; those of JSON keep some of it well-formed."""
    result = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 4])):
        if not result:
            break
        # Both ends hold more of the structure of large files than their middle does.
        far = min(len(result), 6000)
        at = chance.randrange(far)
        if chance.random() < 0.5:
            at = len(result) - 1 - at
        kind = chance.randrange(5)
        if text and kind < 3:
            piece = chance.choice(PIECES).encode("utf-8", "replace")
            colon = result.find(b":", at)
            end = min(
                (i for i in (result.find(c, colon) for c in (b",", b"}")) if i > 0), default=0
            )
            if kind < 2 and 0 < colon < end:
                result[colon + 1 : end] = piece
            else:
                result[at:at] = piece
        elif kind == 3:
            del result[at : at + chance.randrange(1, 9)]
        else:
            result[at] = chance.randrange(256)
    return bytes(result)


FILES = {
    "engine": ["config.json", "generation_config.json", "model.safetensors"],
    "tokenizer": ["tokenizer.json", "tokenizer_config.json"],
    "gguf": ["model.gguf"],
    "bin": ["pytorch_model.bin"],
}


def mutate(kind: str, seed: int) -> Edit:
    def edit(directory: Path) -> None:
        chance = random.Random(seed)
        file = directory / chance.choice(FILES[kind])
        content = file.read_bytes()
        text = file.suffix == ".json"
        if file.suffix == ".safetensors":  # the data is as good as any
            end = 8 + struct.unpack("<Q", content[:8])[0]
            header = mutated(content[8:end], chance, text=True)
            file.write_bytes(struct.pack("<Q", len(header)) + header + content[end:])
        else:
            file.write_bytes(mutated(content, chance, text=text))

    return edit


# ---- the child process


def outcome(kind: str, source: Path, directory: Path, edit: Edit) -> str:
    """What loading the edited files raises: "Type: message", or nothing."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(source, directory)
    edit(directory)
    begin = time.process_time()  # which other processes do not lengthen
    result = ""
    try:
        LOAD[kind](directory)
    except BaseException as error:  # whatever it is, the parent wants to know
        typed = isinstance(error, Error) and not isinstance(error, InternalError)
        result = f"{type(error).__name__}: {error!s:.500}"
        # Errors of a chat template are plain ValueErrors.
        if not typed and not (type(error) is ValueError and "chat template" in result):
            result = f"UNTYPED {result}"
    if time.process_time() - begin > LONGEST_S:
        result = f"UNTYPED too slow, {result}"
    return result


def main() -> None:
    mode, kind, source, scratch = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    cases: dict[str, Edit]
    if mode == "corpus":
        cases = {name: edit for name, (edit, _) in CORPUS[kind].items()}
    else:
        num_cases = int(os.environ.get("SPECDEC_FUZZ_CASES", CASES[kind]))
        cases = {f"seed {seed}": mutate(kind, seed) for seed in range(num_cases)}
    for name, edit in cases.items():
        print(json.dumps([name, None]), flush=True)  # so that a crash is known by its case
        print(json.dumps([name, outcome(kind, Path(source), Path(scratch), edit)]), flush=True)


if __name__ == "__main__":
    main()
