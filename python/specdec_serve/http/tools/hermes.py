"""Calls as Hermes, Qwen2.5 and SmolLM2 write them: <tool_call>{json}</tool_call>.

SmolLM2 writes a list of calls between the tags.
"""

from __future__ import annotations

from specdec_serve.http.tools.object_calls import ObjectCallParser, overlap
from specdec_serve.http.tools.object_scanner import Step

_BEGIN = "<tool_call>"
_END = "</tool_call>"
TAGS = (_BEGIN, _END)


class HermesParser(ObjectCallParser):
    """Calls between tags, one or a list of them. The last closing tag may be missing."""

    def __init__(self) -> None:
        super().__init__()
        self._is_list = False

    def _read_text(self, text: str, position: int) -> int:
        rest = self._tag + text[position:]
        self._tag = ""
        begin = rest.find(_BEGIN)
        if begin >= 0:
            self._add_content(rest[:begin])
            self._hold(_BEGIN)
            self._state = self._read_begin
            return len(text) - (len(rest) - begin - len(_BEGIN))
        kept = len(rest) - overlap(rest, _BEGIN)
        self._add_content(rest[:kept])
        self._tag = rest[kept:]
        return len(text)

    def _read_begin(self, text: str, position: int) -> int:
        """After the tag: a list begins, or a call."""
        for i in range(position, len(text)):
            if text[i].isspace():
                self._hold(text[i])
                continue
            self._is_list = text[i] == "["
            self._state = self._read_call
            if self._is_list:
                self._hold(text[i])
            return i + self._is_list
        return len(text)

    def _read_call(self, text: str, position: int) -> int:
        i = self._take_plain(text, position)
        while i < len(text):
            step = self._take_call(text[i])
            if step is Step.BAD:
                self._state = self._read_text
                return i
            if self._is_foreign:
                self._fail()
                self._state = self._read_text
                return i + 1
            if step is Step.END:
                self._state = self._read_comma if self._is_list else self._read_end
                return i + 1
            i = self._take_plain(text, i + 1)
        return len(text)

    def _read_comma(self, text: str, position: int) -> int:
        """After a call of a list: another one, or the list's end."""
        for i in range(position, len(text)):
            if text[i] == ",":
                self._complete()
                self._state = self._read_call
            elif text[i] == "]":
                self._hold(text[i])
                self._state = self._read_end
            elif not text[i].isspace():
                self._fail()
                self._state = self._read_text
                return i
            else:
                self._hold(text[i])
                continue
            return i + 1
        return len(text)

    def _read_end(self, text: str, position: int) -> int:
        for i in range(position, len(text)):
            if not self._tag and text[i].isspace():
                self._hold(text[i])
                continue
            if not _END.startswith(self._tag + text[i]):
                self._fail()
                self._state = self._read_text
                return i
            self._tag += text[i]
            if self._tag == _END:
                self._tag = ""
                self._complete()
                self._state = self._read_text
                return i + 1
        return len(text)

    def _end(self) -> None:
        if self._state in (self._read_end, self._read_comma):
            self._complete()
        elif self._state == self._read_text:
            self._add_content(self._tag)
        else:
            self._fail()
