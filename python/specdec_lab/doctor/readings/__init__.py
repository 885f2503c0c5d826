"""The readings that are tried, in the order in which a table shows them."""

from __future__ import annotations

from specdec_lab.doctor.reading import Reading
from specdec_lab.doctor.readings import attention, depths, features, norms, vocabulary

READINGS: tuple[Reading, ...] = (
    *features.READINGS,
    *norms.READINGS,
    *attention.READINGS,
    *vocabulary.READINGS,
    *depths.READINGS,
)
