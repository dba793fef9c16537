"""`skerry function graph`: which topic triggers which function, and where that publishes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from skerry.cli.common import TIMEOUT, AsJson, Connect, Timeout, connected, run
from skerry.cli.output import draw, emit_document, note
from skerry.functions.messages import FunctionInfo, published_to
from skerry.model.pattern import Pattern

if TYPE_CHECKING:
    from rich.tree import Tree

EXAMPLE = "Example: skerry function graph"


class Node(msgspec.Struct, frozen=True):
    """A function between topics."""

    name: str
    state: str
    topic: str
    """What triggers it, as it was deployed."""
    inputs: tuple[str, ...]
    """The topics that match."""
    outputs: tuple[str, ...]
    """Where it was seen to publish to."""


class Graph(msgspec.Struct, frozen=True):
    """All functions, and the circles that they make."""

    functions: tuple[Node, ...]
    loops: tuple[tuple[str, ...], ...]
    """Functions that trigger each other, in order; each circle once."""


def graph(connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False) -> None:
    """Show how topics and functions are chained.

    Where a function publishes to is what was seen of it since its process was started."""

    async def ask() -> list[FunctionInfo]:
        async with connected(connect, timeout) as client:
            return await client.functions()

    found = graph_of(run(ask()))
    if as_json:
        emit_document(found)
        return
    if not found.functions:
        note("no functions yet; deploy one with `skerry function deploy avg.py --topic sensors`")
        return
    for tree in _trees(found):
        draw(tree)
    for loop in found.loops:
        note(
            f"warning: {' → '.join((*loop, loop[0]))} go in a circle; an event that went through "
            "16 functions goes to the dead letters"
        )


def graph_of(infos: list[FunctionInfo]) -> Graph:
    """What is chained to what."""
    nodes = tuple(
        Node(
            info.name,
            info.state,
            info.function.current.settings.topic,
            tuple(info.logs),
            published_to(info),
        )
        for info in infos
    )
    return Graph(nodes, _loops(nodes))


def triggered(nodes: tuple[Node, ...], topic: str) -> list[Node]:
    """The functions that an event of a topic triggers."""
    return [node for node in nodes if Pattern.parse(node.topic).matches(topic)]


def _loops(nodes: tuple[Node, ...]) -> tuple[tuple[str, ...], ...]:
    after = {
        node.name: sorted({t.name for topic in node.outputs for t in triggered(nodes, topic)})
        for node in nodes
    }
    found: dict[tuple[str, ...], None] = {}

    def walk(path: list[str]) -> None:
        for name in after[path[-1]]:
            if name == path[0]:
                found.setdefault(tuple(path))
            elif name > path[0] and name not in path:  # each circle begins with its first name
                walk([*path, name])

    for name in sorted(after):
        walk([name])
    return tuple(found)


def _trees(graph: Graph) -> list[Tree]:
    """A tree for each topic that no function publishes to; and for what only goes in circles."""
    nodes = graph.functions
    published = {topic for node in nodes for topic in node.outputs}
    fed = {node.name for topic in published for node in triggered(nodes, topic)}
    first = [node for node in nodes if node.name not in fed]
    shown: set[str] = set()
    return [_tree(nodes, node, shown) for node in (*first, *nodes) if node.name not in shown]


def _tree(nodes: tuple[Node, ...], node: Node, shown: set[str]) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    matching = [topic for topic in node.inputs if topic != node.topic]
    means = f"  ({', '.join(matching)})" if matching else ""
    tree = Tree(Text(node.topic + means))
    _grow(tree, nodes, node, shown, ())
    return tree


def _grow(
    tree: Tree, nodes: tuple[Node, ...], node: Node, shown: set[str], path: tuple[str, ...]
) -> None:
    from rich.text import Text

    if node.name in path:
        tree.add(Text(f"↺ {node.name}: a loop"))
        return
    shown.add(node.name)
    branch = tree.add(Text(f"ƒ {node.name}  {node.state}"))
    for topic in node.outputs:
        below = branch.add(Text(topic))
        for after in triggered(nodes, topic):
            _grow(below, nodes, after, shown, (*path, node.name))
