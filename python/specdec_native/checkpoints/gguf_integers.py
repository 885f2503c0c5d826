"""The integers of GGUF's quantised types, as a checkpoint for the core holds them.

A matrix [n, k] becomes codes, a scale and perhaps a min for every 32 inputs of a row:

    8 bits  codes int8 [n, k];                                value = scale * code (+ min)
    4 bits  codes uint8 [n, k / 2], input 2i in the low half
            of byte i;                                        value = scale * (code - 8),
                                                              with mins scale * code + min,
                                                              with a table scale * table[code]

scales and mins are float16 [n, k / 32], of some types with 8 bits [n, k / 16]; a table is int8
[16]. What a file's values change by (root mean square, of random codes):

    nothing    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, TQ1_0, TQ2_0; NVFP4 without a scale
               beside the matrix
    0.02%      Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S:
               products that are a group's scale are rounded to float16
    0.3%       Q2_K: it has mins for every 16 inputs, so it is quantised anew, to 8 bits

In Qwen2.5-Coder-0.5B-Instruct's Q4_K_M file it is 0.07% for Q4_K. Below 6e-5, where float16 gets
coarse, a scale is off by up to 3e-8.
"""

from specdec_native.checkpoints.gguf_blocks import BLOCK_TYPES
from specdec_native.checkpoints.gguf_forms import lowered
from specdec_native.checkpoints.gguf_grids import GRID_TYPES

INTEGER_TYPES = {name: lowered(kind) for name, kind in (BLOCK_TYPES | GRID_TYPES).items()}
"""By their names in GGUF; the functions' results are to be rounded to float16."""
