"""An ordinary offline script, as one would write it for vLLM.

python examples/python/offline.py [MODEL]
"""

import sys

from specdec_native import LLM, SamplingParams

prompts = ["The capital of France is", "def fibonacci(n):", "Once upon a time"]
llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "SmolLM2-135M-Instruct")
for output in llm.generate(prompts, SamplingParams(temperature=0.8, top_p=0.95, seed=1)):
    print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
