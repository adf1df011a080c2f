"""What the memory manager should hold, in plain dictionaries: one entry a block, nothing compressed, nothing fast."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from pageinn.memory.manager import MemoryManager, PrefixCache
from pageinn.memory.node import Node
from pageinn.memory.scopes import PUBLIC, Scope
from pageinn.memory.tokens import pack, unpack

Tokens = tuple[int, ...]
#: From the root to a block, one step a block: whose it is and its tokens. A tail is a last step of fewer tokens.
Path = tuple[tuple[Scope, Tokens], ...]


@dataclass(eq=False)
class Running:
    """A running sequence: `path` is what it shares, `private` how many blocks it has beside that."""

    scope: Scope
    tokens: list[int]
    stored: int
    path: Path
    private: int


def common(a: Items[int], b: Items[int]) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


def flat(path: Path) -> Tokens:
    return tuple(token for _, tokens in path for token in tokens)


class DumbCache:
    """`stamps` tells of each block in the cache when it was last used."""

    def __init__(self, num_blocks: int, block_size: int, mode: PrefixCache) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.mode = mode
        self.stamps: dict[Path, int] = {}
        self.running: list[Running] = []
        self._clock = 0

    # --- counts ---

    @property
    def free(self) -> int:
        return self.num_blocks - len(self.stamps) - sum(one.private for one in self.running)

    def pinned(self) -> set[Path]:
        return {one.path[:end] for one in self.running for end in range(1, len(one.path) + 1)}

    def kept(self) -> set[Path]:
        return set(self.stamps) - self.pinned()

    def blocks_for(self, count: int) -> int:
        return -(-count // self.block_size)

    # --- matching ---

    def _continuations(self, scope: Scope, start: Path, tokens: Items[int]) -> list[Path]:
        """All whole-block paths from `start` on that hold a prefix of `tokens` and that the scope can read."""
        own_only = any(owner != PUBLIC for owner, _ in start)
        found = [start]
        for path in sorted(self.stamps, key=len):
            owner, block = path[-1]
            parent, allowed = path[:-1], owner == scope or (owner == PUBLIC and not own_only)
            held = flat(path)
            if allowed and parent in found and len(block) == self.block_size and tuple(tokens[: len(held)]) == held:
                found.append(path)
        return found

    def match(self, scope: Scope, tokens: Items[int]) -> tuple[list[Path], int]:
        """The paths that a match may end at, and how many tokens it covers with the partial block."""
        if self.mode is PrefixCache.OFF:
            return [()], 0
        found = self._continuations(scope, (), tokens)
        furthest = max(map(len, found))
        reach = {path: self._partial(scope, path, tokens) for path in found if len(path) == furthest}
        best = max(reach.values())
        return [path for path, partial in reach.items() if partial == best], furthest * self.block_size + best

    def _partial(self, scope: Scope, path: Path, tokens: Items[int]) -> int:
        rest = tokens[len(path) * self.block_size :]
        children = [known[-1] for known in self.stamps if known[:-1] == path]
        return max((common(block, rest) for owner, block in children if owner in (scope, PUBLIC)), default=0)

    def fits(self, path: Path, count: int) -> bool:
        on_path = sum(path[:end] in self.kept() for end in range(1, len(path) + 1))
        return self.blocks_for(count) - len(path) <= self.free + len(self.kept()) - on_path

    # --- acts; each says what must have happened to the cache ---

    def admit(self, scope: Scope, tokens: list[int], path: Path, stored: int) -> Running:
        one = Running(scope, list(tokens), stored, path, 0)
        self.running.append(one)
        self.take(one, self.blocks_for(len(tokens)) - len(path))
        return one

    def fork(self, parent: Running) -> Running:
        child = Running(parent.scope, parent.tokens[: parent.stored], parent.stored, parent.path, 0)
        self.running.append(child)
        self.take(child, int(parent.stored % self.block_size > 0))
        return child

    def take(self, one: Running, count: int) -> None:
        self.evict(count - self.free)
        one.private += count

    def store(self, one: Running, stored: int, path: Path) -> None:
        """One that runs has stored so much and says to be on `path` now: check that it had to be this one."""
        one.stored = stored
        full = stored // self.block_size
        if self.mode is PrefixCache.OFF or full <= len(one.path):
            assert path == one.path
            return
        assert flat(path) == tuple(one.tokens[: full * self.block_size])
        assert path[: len(one.path)] == one.path
        known = self._continuations(one.scope, one.path, one.tokens[: full * self.block_size])
        furthest = max(map(len, known))
        assert path[:furthest] in known, "blocks that the tree had already are not taken from it"
        one.private -= full - len(one.path)
        one.path = path
        for end in range(furthest + 1, full + 1):
            assert path[end - 1][0] == one.scope
            self._drop_covered(path[:end])
            self.stamps[path[:end]] = 0

    def release(self, one: Running) -> None:
        self.running.remove(one)
        self._clock += 1
        for end in range(1, len(one.path) + 1):
            self.stamps[one.path[:end]] = self._clock
        rest = tuple(one.tokens[len(one.path) * self.block_size : one.stored])
        if self.mode is PrefixCache.KEEP and 0 < len(rest) < self.block_size:
            self._keep_tail((*one.path, (one.scope, rest)))
        if self.mode is PrefixCache.LIVE:
            self.evict(len(self.kept()))

    def _keep_tail(self, tail: Path) -> None:
        (scope, rest), parent = tail[-1], tail[:-1]
        for owner in (scope, PUBLIC):
            covering = [
                path
                for path in self.stamps
                if path[:-1] == parent and path[-1] == (owner, rest + path[-1][1][len(rest) :])
            ]
            if covering:
                first = min(covering, key=lambda path: pack(path[-1][1]))
                self.stamps[first] = self._clock
                return
        self._drop_covered(tail)
        self.stamps[tail] = self._clock

    def _drop_covered(self, path: Path) -> None:
        (scope, block), parent = path[-1], path[:-1]
        for end in range(1, len(block)):
            self.stamps.pop((*parent, (scope, block[:end])), None)

    def evict(self, count: int) -> None:
        """The least recently used block that nobody uses and that nothing hangs below, again and again."""
        for _ in range(count):
            parents = {path[:-1] for path in self.stamps}
            leaves = [path for path in self.kept() if path not in parents]
            del self.stamps[min(leaves, key=lambda path: self.stamps[path])]


def path_to(manager: MemoryManager, node: Node) -> Path:
    """The path of a node of the real tree, one step a block."""
    steps: list[tuple[Scope, Tokens]] = []
    while node.parent is not None:
        tokens, size = unpack(node.tokens), manager.block_size
        cut = [(node.account.scope, tuple(tokens[at : at + size])) for at in range(0, len(tokens), size)]
        steps[:0] = cut
        node = node.parent
    return tuple(steps)


def paths_in(manager: MemoryManager) -> set[Path]:
    """All blocks of the real tree."""
    found = set()
    for node in manager.tree.nodes():
        path = path_to(manager, node)
        found.update(path[:end] for end in range(len(path) - len(node.blocks) + 1, len(path) + 1))
    return found
