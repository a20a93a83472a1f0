"""The paged KV cache: a pool of blocks, its free list, and prefix caching over it."""

from collections import OrderedDict
from itertools import islice


class BlockPool:
    """Physical blocks of the KV cache, each of ``block_size`` token slots.

    Blocks are taken from the front of the free list. A block whose contents cannot be hit goes
    back to the front; one with a hash goes to the back, where it can be hit until it is taken
    again (LRU eviction). So the list is always three parts in a row: ``reusable`` (the last
    first), ``unused`` (in their own order) and ``evictable`` (the oldest first).

    block_ids: the physical blocks in the order of their first use.
    """

    def __init__(self, block_ids, enable_caching: bool = False):
        self.num_blocks = self.num_free_blocks = len(block_ids)
        self.enable_caching = enable_caching
        self.reusable: list[int] = []
        self.unused = iter(block_ids)
        self.evictable: OrderedDict[int, None] = OrderedDict()
        self.references: dict[int, int] = {}  # of a block that is taken, with prefix caching
        self.hash_of: dict[int, object] = {}
        self.blocks_of: dict[object, list[int]] = {}  # of a hash, the first inserted first

    @property
    def used(self) -> int:
        """Blocks that are taken; a free one that could be hit is free."""
        return self.num_blocks - self.num_free_blocks

    def get_new_blocks(self, count: int) -> list[int]:
        """``count`` blocks from the front of the free list, which must hold as many."""
        self.num_free_blocks -= count
        blocks = self.reusable[: -count - 1 : -1] if count else []
        del self.reusable[len(self.reusable) - len(blocks) :]
        if len(blocks) < count:
            blocks += islice(self.unused, count - len(blocks))
            blocks += [self._evict_oldest() for _ in range(count - len(blocks))]
        if self.enable_caching:
            self.references.update(dict.fromkeys(blocks, 1))
        return blocks

    def free_blocks(self, blocks: list[int]) -> None:
        """Give back the blocks of a request: those of its tail will be taken first."""
        if not self.enable_caching:
            self.num_free_blocks += len(blocks)
            self.reusable += blocks
            return
        released = [block for block in blocks if self._drop_reference(block)]
        self.num_free_blocks += len(released)
        self.reusable += [block for block in released if block not in self.hash_of]
        for block in reversed(released):
            if block in self.hash_of:
                self.evictable[block] = None

    # ------------------------------------------------------------ prefix caching

    def get_computed_blocks(self, hashes) -> list[int]:
        """The longest run of cached blocks under these hashes, from the first on."""
        blocks = []
        for block_hash in hashes:
            if block_hash not in self.blocks_of:
                break
            blocks.append(self.blocks_of[block_hash][0])
        return blocks

    def count_evictable(self, blocks: list[int]) -> int:
        """How many of these cached blocks are on the free list, so that a hit takes them off."""
        return sum(block in self.evictable for block in blocks)

    def touch(self, blocks: list[int]) -> None:
        """Take blocks that were hit: one request more holds them."""
        for block in blocks:
            if block in self.evictable:
                del self.evictable[block]
                self.num_free_blocks -= 1
            self.references[block] = self.references.get(block, 0) + 1

    def cache_full_block(self, block: int, block_hash) -> None:
        """Let a full block be hit under its hash; equal ones are kept, and the first is used."""
        self.hash_of[block] = block_hash
        self.blocks_of.setdefault(block_hash, []).append(block)

    def _drop_reference(self, block: int) -> bool:
        self.references[block] -= 1
        return not self.references[block] and self.references.pop(block) == 0

    def _evict_oldest(self) -> int:
        block, _ = self.evictable.popitem(last=False)
        block_hash = self.hash_of.pop(block)
        self.blocks_of[block_hash].remove(block)
        if not self.blocks_of[block_hash]:
            del self.blocks_of[block_hash]
        return block


def hash_block_tokens(tokens, block_size: int) -> list[int]:
    """The hash of each full block of a prompt: of its tokens and of the hash before it."""
    hashes, parent = [], 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, *tokens[start : start + block_size]))
        hashes.append(parent)
    return hashes
