"""Layered layout of a directed graph, top to bottom, with few crossings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COLUMN, ROW = 220.0, 110.0
"""Distance between the centers of two nodes, in pixels."""
MARGIN = 110.0
SWEEPS = 4

Places = dict[str, tuple[float, float]]


def place(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> tuple[Places, float, float]:
    """Center of each node, and width and height of the graph.

    Edges that close a cycle point upwards, the others down. Ties are broken by the order of nodes.
    """
    if not nodes:
        return {}, 2 * MARGIN, 2 * MARGIN
    forward = _without_cycles(nodes, edges)
    rank = _ranks(nodes, forward)
    layers: list[list[str]] = [[] for _ in range(max(rank.values()) + 1)]
    for node in nodes:
        layers[rank[node]].append(node)
    _untangle(layers, forward)
    widest = max(map(len, layers))
    places: Places = {}
    for depth, layer in enumerate(layers):
        left = MARGIN + (widest - len(layer)) * COLUMN / 2
        for at, node in enumerate(layer):
            places[node] = (left + at * COLUMN, MARGIN / 2 + depth * ROW)
    return places, 2 * MARGIN + (widest - 1) * COLUMN, MARGIN + (len(layers) - 1) * ROW


def _without_cycles(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Edges without the back edges of a depth-first search."""
    targets: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in dict.fromkeys(edges):
        if source != target and source in targets and target in targets:
            targets[source].append(target)
    open_, done, kept = set[str](), set[str](), list[tuple[str, str]]()
    for root in nodes:
        if root in done:
            continue
        stack = [(root, iter(targets[root]))]
        open_.add(root)
        while stack:
            node, ahead = stack[-1]
            target = next(ahead, "")
            if not target:
                stack.pop()
                open_.discard(node)
                done.add(node)
            elif target not in open_:
                kept.append((node, target))
                if target not in done:
                    open_.add(target)
                    stack.append((target, iter(targets[target])))
    return kept


def _ranks(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Layer of each node: one below its lowest predecessor."""
    targets: dict[str, list[str]] = {node: [] for node in nodes}
    comes = dict.fromkeys(nodes, 0)
    for source, target in edges:
        targets[source].append(target)
        comes[target] += 1
    rank = dict.fromkeys(nodes, 0)
    ready = [node for node in nodes if not comes[node]]
    for node in ready:
        for target in targets[node]:
            rank[target] = max(rank[target], rank[node] + 1)
            comes[target] -= 1
            if not comes[target]:
                ready.append(target)
    return rank


def _untangle(layers: list[list[str]], edges: Sequence[tuple[str, str]]) -> None:
    """Sort each layer by the barycenters of neighbours, alternately above and below."""
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for source, target in edges:
        above.setdefault(target, []).append(source)
        below.setdefault(source, []).append(target)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            at = {node: place / max(1, len(each) - 1) for each in layers for place, node in enumerate(each)}
            neighbours = above if down else below
            layer.sort(key=lambda node: _middle(at, neighbours.get(node, []), at[node]))


def _middle(at: Mapping[str, float], neighbours: Sequence[str], otherwise: float) -> float:
    return sum(at[each] for each in neighbours) / len(neighbours) if neighbours else otherwise
