"""Loads mutated quantised checkpoints; test_hostile_quantised.py runs it in a child process.

hostile_quantised.py SOURCE SCRATCH: SOURCE is a good checkpoint, SCRATCH is overwritten.
"""

import json
import os
import random
import resource
import struct
import sys
from pathlib import Path

import hostile_files
from specdec_native import Engine, SamplingParams

CASES = 60
KIND = "quantised"
WORDS = [
    bytes(4),
    b"\xff" * 4,
    b"\0\0\x80\x7f",
    b"\0\0\xc0\x7f",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
]


def load(directory: Path) -> None:
    with Engine(directory, num_threads=1, skip_tokenizer_init=True, max_model_len=16) as engine:
        engine.generate([[5, 6]], SamplingParams(max_tokens=2), use_tqdm=False)


def damage_companions(file: Path, chance: random.Random) -> None:
    """Overwrites a few words of what stands beside the codes: scales, zeros, groups, states."""
    content = bytearray(file.read_bytes())
    start = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:start])
    codes = (".weight", ".qweight", ".weight_packed")
    names = [name for name in header if name != "__metadata__" and not name.endswith(codes)]
    begin, end = header[chance.choice(names)]["data_offsets"]
    for _ in range(chance.choice([1, 4])):
        at = start + begin + chance.randrange(max(1, end - begin - 3)) // 4 * 4
        word = chance.choice([*WORDS, chance.randbytes(4)])[: end - begin]
        content[at : at + len(word)] = word
    file.write_bytes(content)


def mutate(seed: int) -> hostile_files.Edit:
    def edit(directory: Path) -> None:
        chance = random.Random(seed)
        if chance.random() < 0.3:
            damage_companions(directory / "model.safetensors", chance)
        else:
            hostile_files.mutate(KIND, seed)(directory)

    return edit


def main() -> None:
    source, scratch = map(Path, sys.argv[1:])
    memory = hostile_files.MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    hostile_files.LOAD[KIND] = load
    # Most of the mutations are of what only these checkpoints have.
    beside = [file.name for file in source.glob("*.json") if file.name != "generation_config.json"]
    hostile_files.FILES[KIND] = [*beside, "model.safetensors"]
    for seed in range(int(os.environ.get("SPECDEC_FUZZ_CASES", CASES))):
        name = f"seed {seed}"
        print(json.dumps([name, None]), flush=True)  # so that a crash is known by its case
        result = hostile_files.outcome(KIND, source, scratch, mutate(seed))
        print(json.dumps([name, result]), flush=True)


if __name__ == "__main__":
    main()
