"""The texts of a pattern that begin with none of some characters, as a pattern."""

from __future__ import annotations

from .charsets import ALL, CharSet, minus
from .pattern_tree import EMPTY, Alt, Anchor, Anything, Chars, Node, Repeat, Seq

__all__ = ["not_beginning"]


def not_beginning(node: Node, chars: CharSet) -> Node | None:
    """What `node` matches and begins with none of `chars`; None if that is nothing. The tree must have no anchors."""
    texts, has_empty = _split(node, chars)
    choices = [*texts, *([EMPTY] if has_empty else [])]
    return _one(choices) if choices else None


def _one(choices: list[Node]) -> Node:
    return choices[0] if len(choices) == 1 else Alt(tuple(choices))


def _split(node: Node, chars: CharSet) -> tuple[list[Node], bool]:
    """Its texts of one character at least that begin with none of `chars`, and whether it matches the empty text."""
    match node:
        case Chars() | Anything():
            kept = minus(ALL if isinstance(node, Anything) else node.chars, chars)
            return ([Chars(kept)] if kept else []), False
        case Seq(items):
            texts: list[Node] = []
            for place, item in enumerate(items):
                begun, empty = _split(item, chars)
                texts += [Seq((one, *items[place + 1 :])) for one in begun]
                if not empty:
                    return texts, False
            return texts, True
        case Alt(items):
            parts = [_split(item, chars) for item in items]
            return [one for begun, _ in parts for one in begun], any(empty for _, empty in parts)
        case Repeat(_, _, 0):
            return [], True
        case Repeat(item, low, high):
            begun, empty = _split(item, chars)
            rest = Repeat(item, max(low - 1, 0), None if high is None else high - 1)
            return [Seq((one, rest)) for one in begun], empty or low == 0
        case Anchor():
            raise ValueError("a tree with anchors is no whole match")
