"""Ranks that read their shares of quantised checkpoints, and drafts over them."""

from pathlib import Path

import pytest

from quantised_checkpoints import FORMATS, make_quantised
from test_rank_checkpoints import assert_ranks_agree, write_checkpoint

# Cut along words of 8 outputs, along groups, and with inputs in another order. Groups of 128 leave
# the shares of three ranks uneven.
NAMES = [
    "gptq", "gptq_order", "gptq_3_asym", "awq", "ct_asym", "w8a8", "ct_nvfp4", "nf4_nested",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_ranks_and_drafts_change_no_answer(tmp_path: Path, name: str) -> None:
    # bnb and ct groups of 128 need rows of as many inputs.
    source = write_checkpoint(tmp_path / "source", hidden_size=128)
    model = make_quantised(source, FORMATS[name], tmp_path).quantised
    assert_ranks_agree(model, [(2, 1), (4, 1), (3, 1), (2, 2)])
