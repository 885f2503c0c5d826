"""A reading: another way of understanding a head's files, which some writer of heads has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from specdec_lab.doctor.checkpoint import Checkpoint, Target


@dataclasses.dataclass(frozen=True)
class Variant:
    """A head as one reading understands it.

    Attributes:
        label: what is read otherwise, for a line of a table.
        change: what mends the head if this reading is right, in a sentence.
        head: the files as this engine would have to find them.
    """

    label: str
    change: str
    head: Checkpoint


@dataclasses.dataclass(frozen=True)
class Reading:
    """A convention on which checkpoints disagree.

    Attributes:
        name: of the reading, one word or several with hyphens.
        methods: the methods whose heads it concerns.
        variants: the heads that it makes of one, given the target; none where it does not apply.
    """

    name: str
    methods: frozenset[str]
    variants: Callable[[Checkpoint, Target], Iterable[Variant]]
