"""Weighted blossoms: from a fractional optimum to a matching.

If the fractional matching has odd cycles, one node of each is left exposed. Every exposed node with
a positive dual is the root of one alternating tree (Edmonds 1965; the single tree search of Galil,
*ACM Computing Surveys* 18, 1986), grown with the duals

    pi_i >= 0,   z_B >= 0,   pi_i + pi_j + sum_(B containing i and j) z_B >= b_ij

kept feasible and all tree and matched edges tight, until it ends in another exposed node, or the
dual of some outer node reaches zero and this node stays exposed instead of the root. Only odd
cycles need a tree: the fractional optimum is the warm start (as in the fractional initialisation of
Applegate & Cook, 1993). b_ij is the benefit of the pair over both jobs alone.

All numbers are doubled (so that half-integral duals are whole). The nodes of a tree are joined by
tight edges of even doubled benefit, so their duals have the same parity, and no halves appear: the
arithmetic is exact.

Duals are updated lazily. In a tree that has grown for "time" t, an outer (S) node's dual has fallen
and an inner (T) node's has risen by t - since, and the dual of an outer (inner) blossom has risen
(fallen) by twice that. Events are kept in a heap by time; an outdated event is dropped, or pushed
again at its correct time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.compilation import KernelCompiler, kernel

Ints = NDArray[np.int64]

NONE = -1
FREE, OUTER, INNER = 0, 1, 2

_GROW, _SHRINK, _EXPAND, _EXPOSE = 0, 1, 2, 3
_ENDED, _GOES_ON = 1, 0

_CLOCK, _TOPS, _SCANS, _UNUSED, _MARK, _END = 0, 1, 2, 3, 4, 5
_COUNTERS = 6

_FIRST_EVENTS = 4096
_PER_STEP = 2


PARENT, FIRST, FOLLOWING, PRECEDING, TAIL, TIP, BASE, DUAL, SINCE, LABEL, LINK, ENTRY, MARK = range(
    13
)
TOP, NODE_LABEL, NODE_SINCE = range(3)
TOPS, SCAN, PATH, STACK, UNUSED = range(5)


class Blossoms(NamedTuple):
    """The blossoms of a graph and the state of the growing tree.

    Nodes 0 .. n-1 are trivial blossoms; n .. 2n are the ids of others. The children of a blossom
    form a circle, starting with the child that contains its base. (There are few wide arrays
    instead of many narrow ones because numba's compile time grows with the number of arguments.)

    Attributes
    ----------
    blossom : (13, ids) int
        PARENT: the parent of a blossom, -1 for none. FIRST: the child that contains the base, -1
        for unused ids. FOLLOWING, PRECEDING: the neighbours in the circle of the parent's children.
        TAIL, TIP: the edge from a child to the following one: its node in the child, its node in
        the other. BASE: the node that is not matched within the blossom. DUAL: doubled z at SINCE,
        the time at which the top blossom was labelled. LABEL: FREE, OUTER or INNER, for top
        blossoms. LINK, ENTRY: the tree edge by which a top blossom was labelled: outside and inside
        node. MARK: mark of followed paths.
    node : (3, n) int
        TOP: the outermost blossom. NODE_LABEL, NODE_SINCE: its label, and the time of the label.
    work : (5, 4 n + 16) int
        TOPS: labelled blossoms of this tree. SCAN: outer nodes whose edges are not scanned yet.
        PATH, STACK: working space. UNUSED: ids for new blossoms.
    leaves, inner_leaves : (n + 1,) int
        Working space.
    counter : int
        The clock, the lengths of TOPS, SCAN and UNUSED, the last mark, and the time at which the
        first outer node's dual will be zero, when the tree ends at the latest.
    """

    blossom: Ints
    node: Ints
    work: Ints
    leaves: Ints
    inner_leaves: Ints
    counter: Ints


class Events(NamedTuple):
    """A binary heap of possible next events, least time first.

    ``a`` is the outer node, or the blossom to expand; ``b`` is the index of the edge in the graph.
    """

    time: Ints
    kind: Ints
    a: Ints
    b: Ints
    size: Ints


def no_blossoms(nodes: int) -> Blossoms:
    """Return the state before the first tree."""
    ids = 2 * nodes + 2
    blossom = np.full((MARK + 1, ids), -1, dtype=np.int64)
    blossom[BASE] = np.arange(ids)
    blossom[[DUAL, SINCE, LABEL, MARK]] = 0
    node = np.zeros((NODE_SINCE + 1, nodes), dtype=np.int64)
    node[TOP] = np.arange(nodes)
    work = np.full((UNUSED + 1, 4 * nodes + 16), -1, dtype=np.int64)
    work[UNUSED, : ids - nodes] = np.arange(ids - 1, nodes - 1, -1)
    counter = np.zeros(_COUNTERS, dtype=np.int64)
    counter[_UNUSED] = ids - nodes
    leaves = np.empty((2, nodes + 1), dtype=np.int64)
    return Blossoms(blossom, node, work, leaves[0], leaves[1], counter)


@kernel
def nest(parent: Ints, dual: Ints, around: Ints, total: Ints) -> None:
    """Find the nearest blossom of positive dual around each, and the outward sums of duals."""
    for i in range(parent.size):
        b = parent[i]
        while b >= 0 and dual[b] == 0:
            b = parent[b]
        around[i] = b
    for i in range(parent.size):
        total[i] = dual[i]
        b = around[i]
        while b >= 0:
            total[i] += dual[b]
            b = around[b]


def nested(parent: Ints, dual: Ints, run: KernelCompiler) -> tuple[Ints, Ints]:
    """Return the result of ``nest``: the nearest enclosing blossoms and the sums of duals."""
    around, total = np.empty_like(parent), np.empty_like(dual)
    run(nest)(parent, dual, around, total)
    return around, total


def members(
    parent: Ints, dual: Ints, nodes: int, run: KernelCompiler
) -> Iterator[tuple[int, Ints]]:
    """Yield the blossoms of positive dual with their nodes."""
    around, _ = nested(parent, dual, run)
    none = np.zeros(0, dtype=np.int64)
    inside, outside = [none], [none]
    node, b = np.arange(nodes), around[:nodes]
    while (within := b >= 0).any():
        node, b = node[within], b[within]
        inside.append(node)
        outside.append(b)
        b = around[b]
    node, b = np.concatenate(inside), np.concatenate(outside)
    order = np.lexsort((node, b))
    found, first = np.unique(b[order], return_index=True)
    yield from zip(found.tolist(), np.split(node[order], first)[1:], strict=True)


@kernel
def list_leaves(blossom: int, state: Blossoms, leaves: Ints) -> int:
    """List the nodes in a blossom; return their number."""
    n = state.node.shape[1]
    count = 0
    height = 1
    state.work[STACK, 0] = blossom
    while height > 0:
        height -= 1
        b = state.work[STACK, height]
        if b < n:
            leaves[count] = b
            count += 1
            continue
        child = state.blossom[FIRST, b]
        while True:
            state.work[STACK, height] = child
            height += 1
            child = state.blossom[FOLLOWING, child]
            if child == state.blossom[FIRST, b]:
                break
    return count


@kernel
def child_with(node: int, blossom: int, state: Blossoms) -> int:
    """Return the child of a blossom that contains the node."""
    child = node
    while state.blossom[PARENT, child] != blossom:
        child = state.blossom[PARENT, child]
    return child


@kernel
def even_way_is_forward(child: int, end: int, state: Blossoms) -> bool:
    """Return whether the circle's ``end`` is an even number of steps forward from a child."""
    even = True
    while child != end:
        child = state.blossom[FOLLOWING, child]
        even = not even
    return even


@kernel
def rebase(blossom: int, node: int, state: Blossoms, mate: Ints) -> None:
    """Make the node the base of its blossom by exchanging its matched and unmatched edges."""
    n = state.node.shape[1]
    height = 1
    state.work[PATH, 0] = blossom
    state.work[STACK, 0] = node
    while height > 0:
        height -= 1
        b = state.work[PATH, height]
        x = state.work[STACK, height]
        if b < n:
            continue
        child = child_with(x, b, state)
        end = state.blossom[FIRST, b]
        state.blossom[FIRST, b] = child
        state.blossom[BASE, b] = x
        state.work[PATH, height] = child
        state.work[STACK, height] = x
        height += 1
        forward = even_way_is_forward(child, end, state)
        while child != end:
            if forward:
                y1 = state.blossom[FOLLOWING, child]
                y2 = state.blossom[FOLLOWING, y1]
                p = state.blossom[TAIL, y1]
                q = state.blossom[TIP, y1]
            else:
                y1 = state.blossom[PRECEDING, child]
                y2 = state.blossom[PRECEDING, y1]
                p = state.blossom[TIP, y2]
                q = state.blossom[TAIL, y2]
            mate[p] = q
            mate[q] = p
            state.work[PATH, height] = y1
            state.work[STACK, height] = p
            state.work[PATH, height + 1] = y2
            state.work[STACK, height + 1] = q
            height += 2
            child = y2


@kernel
def edge_of(start: Ints, head: Ints, i: int, j: int) -> int:
    """Return the index of an edge of the graph in the row of its end i."""
    e = start[i]
    while head[e] != j:
        e += 1
    return int(e)


@kernel
def label_top(blossom: int, label: int, link: int, entry: int, state: Blossoms) -> None:
    """Put a top blossom into the tree, at the present time."""
    state.blossom[LABEL, blossom] = label
    state.blossom[LINK, blossom] = link
    state.blossom[ENTRY, blossom] = entry
    state.blossom[SINCE, blossom] = state.counter[_CLOCK]
    state.work[TOPS, state.counter[_TOPS]] = blossom
    state.counter[_TOPS] += 1


@kernel
def label_outer(blossom: int, link: int, entry: int, state: Blossoms) -> None:
    """Label a free top blossom OUTER; queue its nodes for scanning."""
    label_top(blossom, OUTER, link, entry, state)
    for k in range(list_leaves(blossom, state, state.leaves)):
        x = state.leaves[k]
        state.node[NODE_LABEL, x] = OUTER
        state.node[NODE_SINCE, x] = state.counter[_CLOCK]
        to_scan(x, state)


@kernel
def to_scan(node: int, state: Blossoms) -> None:
    """Queue the node's edges for scanning before the clock advances."""
    state.work[SCAN, state.counter[_SCANS]] = node
    state.counter[_SCANS] += 1


@kernel
def from_inner_to_outer(node: int, pi: Ints, state: Blossoms) -> None:
    """Update the dual of an inner node and make it outer."""
    pi[node] += state.counter[_CLOCK] - state.node[NODE_SINCE, node]
    state.node[NODE_SINCE, node] = state.counter[_CLOCK]
    state.node[NODE_LABEL, node] = OUTER
    to_scan(node, state)


@kernel
def scan_nodes(
    start: Ints, head: Ints, benefit: Ints, pi: Ints, state: Blossoms, events: Events
) -> Events:
    """Add the events of the edges of new outer nodes."""
    clock = state.counter[_CLOCK]
    while state.counter[_SCANS] > 0:
        state.counter[_SCANS] -= 1
        x = state.work[SCAN, state.counter[_SCANS]]
        events = with_room(events, start[x + 1] - start[x] + 1)
        own = pi[x] - (clock - state.node[NODE_SINCE, x])
        if clock + own < state.counter[_END]:
            state.counter[_END] = clock + own
            add(events, clock + own, _EXPOSE, x, x)
        end = state.counter[_END]
        for e in range(start[x], start[x + 1]):
            y = head[e]
            if state.node[TOP, y] == state.node[TOP, x] or state.node[NODE_LABEL, y] == INNER:
                continue
            if state.node[NODE_LABEL, y] == OUTER:
                slack = own + pi[y] - (clock - state.node[NODE_SINCE, y]) - benefit[e]
                if clock + slack // 2 <= end:
                    add(events, clock + slack // 2, _SHRINK, x, e)
            elif clock + own + pi[y] - benefit[e] <= end:
                add(events, clock + own + pi[y] - benefit[e], _GROW, x, e)
    return events


@kernel
def flip_path(node: int, partner: int, state: Blossoms, mate: Ints) -> None:
    """Match an outer node to ``partner`` and exchange the edges on its path to the root."""
    s = node
    p = partner
    while True:
        outer = state.node[TOP, s]
        rebase(outer, s, state, mate)
        mate[s] = p
        if state.blossom[LINK, outer] < 0:
            return
        inner = state.node[TOP, state.blossom[LINK, outer]]
        p = state.blossom[ENTRY, inner]
        s = state.blossom[LINK, inner]
        rebase(inner, p, state, mate)
        mate[p] = s


@kernel
def grow(x: int, y: int, mate: Ints, state: Blossoms, events: Events) -> int:
    """Add a free top blossom to the tree by a tight edge, or end the tree if it is exposed."""
    inner = state.node[TOP, y]
    base = state.blossom[BASE, inner]
    if mate[base] < 0:
        rebase(inner, y, state, mate)
        mate[y] = x
        flip_path(x, y, state, mate)
        return _ENDED
    label_top(inner, INNER, x, y, state)
    for k in range(list_leaves(inner, state, state.leaves)):
        state.node[NODE_LABEL, state.leaves[k]] = INNER
        state.node[NODE_SINCE, state.leaves[k]] = state.counter[_CLOCK]
    if inner >= state.node.shape[1]:
        add(events, state.counter[_CLOCK] + state.blossom[DUAL, inner] // 2, _EXPAND, inner, inner)
    label_outer(state.node[TOP, mate[base]], base, mate[base], state)
    return _GOES_ON


@kernel
def common_ancestor(x: int, y: int, state: Blossoms) -> int:
    """Return the outer blossom where the paths of two outer blossoms to the root meet."""
    state.counter[_MARK] += 1
    mark = state.counter[_MARK]
    while True:
        state.blossom[MARK, x] = mark
        if state.blossom[LINK, x] < 0:
            break
        x = state.node[TOP, state.blossom[LINK, x]]
    while state.blossom[MARK, y] != mark:
        y = state.node[TOP, state.blossom[LINK, y]]
    return y


@kernel
def join(left: int, right: int, tail: int, tip: int, state: Blossoms) -> None:
    """Make ``right`` follow ``left`` in a circle, by the edge tail - tip."""
    state.blossom[FOLLOWING, left] = right
    state.blossom[PRECEDING, right] = left
    state.blossom[TAIL, left] = tail
    state.blossom[TIP, left] = tip


@kernel
def close_circle(x: int, y: int, ancestor: int, state: Blossoms) -> None:
    """Link the circle ancestor .. x - y .. ancestor of the tree paths and the edge x - y."""
    count = 0
    c = state.node[TOP, x]
    while c != ancestor:
        state.work[PATH, count] = c
        count += 1
        c = state.node[TOP, state.blossom[LINK, c]]
    last = ancestor
    for k in range(count - 1, -1, -1):
        c = state.work[PATH, k]
        join(last, c, state.blossom[LINK, c], state.blossom[ENTRY, c], state)
        last = c
    tail = x
    tip = y
    c = state.node[TOP, y]
    while True:
        join(last, c, tail, tip, state)
        if c == ancestor:
            return
        last = c
        tail = state.blossom[ENTRY, c]
        tip = state.blossom[LINK, c]
        c = state.node[TOP, state.blossom[LINK, c]]


@kernel
def shrink(x: int, y: int, pi: Ints, state: Blossoms) -> None:
    """Turn the odd circle that the tight edge x - y closes into an outer blossom."""
    n = state.node.shape[1]
    clock = state.counter[_CLOCK]
    ancestor = common_ancestor(state.node[TOP, x], state.node[TOP, y], state)
    close_circle(x, y, ancestor, state)
    state.counter[_UNUSED] -= 1
    new = state.work[UNUSED, state.counter[_UNUSED]]
    state.blossom[FIRST, new] = ancestor
    state.blossom[BASE, new] = state.blossom[BASE, ancestor]
    state.blossom[DUAL, new] = 0
    state.blossom[PARENT, new] = -1
    label_top(new, OUTER, state.blossom[LINK, ancestor], state.blossom[ENTRY, ancestor], state)
    child = ancestor
    while True:
        change = 2 * (clock - state.blossom[SINCE, child]) if child >= n else 0
        if state.blossom[LABEL, child] == OUTER:
            state.blossom[DUAL, child] += change
        else:
            state.blossom[DUAL, child] -= change
            for k in range(list_leaves(child, state, state.leaves)):
                from_inner_to_outer(state.leaves[k], pi, state)
        state.blossom[LABEL, child] = FREE
        state.blossom[PARENT, child] = new
        child = state.blossom[FOLLOWING, child]
        if child == ancestor:
            break
    for k in range(list_leaves(new, state, state.leaves)):
        state.node[TOP, state.leaves[k]] = new


@kernel
def release_children(blossom: int, state: Blossoms) -> int:
    """Make the children of a blossom top blossoms and list them in PATH; return their number."""
    count = 0
    child = state.blossom[FIRST, blossom]
    while True:
        state.work[PATH, count] = child
        count += 1
        child = state.blossom[FOLLOWING, child]
        if child == state.blossom[FIRST, blossom]:
            break
    for k in range(count):
        child = state.work[PATH, k]
        state.blossom[PARENT, child] = -1
        state.blossom[LABEL, child] = FREE
        for t in range(list_leaves(child, state, state.leaves)):
            state.node[TOP, state.leaves[t]] = child
    return count


@kernel
def relabel_even_way(blossom: int, child: int, pi: Ints, state: Blossoms, events: Events) -> None:
    """Keep the children between a dissolved inner blossom's entry and base in the tree."""
    end = state.blossom[FIRST, blossom]
    forward = even_way_is_forward(child, end, state)
    link = state.blossom[LINK, blossom]
    entry = state.blossom[ENTRY, blossom]
    while True:
        label_top(child, INNER, link, entry, state)
        if child >= state.node.shape[1]:
            add(
                events,
                state.counter[_CLOCK] + state.blossom[DUAL, child] // 2,
                _EXPAND,
                child,
                child,
            )
        if child == end:
            return
        if forward:
            outer = state.blossom[FOLLOWING, child]
            after = state.blossom[FOLLOWING, outer]
            label_top(outer, OUTER, state.blossom[TAIL, child], state.blossom[TIP, child], state)
            link = state.blossom[TAIL, outer]
            entry = state.blossom[TIP, outer]
        else:
            outer = state.blossom[PRECEDING, child]
            after = state.blossom[PRECEDING, outer]
            label_top(outer, OUTER, state.blossom[TIP, outer], state.blossom[TAIL, outer], state)
            link = state.blossom[TIP, after]
            entry = state.blossom[TAIL, after]
        for k in range(list_leaves(outer, state, state.leaves)):
            from_inner_to_outer(state.leaves[k], pi, state)
        child = after


@kernel
def free_child(
    child: int, start: Ints, head: Ints, benefit: Ints, pi: Ints, state: Blossoms, events: Events
) -> Events:
    """Remove a child of a dissolved blossom from the tree; outer neighbours may reach it again."""
    clock = state.counter[_CLOCK]
    count = list_leaves(child, state, state.inner_leaves)
    for k in range(count):
        x = state.inner_leaves[k]
        pi[x] += clock - state.node[NODE_SINCE, x]
        state.node[NODE_LABEL, x] = FREE
        state.node[NODE_SINCE, x] = clock
    for k in range(count):
        x = state.inner_leaves[k]
        events = with_room(events, start[x + 1] - start[x])
        for e in range(start[x], start[x + 1]):
            y = head[e]
            if state.node[NODE_LABEL, y] == OUTER:
                slack = pi[x] + pi[y] - (clock - state.node[NODE_SINCE, y]) - benefit[e]
                if clock + slack <= state.counter[_END]:
                    add(events, clock + slack, _GROW, y, edge_of(start, head, y, x))
    return events


@kernel
def expand(
    blossom: int,
    start: Ints,
    head: Ints,
    benefit: Ints,
    pi: Ints,
    state: Blossoms,
    events: Events,
) -> Events:
    """Dissolve an inner blossom whose dual has reached zero."""
    child = child_with(state.blossom[ENTRY, blossom], blossom, state)
    count = release_children(blossom, state)
    events = with_room(events, count)
    relabel_even_way(blossom, child, pi, state, events)
    for k in range(count):
        if state.blossom[LABEL, state.work[PATH, k]] == FREE:
            events = free_child(state.work[PATH, k], start, head, benefit, pi, state, events)
    state.blossom[FIRST, blossom] = -1
    state.blossom[LABEL, blossom] = FREE
    state.blossom[DUAL, blossom] = 0
    state.work[UNUSED, state.counter[_UNUSED]] = blossom
    state.counter[_UNUSED] += 1
    return events


@kernel
def settle(pi: Ints, state: Blossoms) -> None:
    """Update all duals and remove the labels at the end of a tree."""
    clock = state.counter[_CLOCK]
    for t in range(state.counter[_TOPS]):
        b = state.work[TOPS, t]
        if state.blossom[PARENT, b] != -1 or state.blossom[LABEL, b] == FREE:
            continue
        sign = 1 if state.blossom[LABEL, b] == OUTER else -1
        if b >= state.node.shape[1]:
            state.blossom[DUAL, b] += 2 * sign * (clock - state.blossom[SINCE, b])
        for k in range(list_leaves(b, state, state.leaves)):
            x = state.leaves[k]
            pi[x] -= sign * (clock - state.node[NODE_SINCE, x])
            state.node[NODE_LABEL, x] = FREE
        state.blossom[LABEL, b] = FREE
        state.blossom[LINK, b] = -1
        state.blossom[ENTRY, b] = -1
    state.counter[_TOPS] = 0
    state.counter[_SCANS] = 0


@kernel
def due(
    kind: int,
    a: int,
    b: int,
    now: int,
    head: Ints,
    benefit: Ints,
    pi: Ints,
    state: Blossoms,
) -> int:
    """Return how long after ``now`` an event is really due, or -1 if it is outdated."""
    if kind == _EXPAND:
        if (
            state.blossom[PARENT, a] != -1
            or state.blossom[LABEL, a] != INNER
            or state.blossom[FIRST, a] < 0
        ):
            return -1
        return int(state.blossom[DUAL, a] - 2 * (now - state.blossom[SINCE, a])) // 2
    if state.node[NODE_LABEL, a] != OUTER:
        return -1
    own = pi[a] - (now - state.node[NODE_SINCE, a])
    if kind == _EXPOSE:
        return int(own)
    y = head[b]
    if kind == _GROW:
        if state.node[NODE_LABEL, y] != FREE:
            return -1
        return int(own + pi[y] - benefit[b])
    if state.node[NODE_LABEL, y] != OUTER or state.node[TOP, a] == state.node[TOP, y]:
        return -1
    other = pi[y] - (now - state.node[NODE_SINCE, y])
    return int(own + other - benefit[b]) // 2


@kernel
def grow_tree(
    root: int, start: Ints, head: Ints, benefit: Ints, pi: Ints, mate: Ints, state: Blossoms
) -> None:
    """Grow the tree of an exposed node until the node is matched or may stay exposed."""
    events = new_events(_FIRST_EVENTS)
    state.counter[_CLOCK] = 0
    state.counter[_END] = pi[root] + 1
    label_outer(state.node[TOP, root], NONE, NONE, state)
    ended = _GOES_ON
    while ended == _GOES_ON:
        events = with_room(scan_nodes(start, head, benefit, pi, state, events), _PER_STEP)
        now = events.time[0]
        kind = events.kind[0]
        a = events.a[0]
        b = events.b[0]
        drop(events)
        later = due(kind, a, b, now, head, benefit, pi, state)
        if later < 0:
            continue
        if later > 0:
            add(events, now + later, kind, a, b)
            continue
        state.counter[_CLOCK] = max(state.counter[_CLOCK], now)
        if kind == _GROW:
            ended = grow(a, head[b], mate, state, events)
        elif kind == _SHRINK:
            shrink(a, head[b], pi, state)
        elif kind == _EXPAND:
            events = expand(a, start, head, benefit, pi, state, events)
        else:
            flip_path(a, NONE, state, mate)
            ended = _ENDED
    settle(pi, state)


@kernel
def sizes(state: Blossoms) -> Ints:
    """Return the number of nodes in every blossom."""
    count = np.zeros(state.blossom.shape[1], np.int64)
    for i in range(state.node.shape[1]):
        b = state.blossom[PARENT, i]
        while b >= 0:
            count[b] += 1
            b = state.blossom[PARENT, b]
    return count


@kernel
def new_events(room: int) -> Events:
    """Return an empty heap."""
    return Events(
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.zeros(1, np.int64),
    )


@kernel
def with_room(events: Events, more: int) -> Events:
    """Return the heap with room for ``more`` additional events."""
    size = events.size[0]
    if size + more <= events.time.size:
        return events
    larger = new_events(2 * (size + more))
    for q in range(size):
        put(larger, q, events.time[q], events.kind[q], events.a[q], events.b[q])
    larger.size[0] = size
    return larger


@kernel
def put(events: Events, q: int, time: int, kind: int, a: int, b: int) -> None:
    """Write an event to a position of the heap."""
    events.time[q] = time
    events.kind[q] = kind
    events.a[q] = a
    events.b[q] = b


@kernel
def add(events: Events, time: int, kind: int, a: int, b: int) -> None:
    """Add an event; there must be room."""
    q = events.size[0]
    events.size[0] = q + 1
    while q > 0:
        p = (q - 1) >> 1
        if events.time[p] <= time:
            break
        put(events, q, events.time[p], events.kind[p], events.a[p], events.b[p])
        q = p
    put(events, q, time, kind, a, b)


@kernel
def drop(events: Events) -> None:
    """Remove the next event."""
    size = events.size[0] - 1
    events.size[0] = size
    time = events.time[size]
    q = 0
    while True:
        c = 2 * q + 1
        if c >= size:
            break
        if c + 1 < size and events.time[c + 1] < events.time[c]:
            c += 1
        if events.time[c] >= time:
            break
        put(events, q, events.time[c], events.kind[c], events.a[c], events.b[c])
        q = c
    put(events, q, time, events.kind[size], events.a[size], events.b[size])
