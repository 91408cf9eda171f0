"""Which slot a request gets, and what it need not compute."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtspec.engines.cpu.cache import Placement, PrefixCache

ALPHABET = st.integers(0, 2)


def run(cache: PrefixCache, ids: list[int], generated: list[int] | None = None) -> Placement:
    """A whole request: it computes its ids and what it generates but the last token."""
    placement = cache.acquire(ids)
    held = [*ids, *(generated or [])]
    cache.hold(placement.slot, placement.reused, held[placement.reused :])
    cache.release(placement.slot)
    return placement


def test_a_request_that_continues_an_answer_stays_in_its_slot() -> None:
    cache = PrefixCache(2, 32)
    first = run(cache, [1, 2, 3], generated=[4, 5])
    assert run(cache, [1, 2, 3, 4, 5, 6]) == Placement(first.slot, 5, None)


def test_refused_draft_tokens_are_overwritten_in_place() -> None:
    cache = PrefixCache(2, 32)
    first = run(cache, [1, 2, 3], generated=[7, 7, 7])
    assert run(cache, [1, 2, 3, 4]) == Placement(first.slot, 3, None)


def test_the_same_prompt_again_computes_its_last_row_only() -> None:
    cache = PrefixCache(2, 32)
    first = run(cache, [1, 2, 3, 4])
    assert run(cache, [1, 2, 3, 4]) == Placement(first.slot, 3, None)


def test_a_branch_copies_the_shared_prefix_and_leaves_the_other_answer_whole() -> None:
    cache = PrefixCache(2, 32)
    first = run(cache, [1, 2, 3, 4, 5, 6])
    branch = run(cache, [1, 2, 3, 9, 9])
    assert branch == Placement(1 - first.slot, 3, first.slot)
    assert run(cache, [1, 2, 3, 4, 5, 6, 7]) == Placement(first.slot, 6, None)


def test_a_prefix_of_a_running_request_is_copied() -> None:
    cache = PrefixCache(2, 32)
    running = cache.acquire([1, 2, 3, 4])
    cache.hold(running.slot, 0, [1, 2, 3])
    assert cache.acquire([1, 2, 3, 9]) == Placement(1 - running.slot, 3, running.slot)


def test_the_slot_used_longest_ago_gives_way() -> None:
    cache = PrefixCache(3, 32)
    slots = [run(cache, [start] * 4).slot for start in (1, 2, 3)]
    assert sorted(slots) == [0, 1, 2]
    run(cache, [1, 1, 1, 1, 1])
    assert run(cache, [9, 9]).slot == slots[1]


def test_a_forgotten_slot_gives_nothing() -> None:
    cache = PrefixCache(1, 32)
    placement = cache.acquire([1, 2, 3])
    cache.hold(placement.slot, 0, [1, 2, 3])
    cache.forget(placement.slot)
    assert cache.busy == 0
    assert cache.acquire([1, 2, 3, 4]).reused == 0


@given(
    st.lists(
        st.tuples(st.lists(ALPHABET, min_size=1, max_size=8), st.lists(ALPHABET, max_size=4)), max_size=12
    ),
    st.integers(1, 4),
)
def test_what_is_reused_is_the_longest_prefix_any_slot_holds(
    requests: list[tuple[list[int], list[int]]], slots: int
) -> None:
    cache = PrefixCache(slots, 32)
    contents: dict[int, list[int]] = {}
    for ids, generated in requests:
        lengths = {slot: common(held, ids) for slot, held in contents.items()}
        placement = run(cache, ids, generated)
        assert placement.reused == min(max(lengths.values(), default=0), len(ids) - 1)
        source = placement.slot if placement.copied_from is None else placement.copied_from
        assert placement.reused == 0 or lengths[source] >= placement.reused
        contents[placement.slot] = ids + generated


def common(held: list[int], ids: list[int]) -> int:
    length = 0
    while length < min(len(held), len(ids)) and held[length] == ids[length]:
        length += 1
    return length
