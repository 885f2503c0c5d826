"""The same answers sooner: n-gram and suffix drafts, first in turn, then in one tree.

python examples/python/speculative.py [MODEL]
"""

import sys
import time

from specdec_native import LLM, SamplingParams

MODEL = sys.argv[1] if len(sys.argv) > 1 else "SmolLM2-135M-Instruct"
DRAFTERS = [
    {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4},
    {"method": "suffix"},
]
CONFIGS = {
    "plain": None,
    "in turn": {"drafters": DRAFTERS, "num_speculative_tokens": 6},
    "one tree": {
        "drafters": DRAFTERS,
        "merge_drafters": True,
        "num_speculative_tokens": 6,
        "tree_width": 2,
    },
}
MESSAGES = [{"role": "user", "content": "Count from one to thirty in words, one a line."}]

texts = set()
for name, config in CONFIGS.items():
    llm = LLM(MODEL, max_model_len=1024, speculative_config=config)
    start = time.perf_counter()
    output = llm.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=128), use_tqdm=False)[0]
    seconds = time.perf_counter() - start
    metrics = output.metrics.speculative_decoding if output.metrics else None
    length = f", {metrics.mean_acceptance_length:.2f} tokens a step" if metrics else ""
    print(f"{name}: {len(output.outputs[0].token_ids) / seconds:.0f} tokens/s{length}")
    texts.add(output.outputs[0].text)
print("answers identical:", len(texts) == 1)
