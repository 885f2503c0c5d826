"""Calls as Llama 3 writes them: {"name": ..., "parameters": ...}, several with ; between them."""

from __future__ import annotations

from specdec_serve.http.tools.object_calls import ObjectCallParser, overlap
from specdec_serve.http.tools.object_scanner import Step

_TAG = "<|python_tag|>"


class Llama3JsonParser(ObjectCallParser):
    """Objects with a name and parameters (or arguments) anywhere in the text.

    The tag before an object may be missing. Other objects are content.
    """

    _SKIPPED = " \t\n\r;"

    def _read_text(self, text: str, position: int) -> int:
        rest = self._tag + text[position:]
        self._tag = ""
        found = [at for at in (rest.find("{"), rest.find(_TAG)) if at >= 0]
        if not found:
            kept = len(rest) - overlap(rest, _TAG)
            self._add_content(rest[:kept])
            self._tag = rest[kept:]
            return len(text)
        begin = min(found)
        self._add_content(rest[:begin])
        self._state = self._read_call
        if rest[begin] == _TAG[0]:
            self._hold(_TAG)
            begin += len(_TAG)
        return len(text) - (len(rest) - begin)

    def _read_call(self, text: str, position: int) -> int:
        i = self._take_plain(text, position)
        while i < len(text):
            step = self._take_call(text[i])
            if step is Step.INSIDE:
                i = self._take_plain(text, i + 1)
                continue
            if step is Step.END and not self._is_foreign:
                self._complete()
            elif step is Step.END:
                self._fail()
            self._state = self._read_text
            return i + (step is Step.END)
        return len(text)

    def _end(self) -> None:
        if self._state == self._read_call:
            self._fail()
        else:
            self._add_content(self._tag)
