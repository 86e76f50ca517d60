"""Maximum weight matching from two libraries, under one signature (``matching.Engine``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def rustworkx_matching(edges: Sequence[tuple[int, int, int]]) -> Iterable[tuple[int, int]]:
    """Return a maximum weight matching by rustworkx (Galil's algorithm, compiled)."""
    import rustworkx as rx

    nodes = {node: k for k, node in enumerate(sorted({n for a, b, _ in edges for n in (a, b)}))}
    graph = rx.PyGraph(multigraph=False)
    graph.add_nodes_from(list(nodes))
    graph.add_edges_from([(nodes[a], nodes[b], weight) for a, b, weight in edges])
    names = list(nodes)
    matching = rx.max_weight_matching(graph, weight_fn=int)
    return [(names[a], names[b]) for a, b in matching]


def networkx_matching(edges: Sequence[tuple[int, int, int]]) -> Iterable[tuple[int, int]]:
    """Return a maximum weight matching by networkx (Galil's algorithm, in Python)."""
    import networkx as nx

    graph: nx.Graph[int] = nx.Graph()
    graph.add_weighted_edges_from(edges)
    return list(nx.max_weight_matching(graph))
