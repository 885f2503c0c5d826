"""Writes draft trees for the choices of a chat."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_native.requests.outputs import DraftTree
from specdec_serve.http.chunks import dumps
from specdec_serve.http.logprobs import TokenNames


def draft_trees_json(names: TokenNames, trees: Sequence[DraftTree]) -> str:
    """A list of steps with drafts: `at`, the completion's tokens before the step, and `nodes`.

    A node's `parent` is the node it follows; -1 is the last token before the step.
    """
    return f"[{','.join(_tree(names, tree) for tree in trees)}]"


def _tree(names: TokenNames, tree: DraftTree) -> str:
    nodes = []
    depths: list[int] = []
    for token in tree.tokens:
        depths.append(1 if token.parent < 0 else depths[token.parent] + 1)
        text = names.name(token.token_id, names.text(token.token_id))
        nodes.append(
            f'{{"token_id":{token.token_id},"text":{dumps(text)},"parent":{token.parent},'
            f'"depth":{depths[-1]},"drafter":{dumps(token.drafter)},'
            f'"probability":{dumps(token.probability)},"accepted":{dumps(token.is_accepted)}}}'
        )
    return f'{{"at":{tree.num_tokens},"nodes":[{",".join(nodes)}]}}'
