"""The questions, in the order of the report."""

from __future__ import annotations

from specdec_lab.conformance.experiments import (
    distribution,
    drafts,
    limits,
    neighbours,
    parameters,
    seeds,
    speed,
    streams,
    structure,
)
from specdec_lab.conformance.experiments.base import Question, Subjects

_SUBJECTS = {
    "drafts": drafts,
    "neighbours": neighbours,
    "streams": streams,
    "limits": limits,
    "parameters": parameters,
    "seeds": seeds,
    "sampling": distribution,
    "structure": structure,
    "speed": speed,
}
NAMES = tuple(_SUBJECTS)


def all_questions(subjects: Subjects, names: tuple[str, ...] = NAMES) -> list[Question]:
    """The questions about some subjects, by name. Raises ValueError for a name that is none."""
    for name in names:
        if name not in _SUBJECTS:
            raise ValueError(f"there is no subject {name!r}; there are {', '.join(NAMES)}")
    chosen = [module for name, module in _SUBJECTS.items() if name in names]
    return [question for module in chosen for question in module.questions(subjects)]
