"""The tree of blocks on disk against a slow twin."""

from hypothesis import given, settings
from hypothesis import strategies as st

from swiftlm_engine.brain.tokens import TOKEN_BYTES, pack, unpack
from swiftlm_engine.prefix import block_tree
from swiftlm_engine.prefix.block_tree import (
    Block,
    BlockTree,
    State,
    block_id,
    chain_of,
    ends_of,
    state_id,
)

WINDOW = 3


def add_prefix(
    tree: BlockTree, tokens: list[int], now: float = 0.0, held_from: int = 0, step: int = 4
) -> Block:
    """Plan blocks for what is missing, as the offers do: all ready, one byte a token."""
    packed = pack(tokens)
    block, length = tree.attach_point(packed, b"")
    while length < len(tokens):
        end = min(length + step, len(tokens))
        piece = packed[length * TOKEN_BYTES : end * TOKEN_BYTES]
        low = min(end, max(held_from, length))
        name = block_id(block, length, piece, b"")
        block = Block(name, block, length, piece, b"", (low,), end - length, now, True)
        tree.add(block)
        length = end
    assert block is not None
    return block


def add_state(tree: BlockTree, block: Block, position: int, floor: int, now: float = 0.0) -> State:
    state = State(state_id(block, position), block, position, floor, False, 1, now, True)
    tree.add(state)
    return state


def path_of(block: Block, length: int) -> list[int]:
    chain = tuple(chain_of(block))
    tokens = []
    for piece, end in zip(chain, ends_of(chain, length), strict=True):
        tokens += unpack(piece.tokens)[: end - piece.start]
    return tokens


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)


@settings(max_examples=200, deadline=None)
@given(stored=st.lists(st.tuples(prompts, st.integers(0, 12)), max_size=8), asked=prompts)
def test_restored_tokens_are_those_of_the_prompt_and_as_many_as_possible(stored, asked):
    tree = BlockTree((), needs_state=False)
    for tokens, _ in stored:
        add_prefix(tree, tokens)
        tree.check_integrity()
    route = tree.find(pack(asked), len(asked), b"")
    best = max((common(tokens, asked) for tokens, _ in stored), default=0)
    assert (route.length if route else 0) == best
    if route:
        assert path_of(route.blocks[-1], route.length) == asked[:best]


@settings(max_examples=200, deadline=None)
@given(stored=st.lists(st.tuples(prompts, st.integers(0, 12)), max_size=8), asked=prompts)
def test_windows_are_served_only_where_every_token_of_the_window_is_held(stored, asked):
    tree = BlockTree((WINDOW,), needs_state=False)
    held: set[tuple[int, ...]] = set()  # prefixes whose last token's window KV is on disk
    for tokens, held_from in stored:
        _, length = tree.attach_point(pack(tokens), b"")
        add_prefix(tree, tokens, held_from=held_from)
        held |= {tuple(tokens[: i + 1]) for i in range(max(held_from, length), len(tokens))}
    route = tree.find(pack(asked), len(asked), b"")
    if route:
        needed = range(max(0, route.length - WINDOW), route.length)
        assert all(tuple(asked[: i + 1]) in held for i in needed)


@settings(max_examples=200, deadline=None)
@given(
    stored=st.lists(st.tuples(prompts, st.integers(0, 14)), max_size=8),
    asked=prompts,
    limit=st.integers(0, 14),
)
def test_states_serve_what_they_can_and_the_longest_wins(stored, asked, limit):
    tree = BlockTree((), needs_state=True)
    states = {}
    for tokens, floor in stored:
        block = add_prefix(tree, tokens)
        if tree.get(state_id(block, len(tokens))) is None and block.end >= len(tokens):
            floor = min(floor, len(tokens))
            add_state(tree, block, len(tokens), floor)
            states.setdefault(tuple(tokens), floor)
    route = tree.find(pack(asked[:limit]), min(limit, len(asked)), b"")
    lengths = (
        (min(common(list(tokens), asked[:limit]), len(tokens)), floor)
        for tokens, floor in states.items()
    )
    best = max((length for length, floor in lengths if length >= floor), default=0)
    assert (route.length if route else 0) == best


def common(a: list[int], b: list[int]) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


def test_edited_conversation_adds_only_what_differs():
    tree = BlockTree((), needs_state=False)
    add_prefix(tree, [1] * 8 + [2] * 4)
    before = tree.nbytes
    edited = add_prefix(tree, [1] * 8 + [2, 2] + [3] * 4)
    assert tree.nbytes == before + 4
    assert path_of(edited, 14) == [1] * 8 + [2, 2] + [3] * 4


def test_file_that_is_still_being_written_is_not_served():
    tree = BlockTree((), needs_state=False)
    add_prefix(tree, [1, 2, 3, 4])
    tail = add_prefix(tree, [1, 2, 3, 4, 5])
    tail.is_ready = False
    assert tree.find(pack([1, 2, 3, 4, 5]), 5, b"").length == 4
    tail.is_ready = True
    assert tree.find(pack([1, 2, 3, 4, 5]), 5, b"").length == 5


def test_removing_a_block_removes_what_hangs_on_it_leaves_first():
    tree = BlockTree((), needs_state=False)
    tail = add_prefix(tree, [1] * 12)
    state = add_state(tree, tail, 12, 12)
    first = chain_of(tail)[0]
    gone = tree.remove(first)
    assert gone[-1] is first
    assert gone.index(state) < gone.index(tail)
    assert (len(tree), tree.nbytes) == (0, 0)


def test_what_hangs_on_others_is_older_than_they_are():
    tree = BlockTree((), needs_state=False)
    a = add_prefix(tree, [1] * 8, now=1.0)
    b = add_prefix(tree, [1] * 4 + [2] * 4, now=2.0)
    assert tree.by_age()[0] is a
    tree.touch(a, 3.0)
    assert tree.by_age()[0] is b
    assert tree.by_age()[-1] is chain_of(a)[0]
    tree.check_integrity()


def test_salt_separates_trees():
    tree = BlockTree((), needs_state=False)
    add_prefix(tree, [1, 2, 3])
    assert tree.find(pack([1, 2, 3]), 3, b"image") is None


def test_a_search_follows_a_long_conversation_to_its_first_block_once(monkeypatch):
    tree = BlockTree((), needs_state=False)
    tokens = list(range(400))
    add_prefix(tree, tokens)
    followed = []
    monkeypatch.setattr(
        block_tree, "chain_of", lambda block: (followed.append(block), chain_of(block))[1]
    )
    route = tree.find(pack(tokens), 400, b"")
    assert route is not None
    assert (route.length, len(route.blocks), len(followed)) == (400, 100, 1)
