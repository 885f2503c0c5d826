"""The integers of GGUF's quantised types, as a checkpoint for the core holds them.

A matrix [n, k] becomes codes, a scale and perhaps a min for every 32 inputs of a row:

    8 bits  codes int8 [n, k];                                value = scale * code (+ min)
    4 bits  codes uint8 [n, k / 2], input 2i in the low half
            of byte i;                                        value = scale * (code - 8),
                                                              with mins scale * code + min

scales and mins are float16 [n, k / 32].
"""

from specdec_native.checkpoints.gguf_blocks import BLOCK_TYPES
from specdec_native.checkpoints.gguf_forms import lowered
from specdec_native.checkpoints.gguf_grids import GRID_TYPES

INTEGER_TYPES = {name: lowered(kind) for name, kind in (BLOCK_TYPES | GRID_TYPES).items()}
"""By their names in GGUF; the functions' results are to be rounded to float16."""
