"""Speculative decoding as this engine does it, in one file: draft, verify, accept.

python examples/python/speculative_step.py

A draft model proposes a tree of tokens. The target runs the whole tree in one pass and samples a
token at every node, as plain decoding would there. Drafts that equal the sampled tokens are kept.
Transformers runs two tiny random models; the rest is written out. docs/exact.md says why the answer
is that of plain decoding, token for token, and the last lines compare it with the engine's own.
"""

import copy
import itertools
import tempfile
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from specdec_native import Engine, SamplingParams

# A node of a draft tree is the text up to it. So its token is the last one, the token after it has
# position len(node), and its ancestors are its prefixes.
Node = tuple[int, ...]
Array = np.ndarray[Any, np.dtype[np.float64]]

PROMPT: Node = (11, 42, 7, 99, 3, 64, 28)
MAX_TOKENS = 32
END = len(PROMPT) + MAX_TOKENS
BRANCHES = (2, 2, 1)  # children of the root, of its children and of theirs: 2 + 4 + 4 drafts
LOW = 0xFFFFFFFF  # the lower 32 of 64 bits


def prefixes(node: Node) -> list[Node]:
    """The text up to each token of a text."""
    return [node[:length] for length in range(1, len(node) + 1)]


def philox(counter: tuple[Any, ...], key: tuple[int, int]) -> tuple[Any, ...]:
    """Philox4x32-10: four random words that depend on counter and key alone, not on history."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & LOW, (a >> 32) ^ c3 ^ k1, a & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return c0, c1, c2, c3


def gumbel_noise(seed: int, position: int, vocab_size: int) -> Array:
    """The noise of a position, a number per token: the same for target and draft, in any pass."""
    quads = np.arange((vocab_size + 3) // 4, dtype=np.uint64)  # four tokens share a counter
    words = philox((position & LOW, position >> 32, quads, 0), (seed & LOW, seed >> 32))
    uniform = (np.stack(words, axis=1).ravel()[:vocab_size] + 0.5) / 2**32
    return np.asarray(-np.log(-np.log1p(-uniform)))


class Sampler(NamedTuple):
    """How a request samples."""

    temperature: float
    seed: int

    def draw(self, logits: Array, position: int, count: int = 1) -> list[int]:
        """The best tokens for a position, best first; the first of them is the sampled token.

        With Gumbel noise the token of the largest logit / T + noise is a draw from
        softmax(logits / T). All randomness is in the noise: equal logits give equal tokens, and
        similar logits, such as those of a good draft model, mostly do.
        """
        if self.temperature > 0:
            logits = logits / self.temperature + gumbel_noise(self.seed, position, len(logits))
        return [int(token) for token in np.argsort(-logits, kind="stable")[:count]]


def sees(node: Node, other: Node) -> bool:
    """The ancestor mask: a row sees itself and its ancestors. Its siblings are other futures."""
    return node[: len(other)] == other


class Model:
    """A network and its KV cache, which knows the node of every row."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.cache: Any = transformers.DynamicCache()
        self.cached: list[Node] = []

    @torch.inference_mode()
    def run(self, nodes: list[Node]) -> dict[Node, Array]:
        """One pass, a row per node: adds the KV of the rows and gives the logits after each node.

        A row's position is its depth in the text, so siblings share one. It sees nothing but its
        own path, so its logits are those of plain decoding after that path.
        """
        self.cached += nodes
        seen = torch.tensor([[sees(node, other) for other in self.cached] for node in nodes])
        output = self.network(
            input_ids=torch.tensor([[node[-1] for node in nodes]]),
            position_ids=torch.tensor([[len(node) - 1 for node in nodes]]),
            attention_mask=torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[None, None],
            past_key_values=self.cache,
        )
        return dict(zip(nodes, output.logits[0].double().numpy(), strict=True))

    def keep(self, text: Node) -> None:
        """Keeps the KV of a text, its accepted drafts included, and drops that of other drafts."""
        rows = [row for row, node in enumerate(self.cached) if sees(text, node)]
        self.cached = [self.cached[row] for row in rows]
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[:, :, rows], layer.values[:, :, rows]


def draft(model: Model, text: Node, sampler: Sampler, branches: tuple[int, ...]) -> list[Node]:
    """Grows a tree whose root is the last token, one level per pass of the draft model.

    A node's children are the draft model's best tokens under the noise that the target will use at
    the same position. The more alike the two models are, the more often a child is the target's
    token.
    """
    tree = level = [text]
    rows = [node for node in prefixes(text) if node not in model.cached]  # not seen before
    for num_children in branches:
        logits = model.run(rows)
        level = rows = [
            (*node, token)
            for node in level
            for token in sampler.draw(logits[node], len(node), num_children)
        ]
        tree = tree + level
    return tree


def verify(target: Model, tree: list[Node], sampler: Sampler) -> dict[Node, int]:
    """One pass of the target: the token that plain decoding would sample after each node."""
    logits = target.run(tree)
    return {node: sampler.draw(logits[node], len(node))[0] for node in tree}


def accept(text: Node, sampled: dict[Node, int]) -> Node:
    """Goes from the root to the child that holds the sampled token, until there is none.

    The token sampled at the root is the one plain decoding emits. A child that holds it was run
    after the right text, so the token sampled there is right, too, and so on.
    """
    node = text
    while (*node, sampled[node]) in sampled:
        node = (*node, sampled[node])
    return node


def decode_speculatively(
    target: Model, draft_model: Model, sampler: Sampler
) -> tuple[Node, list[tuple[list[Node], Node]]]:
    """Prompt and answer, and each step's tree with the last node that was accepted."""
    logits = target.run(prefixes(PROMPT))
    text = (*PROMPT, *sampler.draw(logits[PROMPT], len(PROMPT)))
    steps = []
    while len(text) < END:
        max_depth = END - len(text) - 1  # a token follows the accepted drafts
        tree = draft(draft_model, text, sampler, BRANCHES[:max_depth])
        sampled = verify(target, tree, sampler)
        accepted = accept(text, sampled)
        target.keep(accepted)
        draft_model.keep(accepted)
        text = (*accepted, sampled[accepted])  # one token that needed no draft, the next root
        steps.append((tree, accepted))
    return text, steps


@torch.inference_mode()
def decode_plainly(network: Any, sampler: Sampler) -> Node:
    """A pass over the whole text for every token: no draft, no mask and no cache to get wrong."""
    text = PROMPT
    while len(text) < END:
        logits = network(torch.tensor([text]), use_cache=False).logits[0, -1]
        text = (*text, *sampler.draw(logits.double().numpy(), len(text)))
    return text


def decode_by_engine(folder: str, sampler: Sampler, speculates: bool) -> tuple[Node, int]:
    """The engine's text, with trees of the same shape, and how many drafts it accepted."""
    depths = range(1, len(BRANCHES) + 1)
    config = {
        "model": f"{folder}/draft",
        "quantization": "none",  # by default an engine's draft model has int8 weights
        "speculative_token_tree": [
            ranks for d in depths for ranks in itertools.product(*map(range, BRANCHES[:d]))
        ],
        "draft_length_policy": "fixed",
    }
    engine = Engine(
        f"{folder}/target",
        device="cpu",
        skip_tokenizer_init=True,
        speculative_config=config if speculates else None,
    )
    params = SamplingParams(**sampler._asdict(), max_tokens=MAX_TOKENS, ignore_eos=True)
    output = engine.generate({"prompt_token_ids": list(PROMPT)}, params)[0]
    drafts = output.metrics.speculative_decoding if output.metrics else None
    num_accepted = drafts.num_accepted_draft_tokens if drafts else 0
    return (*PROMPT, *output.outputs[0].token_ids), num_accepted


def make_networks() -> tuple[Any, Any]:
    """A random Llama in float32, and the same without its last layer, which drafts for it."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128}
    config = transformers.LlamaConfig(
        **sizes, num_hidden_layers=3, num_attention_heads=4, initializer_range=0.2
    )
    target: Any = transformers.LlamaForCausalLM(config)
    small = copy.deepcopy(target)
    small.model.layers = small.model.layers[:-1]
    small.config.num_hidden_layers -= 1
    return target.eval(), small.eval()


def show(tree: list[Node], accepted: Node) -> str:
    """The branches of a tree, with a star at every accepted draft."""
    leaves = set(tree) - {node[:-1] for node in tree}
    return " | ".join(
        " ".join(f"{n[-1]}{'*' if sees(accepted, n) else ''}" for n in tree[1:] if sees(leaf, n))
        for leaf in tree
        if leaf in leaves
    )


def main() -> None:
    """Decodes greedily and with temperature, in four ways that must agree."""
    torch.set_num_threads(1)  # more of them would wait for each other: the matrices are tiny
    target, small = make_networks()
    with tempfile.TemporaryDirectory() as folder:
        target.save_pretrained(f"{folder}/target")
        small.save_pretrained(f"{folder}/draft")
        for sampler in (Sampler(temperature=0.0, seed=7), Sampler(temperature=0.8, seed=7)):
            print(sampler)
            text, steps = decode_speculatively(Model(target), Model(small), sampler)
            for number, (tree, accepted) in enumerate(steps, 1):
                emitted = text[len(tree[0]) : len(accepted) + 1]
                print(f"  step {number:2}: {show(tree, accepted) or 'no drafts'} -> {emitted}")
            num_accepted = sum(len(accepted) - len(tree[0]) for tree, accepted in steps)
            num_passes = len(steps) + 1  # the first one runs the prompt
            print(f"  {num_passes} passes, {MAX_TOKENS} tokens, {num_accepted} drafts accepted")
            assert text == decode_plainly(target, sampler)
            assert decode_by_engine(folder, sampler, speculates=False) == (text, 0)
            assert decode_by_engine(folder, sampler, speculates=True) == (text, num_accepted)
            print("  equal to plain decoding, and to the engine with and without speculation")


if __name__ == "__main__":
    main()
