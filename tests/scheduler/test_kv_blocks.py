"""The free list and the prefix cache, by hand."""

from vllm_tuning.scheduler.kv_blocks import BlockPool, hash_block_tokens


def test_blocks_come_in_order_and_go_back_to_the_front_tail_first():
    pool = BlockPool(range(1, 7))
    first, second = pool.get_new_blocks(3), pool.get_new_blocks(2)
    assert (first, second, pool.used, pool.num_free_blocks) == ([1, 2, 3], [4, 5], 5, 1)
    pool.free_blocks(first)
    assert pool.get_new_blocks(4) == [3, 2, 1, 6]
    assert pool.get_new_blocks(0) == []


def test_with_prefix_caching_blocks_without_a_hash_go_to_the_front_as_well():
    pool = BlockPool(range(1, 7), enable_caching=True)
    first, second = pool.get_new_blocks(2), pool.get_new_blocks(2)
    pool.free_blocks(first)
    pool.free_blocks(second)
    assert pool.get_new_blocks(5) == [4, 3, 2, 1, 5]


def cached(pool, *hashes):
    blocks = pool.get_new_blocks(len(hashes))
    for block, block_hash in zip(blocks, hashes, strict=True):
        if block_hash:
            pool.cache_full_block(block, block_hash)
    return blocks


def test_cached_blocks_are_evicted_last_the_oldest_first_a_tail_before_its_head():
    pool = BlockPool(range(1, 9), enable_caching=True)
    early, late = cached(pool, "a", "b", None), cached(pool, "c", "d")
    pool.free_blocks(early)
    pool.free_blocks(late)
    # the unhashed 3, the unused 6 7 8, then 2 and 1 of the early request, 5 and 4 of the late one
    assert pool.get_new_blocks(5) == [3, 6, 7, 8, 2]
    assert pool.get_computed_blocks(["a", "b"]) == [1]
    assert pool.get_new_blocks(2) == [1, 5]
    assert pool.get_computed_blocks(["a", "b"]) == [] and pool.get_computed_blocks("cd") == [4]


def test_a_hit_keeps_a_block_from_eviction_until_its_last_holder_leaves():
    pool = BlockPool(range(1, 4), enable_caching=True)
    blocks = cached(pool, "a", "b")
    pool.free_blocks(blocks)
    assert pool.used == 0 and pool.count_evictable([1, 2]) == 2
    pool.touch([1])
    assert pool.used == 1 and pool.count_evictable([1, 2]) == 1
    pool.touch([1])
    pool.free_blocks([1])
    assert pool.used == 1  # one request still holds it
    assert pool.get_new_blocks(2) == [3, 2] and pool.num_free_blocks == 0
    pool.free_blocks([1])
    assert pool.get_new_blocks(1) == [1] and not pool.get_computed_blocks("a")


def test_of_equal_blocks_the_first_is_hit_until_it_is_evicted():
    pool = BlockPool(range(1, 3), enable_caching=True)
    first, second = cached(pool, "a"), cached(pool, "a")
    assert pool.get_computed_blocks("a") == first == [1]
    pool.free_blocks(first)
    assert pool.get_new_blocks(1) == [1]
    assert pool.get_computed_blocks("a") == second == [2]


def test_the_hash_of_a_block_holds_all_before_it_and_only_full_blocks_have_one():
    one, two = hash_block_tokens(range(11), 4), hash_block_tokens([9, *range(1, 11)], 4)
    assert len(one) == len(two) == 2
    assert one[0] != two[0] and one[1] != two[1]
    assert hash_block_tokens(range(8), 4) == one and hash_block_tokens(range(3), 4) == []
    assert len(set(hash_block_tokens([7] * 40, 4))) == 10  # equal tokens, other prefixes
