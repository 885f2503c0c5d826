"""Finds stop strings in a text that grows, however many and however long they are."""

from __future__ import annotations

import bisect
from collections.abc import Iterable


class _Node:
    """The stop strings that begin with the same characters: a state of the automaton."""

    __slots__ = ("begin", "children", "depth", "end", "fallback", "found", "num_begun")

    def __init__(self, begin: int, end: int, depth: int) -> None:
        self.begin = begin  # the strings are [begin, end) in sorted order
        self.end = end
        self.depth = depth  # characters that the strings share
        self.children: dict[str, _Node | None] = {}  # visited so far; None: no string
        self.fallback: _Node | None = None  # node of the longest proper suffix that begins a string
        self.found: int | None = None  # the first listed string that ends here
        self.num_begun = depth  # characters of a possible, still incomplete stop string


class StopStrings:
    """Aho and Corasick's automaton. States are made only when a text reaches them.

    A state is a range of the sorted strings, so making the automaton is sorting. A character costs
    a few steps, and two binary searches where it leads to a new state.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._strings = list(dict.fromkeys(strings))
        self._indices = dict(zip(self._strings, range(len(self._strings)), strict=True))
        self._sorted = sorted(self._strings)
        self._root = _Node(0, len(self._sorted), 0)

    def __len__(self) -> int:
        return len(self._strings)

    def _next(self, node: _Node, char: str) -> _Node:
        """The state after one more character."""
        made: list[tuple[_Node, _Node]] = []  # states with new children, which have no fallback yet
        while True:
            if char not in node.children:
                child = self._make_child(node, char)
                if child is None:
                    node.children[char] = None
                else:
                    made.append((node, child))
            elif (known := node.children[char]) is not None:
                state = known
                break
            if node.fallback is None:
                state = self._root
                break
            node = node.fallback
        for parent, child in reversed(made):
            self._complete(child, state)
            parent.children[char] = state = child
        return state

    def _make_child(self, node: _Node, char: str) -> _Node | None:
        depth = node.depth

        def char_of(string: str) -> str:
            return string[depth : depth + 1]

        begin = bisect.bisect_left(self._sorted, char, node.begin, node.end, key=char_of)
        end = bisect.bisect_right(self._sorted, char, begin, node.end, key=char_of)
        return _Node(begin, end, depth + 1) if begin < end else None

    def _complete(self, node: _Node, fallback: _Node) -> None:
        node.fallback = fallback
        node.found = fallback.found
        first = self._sorted[node.begin]
        if len(first) == node.depth:
            index = self._indices[first]
            node.found = index if node.found is None else min(index, node.found)
            if node.end - node.begin == 1:
                node.num_begun = fallback.num_begun


class StopMatcher:
    """Searches one text for the strings. Several matchers may share a StopStrings."""

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._state = strings._root

    def push(self, char: str) -> str | None:
        """Adds a character; returns the string that ends there, the first listed of several."""
        self._state = self._strings._next(self._state, char)
        found = self._state.found
        return None if found is None else self._strings._strings[found]

    @property
    def num_begun(self) -> int:
        """Characters at the text's end that may be the beginning of a stop string."""
        return self._state.num_begun
