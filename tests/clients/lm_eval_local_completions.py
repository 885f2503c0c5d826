"""Runs lm-eval through a server and in transformers, and compares what both find.

    python tests/clients/lm_eval_local_completions.py http://127.0.0.1:8000 MODEL_DIRECTORY

needs `pip install "lm-eval[api,hf]"` and a server of that checkpoint in float32. Loglikelihoods of
a multiple-choice task must agree within 1e-3 a request, with the same verdicts about greediness,
and so must those of whole texts; what is generated greedily must be the same text.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import lm_eval
from lm_eval.tasks import TaskManager

MOST_DIFFERENCE = 1e-3

DOCUMENTS = [
    {"question": f"{start} is", "choices": [" the answer", " not", " 42"], "answer": i % 3}
    for i, start in enumerate(["This", "A cat", "The sum of 40 and 2", "Nothing", "To be", "It"])
]

COMMON = """
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
"""

TASKS = {
    "choices": """
task: choices
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}]
""",
    "texts": """
task: texts
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}}{{{{choices[0]}}}}"
metric_list: [{{metric: word_perplexity}}]
""",
    "answers": """
task: answers
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[0]}}}}"
generation_kwargs: {{until: ["never said"], max_gen_toks: 12, do_sample: false, temperature: 0}}
metric_list: [{{metric: exact_match}}]
""",
}


def write_tasks(folder: Path) -> TaskManager:
    """The tasks over DOCUMENTS, as files in `folder`."""
    data = folder / "documents.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text((COMMON + text).format(data=data))
    return TaskManager(include_path=str(folder), include_defaults=False)


def run(model: str, arguments: dict[str, Any], tasks: TaskManager) -> dict[str, list[Any]]:
    """What the model answered to every request of each task."""
    results = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=list(TASKS),
        task_manager=tasks,
        log_samples=True,
        bootstrap_iters=0,
        random_seed=1234,
    )
    answers = {}
    for name, samples in results["samples"].items():
        ordered = sorted(samples, key=lambda sample: sample["doc_id"])
        answers[name] = [answer for sample in ordered for (answer,) in sample["resps"]]
    return answers


def differences(served: dict[str, list[Any]], local: dict[str, list[Any]]) -> list[str]:
    """What the server and transformers do not agree on."""
    found = []
    for name, answers in local.items():
        assert len(answers) == len(served[name]) > 0
        for i, (here, there) in enumerate(zip(served[name], answers, strict=True)):
            if name == "choices":
                agree = abs(here[0] - there[0]) <= MOST_DIFFERENCE and here[1] == there[1]
            elif name == "texts":
                agree = abs(number(here) - number(there)) <= MOST_DIFFERENCE
            else:
                agree = here == there
            if not agree:
                found.append(f"{name}[{i}]: the server says {here}, transformers {there}")
    return found


def number(answer: Any) -> float:
    """A rolling loglikelihood, alone or in a tuple."""
    return float(answer[0] if isinstance(answer, (list, tuple)) else answer)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="where the server listens")
    parser.add_argument("model", help="directory of the checkpoint")
    parser.add_argument("--model-name", help="its name on the server; otherwise the directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tasks = write_tasks(Path(folder))
        served = run(
            "local-completions",
            {
                "model": options.model_name or options.model,
                "base_url": f"{options.url}/v1/completions",
                "tokenizer": options.model,
                "num_concurrent": 2,
                "max_length": 96,
            },
            tasks,
        )
        local = run(
            "hf",
            {"pretrained": options.model, "dtype": "float32", "device": "cpu", "max_length": 96},
            tasks,
        )
    found = differences(served, local)
    print("\n".join(found) or f"{sum(map(len, local.values()))} answers agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
