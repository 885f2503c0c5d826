"""What a head's drafts say, beside how many of them were kept."""

from __future__ import annotations

from collections import Counter

import numpy as np

from specdec_lab.doctor.acceptance import Acceptance
from specdec_lab.doctor.checkpoint import Checkpoint
from specdec_lab.doctor.findings import Finding, fault, note

_HARDLY_EVER = 0.05  # share of first drafts that are kept; the worst heads in use keep a fifth
_OFTEN = 0.3
_ALWAYS = 0.9
_COVERED, _LEAST_COVERED = 0.85, 0.5  # of the answers' tokens, by the draft vocabulary
_SHIFTS = {
    -1: "the token before it, which the head was given",
    1: "the token after it",
    2: "the second token after it",
}


def check_drafts(acceptance: Acceptance, head: Checkpoint, *, is_mended: bool) -> list[Finding]:
    """What shows in the first drafts of steps and in the answers, and no reading mends."""
    drafts = acceptance.first_drafts()
    if not drafts:
        return [fault("drafts", "the head drafts nothing")]
    kept = sum(token == answer[i] for token, answer, i in drafts) / len(drafts)
    findings = _of_vocabulary(acceptance, head)
    for shift, what in _SHIFTS.items():
        pairs = [(t, a[i + shift]) for t, a, i in drafts if 0 <= i + shift < len(a)]
        alike = sum(token == other for token, other in pairs) / max(1, len(pairs))
        if alike > max(_OFTEN, 2 * kept):
            findings.append(
                fault(
                    "shift",
                    f"{alike:.0%} of the first drafts are {what}, and {kept:.0%} the right one: "
                    "the head was trained on rows that pair other tokens with the target's states",
                    "train with the embedding of token t+1 beside the state of token t, for token "
                    "t+2",
                )
            )
    token, count = Counter(token for token, _, _ in drafts).most_common(1)[0]
    if count > _ALWAYS * len(drafts) > kept * len(drafts) * 2:
        findings.append(
            fault(
                "drafts",
                f"{count / len(drafts):.0%} of the first drafts are the same token, {token}",
            )
        )
    if kept < _HARDLY_EVER and not any(finding.is_fault for finding in findings):
        still = "still " if is_mended else ""
        findings.append(
            fault(
                "drafts",
                f"{still}{kept:.1%} of the first drafts are kept, and no other reading of the "
                "files raises that",
                "see the faults above, if there are any; else the head was trained for other "
                "weights or another text than the target's",
            )
        )
    return findings


def _of_vocabulary(acceptance: Acceptance, head: Checkpoint) -> list[Finding]:
    """Tokens that a head has no row for are never drafted."""
    name = head.find("d2t")
    ids = head.find("token_map") if name is None else name
    if ids is None:
        return []
    listed = head.integers(ids)
    drafted = set((listed if name is None else listed + np.arange(len(listed))).tolist())
    answered = [token for answer in acceptance.answers for token in answer]
    share = sum(token in drafted for token in answered) / max(1, len(answered))
    text = (
        f"its {len(drafted)} tokens are {share:.0%} of the answers', which bounds what is drafted"
    )
    if share < _LEAST_COVERED:
        remedy = "train with a draft vocabulary counted in answers of the target (train-head)"
        return [fault("draft vocabulary", text, remedy)]
    return [note("draft vocabulary", text)] if share < _COVERED else []
