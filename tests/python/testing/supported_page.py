"""Writes the part of docs/supported.md that says which classes of transformers load.

python tests/python/testing/supported_page.py            everything: minutes
python tests/python/testing/supported_page.py TYPE...    rows of these model types, and the refusals
"""

import argparse
import functools
import json
import multiprocessing
import re
import sys
import tempfile
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from every_family import (
    MANY_LAYERS,
    Family,
    Report,
    families,
    kinds_of_layers,
    known_families,
    refusal_of_class,
    sweep,
)
from specdec_native import _core

PAGE = Path(__file__).parents[3] / "docs" / "supported.md"
BEGIN = "<!-- written by tests/python/testing/supported_page.py -->\n"
END = "<!-- end of what is written -->\n"

LOADED = """\
| classes that load | keys that are refused, off their defaults or at the values in brackets |
|---|---|
"""
REFUSED = """\
| not implemented, and refused by the name of the class | |
|---|---|
"""
SUFFIX = "ForCausalLM"
UNCHECKED = "not checked yet"
WRAPPER = ""  # is not refused
MULTIMODAL = "an image, sound or video part, or another model beside it"
ENCODER = "encoders, and decoders of models with an encoder"
RECURRENT = "layers with a state in place of attention (state-space, linear attention, convolution)"
LATENT = "a latent vector for each token in place of keys and values (MLA)"
POSITIONS = "other positions than rotary ones (absolute, relative, ALiBi)"
EXPERTS = "other experts, or other choices among them"
OTHER = "something else in the network"
DRAFT_HEAD = "drafts for another model, by the method `mtp`, and is none by itself"
# Where the rules below cannot see it.
REASONS = {
    "bert-generation": ENCODER,
    "blt": "patches of bytes in place of tokens",
    "cohere_compass_text": ENCODER,
    "hrm_text": "layers that a token passes several times",
    "moshi": MULTIMODAL,
    "recurrent_gemma": RECURRENT,
    "rwkv": RECURRENT,
    "trocr": ENCODER,
    "xlstm": RECURRENT,
    "zaya": RECURRENT,
}
STATES = re.compile(r"^(mamba_|conv_|ssm_|linear_num_|lru_|state_size$|rwkv|cca_)")
OF_ENCODERS = (
    modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
)


def reason(family: Family) -> str:
    """Why the engine does not have a class, from what its config is called and has."""
    keys = {*family.defaults, *family.aliases}
    parts = {*family.config_class.sub_configs_defaults}
    kinds = kinds_of_layers(family, {family.aliases.get("num_hidden_layers", ""): MANY_LAYERS})
    has_encoder = any(family.model_type in names for names in OF_ENCODERS)
    has_states = any(map(STATES.search, keys)) or kinds & {"linear_attention", "conv", "hybrid"}
    has_ropes = any("rope" in key or "rotary" in key for key in keys)
    rules = [
        (family.model_type in REASONS, REASONS.get(family.model_type, "")),
        (parts & {"vision_config", "audio_config", "text_config"}, MULTIMODAL),
        (has_encoder or "is_encoder_decoder" in keys, ENCODER),
        (has_states, RECURRENT),
        ("kv_lora_rank" in keys, LATENT),
        (not has_ropes, POSITIONS),
        (any("expert" in key for key in keys), EXPERTS),
    ]
    return next((text for holds, text in rules if holds), OTHER)


@functools.cache
def refusals() -> dict[str, list[str]]:
    """The classes that are refused, by the reason."""
    known = {family.architecture for family in known_families().values()}
    reasons: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        for family in families().values():
            if family.architecture in known:
                continue
            text = refusal_of_class(family, Path(directory))
            why = reason(family) if "is not known" in text else WRAPPER
            if "is a draft head" in text:
                why = DRAFT_HEAD
            # Where a class is a whole and its text part, the text part says more.
            if reasons.get(family.architecture, MULTIMODAL) == MULTIMODAL:
                reasons[family.architecture] = why
    return {
        why: sorted((name for name in reasons if reasons[name] == why), key=str.lower)
        for why in sorted(set(reasons.values()))
    }


def name_of(family: Family) -> str:
    """The class, with the model type where it has several."""
    known = known_families().values()
    several = [other for other in known if other.architecture == family.architecture]
    name = family.architecture.removesuffix(SUFFIX)
    return name if len(several) == 1 else f"{name} ({family.model_type})"


def details_of(report: Report) -> str:
    """What of a class is refused: keys, and their values where others load."""
    if report.problems and not report.loaded:
        return UNCHECKED
    details = []
    for key in sorted(report.refused):
        loads = {label(key, value) for value in report.loaded.get(key, [])}
        some = sorted({label(key, value) for value in report.refused[key]} - loads)
        if some:
            details.append(f"`{key}`" + (f" ({', '.join(some)})" if loads else ""))
    return "; ".join(details) or "nothing"


def label(key: str, value: Any) -> str:
    """What a value is about, in a word or two."""
    if key == "rope_parameters":
        inner = [part for part in value.values() if isinstance(part, dict)] or [value]
        types = {part["rope_type"] for part in inner} - {"default"}
        return ", ".join(types) or next(
            (name for name in ("partial_rotary_factor",) if any(name in part for part in inner)),
            "default",
        )
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return " with ".join(sorted(set(value)))
    return value if isinstance(value, str) else json.dumps(value)


def rows_on(page: str) -> dict[str, str]:
    """What is refused of the classes that load, by their names."""
    table = page.partition(BEGIN)[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    return {name: row[1] for row in rows if len(row) == 2 for name in row[0].split(", ")}


def table_of(groups: Mapping[str, list[str]], *, names_first: bool) -> str:
    cells = [(", ".join(sorted(names, key=str.lower)), text) for text, names in groups.items()]
    cells = [pair if names_first else pair[::-1] for pair in cells]
    return "".join(f"| {first} | {second} |\n" for first, second in sorted(cells))


def write_page(page: str, rows: Mapping[str, str]) -> str:
    """The page with these rows; a row that is not given stays, if the class loads."""
    rows = {**rows_on(page), **rows}
    loaded: dict[str, list[str]] = {}
    for family in known_families().values():
        name = name_of(family)
        loaded.setdefault(rows.get(name, UNCHECKED), []).append(name)
    by_reason = refusals()
    wrappers = ", ".join(f"`{name}`" for name in by_reason.get(WRAPPER, []))
    refused = {
        why: [name.removesuffix(SUFFIX) for name in names]
        for why, names in by_reason.items()
        if why != WRAPPER
    }
    known = {family.architecture for family in known_families().values()}
    outside = ", ".join(f"`{name}`" for name in sorted({*_core.known_architectures()} - known))
    num_all = len({family.architecture for family in families().values()})
    release = ".".join(transformers.__version__.split(".")[:2])
    head = (
        f"Of the {num_all} classes of causal language models in transformers {release}, "
        f"{len(known)} load, and the text part of {wrappers}"
        + (f"; outside of transformers {outside}" if outside else "")
        + f". `{SUFFIX}` is left out of the tables.\n\n"
    )
    section = (
        f"{head}{LOADED}{table_of(loaded, names_first=True)}\n"
        f"{REFUSED}{table_of(refused, names_first=False)}"
    )
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + section + END + rest.partition(END)[2]


def sweep_one(model_type: str) -> tuple[str, str, list[str]]:
    """What is printed of a model type, its row, and its problems."""
    logging: Any = transformers.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # for such matrices, more are slower
    with tempfile.TemporaryDirectory() as directory:
        report = sweep(families()[model_type], Path(directory) / "model")
    counts = f"{report.num_compared} compared, {len(report.problems)} problems"
    return f"{model_type}: {counts}", details_of(report), report.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_types", nargs="*", metavar="TYPE")
    chosen = parser.parse_args().model_types or list(known_families())
    rows = {}
    all_problems = []
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for name, found in zip(chosen, pool.map(sweep_one, chosen), strict=True):
            text, rows[name_of(families()[name])], problems = found
            print(text, *problems, sep="\n  ", flush=True)
            all_problems += problems
    PAGE.write_text(write_page(PAGE.read_text(), rows))
    return 1 if all_problems else 0


if __name__ == "__main__":
    sys.exit(main())
