"""From a search with anchors to a match of the whole text."""

from __future__ import annotations

from .pattern_tree import ANY_TEXT, EMPTY, Alt, Anchor, Node, Repeat, Seq

__all__ = ["whole_match"]


def whole_match(node: Node, widened: list[str], depth: int) -> Node:
    """Search semantics and anchors at the ends as a whole match, branch by branch."""
    if isinstance(node, Alt):
        return Alt(tuple(whole_match(item, widened, depth) for item in node.items))
    items = list(_flat(node))
    for end in (0, -1):  # a group of branches at an end, each with its own anchor: one sequence per branch
        if items and isinstance(items[end], Alt) and _anchored(items[end]):
            branches = items[end].items  # type: ignore[union-attr]
            if depth < 4 and len(branches) <= 32:
                rest = items[1:] if end == 0 else items[:-1]
                made = (Seq((b, *rest)) if end == 0 else Seq((*rest, b)) for b in branches)
                return Alt(tuple(whole_match(item, widened, depth + 1) for item in made))
    start = bool(items) and items[0] == Anchor(True)
    while items and items[0] == Anchor(True):
        items.pop(0)
    end_anchor = bool(items) and items[-1] == Anchor(False)
    while items and items[-1] == Anchor(False):
        items.pop()
    inner = [_drop_anchors(item, widened) for item in items]
    return Seq((*([] if start else [ANY_TEXT]), *inner, *([] if end_anchor else [ANY_TEXT])))


def _flat(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Seq):
        return tuple(part for item in node.items for part in _flat(item))
    return (node,)


def _anchored(node: Node) -> bool:
    match node:
        case Anchor():
            return True
        case Seq(items) | Alt(items):
            return any(_anchored(item) for item in items)
        case Repeat(item):
            return _anchored(item)
    return False


def _drop_anchors(node: Node, widened: list[str]) -> Node:
    match node:
        case Anchor():
            widened.append("anchor inside")
            return EMPTY
        case Seq(items):
            return Seq(tuple(_drop_anchors(item, widened) for item in items))
        case Alt(items):
            return Alt(tuple(_drop_anchors(item, widened) for item in items))
        case Repeat(item, low, high):
            return Repeat(_drop_anchors(item, widened), low, high)
    return node
