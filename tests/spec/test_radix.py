"""RadixTree against a plain set of sequences, and the radix view of the published pages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError
from pagedref.memory import KVManager
from pagedref.memory.prefix import root_message
from pagedref.memory.radix import RadixTree

tokens = st.lists(st.integers(0, 2), max_size=8)


@given(st.integers(1, 3), st.lists(tokens, max_size=8), tokens, st.integers(0, 20))
def test_against_a_set(page_size: int, inserted: list[list[int]], asked: list[int], gone: int) -> None:
    tree, known = RadixTree(page_size), set()
    for sequence in inserted:
        whole = sequence[: len(sequence) // page_size * page_size]
        prefixes = {tuple(whole[:n]) for n in range(page_size, len(whole) + 1, page_size)}
        assert tree.insert(sequence) == page_size * len(prefixes & known)
        known |= prefixes
    assert tree.evictable == page_size * len(known)

    def agree(sequence: tuple[int, ...]) -> int:
        return next((i for i, (a, b) in enumerate(zip(sequence, asked)) if a != b), min(len(sequence), len(asked)))

    assert tree.longest_match(asked) == max((agree(sequence) for sequence in known), default=0)
    assert tree.match(asked) == tree.longest_match(asked) // page_size * page_size
    pin = tree.pin(asked)
    assert tree.protected == tree.match(asked)
    before = tree.evictable
    assert tree.evict(gone) == before - tree.evictable >= min(gone, before)
    assert tree.match(asked) == tree.protected
    tree.unpin(pin)
    assert tree.protected == 0
    with pytest.raises(ContractError, match="unpin: node has no pins"):
        tree.unpin(pin)


def test_policies_choose() -> None:
    left: dict[str, Any] = {"lru": [2, 3], "mru": [1, 3], "fifo": [2, 3], "filo": [1, 2], "priority": [1, 2]}
    for policy, expected in left.items():
        tree = RadixTree(policy=policy)
        for token, priority in ((1, 5), (2, 1), (3, 0)):
            tree.insert([token], priority=priority)
        tree.match([2])
        tree.evict(1)
        assert [token for token in (1, 2, 3) if tree.longest_match([token])] == expected, policy
    with pytest.raises(ContractError, match="policy is unknown, got 'lfu'"):
        RadixTree(policy="lfu")
    with pytest.raises(ContractError, match="page_size is wrong"):
        RadixTree(0)
    assert repr(RadixTree(4)) == "RadixTree(page_size=4: 0 tokens evictable, 0 protected)"


def test_the_view_of_published_pages() -> None:
    made = KVManager(32, 4)
    for prompt in (list(range(12)), [0, 1, 2, 3, 9, 9, 9, 9]):
        seq_id = made.admit(prompt).seq_id
        made.commit(seq_id, made.reserved(seq_id))
    tree, name = made.radix(), root_message()
    assert tree.longest_match([0, 1, 2, 3, 4, 5, 77], namespace=name) == 6
    assert tree.longest_match([0, 1, 2, 3, 9, 9, 9, 9, 1], namespace=name) == 8
    assert tree.longest_match([0, 1], namespace=name) == 2
    assert len(tree.nodes()) == 3, "runs without branches are one node"
    assert KVManager(4, 4).radix().nodes() == []
    made.audit()
