"""The options that several commands of `specdec-native` share."""

from typing import Annotated

import typer

from specdec_native.speculation.drafter_options import METHODS

Model = Annotated[
    str, typer.Option("--model", "-m", help="A directory, a .gguf file or a model name.")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens generated at most.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a script to read.")]
DType = Annotated[
    str, typer.Option(help="auto, bfloat16, float32 (on a CPU) or float16 (on a CPU bfloat16).")
]
Quantization = Annotated[
    str | None,
    typer.Option(
        help="Weights: auto (as stored), none (at dtype), int8, int4, or fp8 on a GPU [auto]."
    ),
]
KvCacheDType = Annotated[
    str, typer.Option("--kv-cache-dtype", help="Keys and values: auto (dtype) or int8.")
]
Device = Annotated[
    str, typer.Option(help="cpu, cuda, cuda:N, or auto: the first GPU that works, else the CPU.")
]
GpuMemory = Annotated[
    float,
    typer.Option(
        "--gpu-memory-utilization", help="Share of a GPU's memory for weights and KV cache."
    ),
]
EnforceEager = Annotated[
    bool, typer.Option("--enforce-eager", help="GPU: launch kernels one by one, without graphs.")
]
Deterministic = Annotated[
    bool,
    typer.Option(help="GPU: answers do not depend on what runs beside them, nor on speculation."),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads [default: physical cores].")]
ModelLen = Annotated[int | None, typer.Option(help="Tokens of prompt and output together.")]
Temperature = Annotated[
    float | None, typer.Option(help="0 is greedy [default: the checkpoint's, or 0].")
]
TopP = Annotated[float | None, typer.Option(help="Nucleus, in (0, 1].")]
TopK = Annotated[int | None, typer.Option(help="Most likely tokens to draw from; 0 for all.")]
MinP = Annotated[float | None, typer.Option(help="Least probability relative to the largest.")]
Seed = Annotated[int | None, typer.Option(help="Fixes what is drawn.")]
Stop = Annotated[list[str] | None, typer.Option(help="A string that ends the output. Repeatable.")]
Penalty = Annotated[float | None, typer.Option(help="As in SamplingParams.")]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        "--speculative-config",
        "-sc",
        help='JSON such as {"method": "ngram"}. Drafts are as long as pays; "draft_length_policy": '
        '"fixed" always drafts num_speculative_tokens.',
    ),
]
SpecMethod = Annotated[
    str | None, typer.Option(help=f"What drafts tokens ahead: {', '.join(METHODS)}.")
]
SpecModel = Annotated[str | None, typer.Option(help="The draft model.")]
SpecTokens = Annotated[int | None, typer.Option(help="Tokens drafted ahead at most.")]
System = Annotated[str | None, typer.Option(help="The system message of the conversation.")]
