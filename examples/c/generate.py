"""The C API from another language: Python's ctypes, without the Python package.

    python generate.py /path/to/libspecdec.so /path/to/checkpoint 1 2 3

Prints the tokens that follow the prompt, as they come.
"""

import ctypes
import json
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_size_t, c_uint64, c_void_p


class Output(ctypes.Structure):
    """The first members of specdec_output; later ones are not needed here."""

    _fields_ = [
        ("request_id", c_uint64),
        ("index", c_int32),
        ("num_token_ids", c_size_t),
        ("token_ids", POINTER(c_int32)),
    ]


CALLBACK = ctypes.CFUNCTYPE(c_int, POINTER(Output), c_void_p)


def load(path: str) -> ctypes.CDLL:
    """The library with the types of the functions used here."""
    library = ctypes.CDLL(path)
    library.specdec_engine_open.argtypes = [c_char_p, POINTER(c_void_p), POINTER(c_void_p)]
    library.specdec_generate.argtypes = [
        *(c_void_p, POINTER(c_int32), c_size_t, c_char_p),
        *(CALLBACK, c_void_p, POINTER(c_void_p)),
    ]
    library.specdec_engine_close.argtypes = [c_void_p]
    library.specdec_free.argtypes = [c_void_p]
    return library


def check(library: ctypes.CDLL, status: int, error: c_void_p) -> None:
    """Raises the message of a call that failed."""
    if status != 0:
        message = ctypes.string_at(error.value or b"").decode()
        library.specdec_free(error)
        raise RuntimeError(message)


def main(path: str, model: str, *prompt: str) -> None:
    """Generates 16 tokens."""
    library = load(path)
    engine, error = c_void_p(), c_void_p()
    options = json.dumps(
        {
            "model": model,
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 4},
        }
    )
    status = library.specdec_engine_open(options.encode(), byref(engine), byref(error))
    check(library, status, error)

    @CALLBACK
    def on_output(output: "ctypes._Pointer[Output]", _user_data: int | None) -> int:
        new = output.contents
        print(*new.token_ids[: new.num_token_ids], end=" ", flush=True)
        return 0

    tokens = (c_int32 * len(prompt))(*map(int, prompt))
    params = json.dumps({"max_tokens": 16, "temperature": 0}).encode()
    status = library.specdec_generate(
        engine, tokens, len(tokens), params, on_output, None, byref(error)
    )
    library.specdec_engine_close(engine)
    check(library, status, error)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
