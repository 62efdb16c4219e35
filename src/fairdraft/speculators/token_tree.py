"""The tree that a round drafts, as users write it: numbered by levels, fixed before any draw."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from operator import index
from typing import Any

from fairdraft.ops.token_tree import TokenTree

#: what one target forward scores
MAX_NODES = 1024


def read_token_tree(given: Any) -> TokenTree:
    """Reads a tree as users write it.

    Args:
        given: Children of every node by depth, such as [3, 2, 1]; or the paths of all nodes as in
            vLLM, Medusa and EAGLE, such as [(0,), (1,), (0, 0)]: child 0 of child 0 of the root;
            or either as text.

    Raises:
        ValueError: If it is neither, a path's parent or elder sibling is missing, or it is too
            large.
    """
    if isinstance(given, str):
        try:
            given = ast.literal_eval(given)
        except (ValueError, SyntaxError):
            raise _unreadable(given) from None
    if not isinstance(given, Sequence) or not given:
        raise _unreadable(given)
    if all(isinstance(item, Sequence) and not isinstance(item, str) for item in given):
        return _from_paths([tuple(path) for path in given])
    return _from_breadths(given)


def _from_breadths(breadths: Sequence[Any]) -> TokenTree:
    parents: list[int] = []
    level = [0]
    for breadth in breadths:
        count = _count(breadth, breadths)
        if count < 1 or len(parents) + count * len(level) > MAX_NODES:
            raise ValueError(
                f"speculative_token_tree={list(breadths)!r}: each depth needs at least 1 child a "
                f"node, and the tree at most {MAX_NODES} nodes"
            )
        first = len(parents) + 1
        parents += [parent for parent in level for _ in range(count)]
        level = list(range(first, len(parents) + 1))
    return TokenTree(tuple(parents))


def _from_paths(paths: list[tuple[Any, ...]]) -> TokenTree:
    known = {tuple(_count(step, paths) for step in path) for path in paths}
    if len(known) < len(paths) or () in known or len(paths) > MAX_NODES:
        raise ValueError(
            f"speculative_token_tree has {len(paths)} paths; give each node's once, the root's not "
            f"at all, and at most {MAX_NODES}"
        )
    nodes: dict[tuple[int, ...], int] = {(): 0}
    parents = []
    for path in sorted(known, key=lambda path: (len(path), path)):
        elder = (*path[:-1], path[-1] - 1)
        for needed in (path[:-1], elder) if path[-1] else (path[:-1],):
            if needed not in nodes:
                raise ValueError(
                    f"speculative_token_tree has {path} without {needed}: list the parents and the "
                    "elder siblings of every node (child 0 is drawn first)"
                )
        parents.append(nodes[path[:-1]])
        nodes[path] = len(parents)
    return TokenTree(tuple(parents))


def _count(value: Any, given: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _unreadable(given)
    return index(value)


def _unreadable(given: Any) -> ValueError:
    return ValueError(
        f"speculative_token_tree={given!r}: give the children of a node by depth, such as "
        "[3, 2, 1], or the paths of all nodes, such as [(0,), (1,), (0, 0)]"
    )
