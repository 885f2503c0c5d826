"""Token ids as transformers' tokenizers return them: cut, padded, as lists or tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

_PADDING: dict[Any, Any] = {False: None, None: None, "do_not_pad": None, True: "longest"}
_TRUNCATION: dict[Any, bool] = {
    **{False: False, "do_not_truncate": False},
    **{True: True, "longest_first": True, "only_first": True},
}


class BatchEncoding(dict[str, Any]):
    """Token ids and attention mask of a text or of several; the keys are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the tokenizer returned {', '.join(self)}, no {name}") from None

    def to(self, device: Any) -> BatchEncoding:
        """The same with torch's tensors on another device."""
        return BatchEncoding({name: tensor.to(device) for name, tensor in self.items()})


@dataclasses.dataclass
class Layout:
    """The arguments of transformers' tokenizers that cut and pad token ids.

    Attributes:
        padding: True or "longest": up to the longest row; "max_length": up to max_length.
        truncation: whether rows are cut to max_length; None: if it is set and padding is not.
        max_length: tokens of a row; None for the tokenizer's model_max_length.
        pad_to_multiple_of: rows are padded further, to a multiple of this.
        padding_side: where padding goes, "left" or "right"; None for the tokenizer's.
        truncation_side: where tokens are cut away; None for the tokenizer's.
        return_tensors: "pt" or "np" for tensors [rows, tokens], None for lists.
        return_attention_mask: False leaves the mask out.
    """

    padding: bool | str | None = False
    truncation: bool | str | None = None
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    padding_side: str | None = None
    truncation_side: str | None = None
    return_tensors: str | None = None
    return_attention_mask: bool | None = None

    def __post_init__(self) -> None:
        self._pads_to = _PADDING.get(self.padding, self.padding)
        if self._pads_to not in (None, "longest", "max_length"):
            raise ValueError(
                f'padding must be True, "longest", "max_length" or False, got {self.padding!r}'
            )
        if self.truncation is None:
            self.truncation = self.max_length is not None and self._pads_to is None
        if self.truncation not in _TRUNCATION:
            raise ValueError(
                f'truncation must be True, "longest_first" or False, got {self.truncation!r}'
            )
        self._cuts = _TRUNCATION[self.truncation]
        for name in ("padding_side", "truncation_side"):
            if getattr(self, name) not in (None, "left", "right"):
                raise ValueError(f'{name} must be "left" or "right", got {getattr(self, name)!r}')
        if self.return_tensors not in (None, "pt", "np"):
            raise ValueError(f'return_tensors must be "pt" or "np", got {self.return_tensors!r}')

    def within(self, defaults: Mapping[str, Any]) -> Layout:
        """The same, with the tokenizer's `defaults` for what is None."""
        given = {name: getattr(self, name) for name in defaults}
        missing = {name: value for name, value in defaults.items() if given[name] is None}
        return dataclasses.replace(self, truncation=self._cuts, **missing)

    def is_too_long(self, row: list[int]) -> bool:
        """Whether cut() has to shorten it."""
        return self._cuts and self.max_length is not None and len(row) > self.max_length

    def cut(self, row: list[int], content: list[int]) -> list[int]:
        """`row` of at most max_length tokens; `content` are those that may go, so that special
        tokens around them stay."""
        if not self.is_too_long(row):
            return row
        num_around = len(row) - len(content)
        begin = next(
            (i for i in range(num_around + 1) if row[i : i + len(content)] == content), None
        )
        if begin is None:
            begin, num_around, content = 0, 0, row
        end = begin + len(content)
        kept = max(0, (self.max_length or 0) - num_around)
        cut = content[:kept] if self.truncation_side == "right" else content[len(content) - kept :]
        return [*row[:begin], *cut, *row[end:]]

    def pack(self, rows: list[list[int]], is_many: bool, pad_token_id: int | None) -> BatchEncoding:
        """The rows with their mask. As lists, a single row is returned alone unless `is_many`.

        Raises ValueError where there is no padding token, or a tensor's rows differ in length.
        """
        masks = [[1] * len(row) for row in rows]
        if self._pads_to is not None and rows:
            if pad_token_id is None:
                raise ValueError(
                    "padding needs a padding token: set tokenizer.pad_token = tokenizer.eos_token"
                )
            length = max(map(len, rows))
            if self._pads_to == "max_length" and self.max_length is not None:
                length = self.max_length  # longer rows stay as they are
            multiple = self.pad_to_multiple_of or 1
            length = -(-length // multiple) * multiple
            rows = [self._padded(row, length, pad_token_id) for row in rows]
            masks = [self._padded(mask, length, 0) for mask in masks]
        parts = {"input_ids": rows, "attention_mask": masks}
        if self.return_attention_mask is False:
            del parts["attention_mask"]
        if self.return_tensors is not None:
            return BatchEncoding({name: self._tensor(part) for name, part in parts.items()})
        return BatchEncoding({name: part if is_many else part[0] for name, part in parts.items()})

    def _padded(self, row: list[int], length: int, value: int) -> list[int]:
        padding = [value] * (length - len(row))
        return padding + row if self.padding_side == "left" else row + padding

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Any:
        if len({len(row) for row in rows}) > 1:
            raise ValueError(
                "rows of different lengths are no tensor: give padding=True, and truncation=True "
                "where some are too long"
            )
        if self.return_tensors == "np":
            import numpy as np  # noqa: PLC0415 - 20 MB that lists do without

            return np.array(rows, dtype=np.int64)
        import torch  # noqa: PLC0415 - optional

        return torch.tensor(rows, dtype=torch.int64)


OPTIONS = tuple(field.name for field in dataclasses.fields(Layout))
