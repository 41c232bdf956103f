"""A radix tree over packed tokens. Nodes hold values by key; what they mean is the caller's.

Invariant: a node other than the root holds a value or has at least two children (`prune` restores
it after a removal).
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from swiftlm_engine.brain.tokens import TOKEN_BYTES, common_tokens

K = TypeVar("K")
V = TypeVar("V")


class Node(Generic[K, V]):
    """`label` are the tokens from the parent to here; `depth` counts tokens from the root."""

    __slots__ = ("children", "depth", "label", "parent", "values")

    def __init__(self, parent: "Node[K, V] | None" = None, label: bytes = b"") -> None:
        self.parent = parent
        self.label = label
        self.depth: int = (parent.depth if parent else 0) + len(label) // TOKEN_BYTES
        self.children: dict[bytes, Node[K, V]] = {}
        self.values: dict[K, V] = {}

    @property
    def is_bare(self) -> bool:
        """True for a root that leads nowhere."""
        return not self.values and not self.children

    def upwards(self) -> "Iterator[Node[K, V]]":
        """This node, then all above it up to the root."""
        current: Node[K, V] | None = self
        while current is not None:
            yield current
            current = current.parent

    def subtree(self, skip: "Node[K, V] | None" = None) -> "Iterator[Node[K, V]]":
        """This node and all below it, except `skip` and what is below that."""
        stack = [self]
        while stack:
            top = stack.pop()
            yield top
            stack.extend(child for child in top.children.values() if child is not skip)

    def path_tokens(self) -> bytes:
        return b"".join(reversed([node.label for node in self.upwards()]))


def walk(root: Node[K, V], tokens: bytes) -> list[tuple[Node[K, V], int]]:
    """Nodes along the tokens with the length agreed at each; the last may agree only in part."""
    path, node, agreed = [(root, 0)], root, 0
    while agreed * TOKEN_BYTES < len(tokens):
        rest = tokens[agreed * TOKEN_BYTES :]
        child = node.children.get(rest[:TOKEN_BYTES])
        if child is None:
            break
        common = common_tokens(child.label, rest)
        agreed += common
        path.append((child, agreed))
        if common * TOKEN_BYTES < len(child.label):
            break
        node = child
    return path


def grow(root: Node[K, V], tokens: bytes) -> Node[K, V]:
    """The node for exactly these tokens, made if need be."""
    node = root
    while tokens:
        child = node.children.get(tokens[:TOKEN_BYTES])
        if child is None:
            child = Node(node, tokens)
            node.children[tokens[:TOKEN_BYTES]] = child
            return child
        common = common_tokens(child.label, tokens) * TOKEN_BYTES
        if common < len(child.label):
            child = _split(child, common)
        node, tokens = child, tokens[common:]
    return node


def prune(node: Node[K, V]) -> None:
    """Remove or join nodes that hold nothing, from here upwards."""
    current = node
    while current.parent is not None and not current.values and len(current.children) < 2:
        if current.children:
            _join(current)
            return
        del current.parent.children[current.label[:TOKEN_BYTES]]
        current = current.parent


def check_nodes(root: Node[K, V]) -> None:
    """Raise AssertionError where the tree is malformed. Slow."""
    for node in root.subtree():
        if node is not root and not node.values and len(node.children) < 2:
            raise AssertionError("radix tree: a node holds nothing")
        if node.depth * TOKEN_BYTES != len(node.path_tokens()):
            raise AssertionError("radix tree: wrong depth")
        for first, child in node.children.items():
            if child.parent is not node or child.label[:TOKEN_BYTES] != first:
                raise AssertionError("radix tree: child in the wrong place")


def _split(node: Node[K, V], at: int) -> Node[K, V]:
    """Cut the node's label after `at` bytes; returns the new upper node."""
    parent = node.parent
    assert parent is not None, "the root has no label"
    upper = Node(parent, node.label[:at])
    parent.children[upper.label[:TOKEN_BYTES]] = upper
    node.label, node.parent = node.label[at:], upper
    upper.children[node.label[:TOKEN_BYTES]] = node
    return upper


def _join(node: Node[K, V]) -> None:
    """Put the only child in the place of an empty node."""
    (child,) = node.children.values()
    assert node.parent is not None, "the root is never joined"
    child.label, child.parent = node.label + child.label, node.parent
    node.parent.children[child.label[:TOKEN_BYTES]] = child
