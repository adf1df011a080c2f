"""What the memory manager should hold, in plain dictionaries: one entry a block, nothing compressed, nothing fast.

What is on the device is predicted to the block. What is on the host is taken over from the manager after each act, and
`take_over` says whether that was a way the host may change.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from pageinn.memory.manager import MemoryManager
from pageinn.memory.matching import Place
from pageinn.memory.node import Node
from pageinn.memory.questions import PrefixCache
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
    """`stamps` tells of each block in the cache when it was last used; `device` and `host` say where it is.

    parked: the paths that parked sequences want.
    """

    def __init__(self, num_blocks: int, block_size: int, mode: PrefixCache, host_blocks: int = 0) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.mode = mode
        self.host_blocks = host_blocks
        self.stamps: dict[Path, int] = {}
        self.device: set[Path] = set()
        self.host: set[Path] = set()
        self.parked: list[Path] = []
        self.running: list[Running] = []
        self._clock = 0

    # --- counts ---

    @property
    def free(self) -> int:
        return self.num_blocks - len(self.device) - sum(one.private for one in self.running)

    def pinned(self) -> set[Path]:
        return {one.path[:end] for one in self.running for end in range(1, len(one.path) + 1)}

    def kept(self) -> set[Path]:
        return self.device - self.pinned()

    def held(self) -> set[Path]:
        return {path[:end] for path in self.parked for end in range(1, len(path) + 1)}

    def blocks_for(self, count: int) -> int:
        return -(-count // self.block_size)

    # --- matching ---

    def _continuations(self, scope: Scope, start: Path, tokens: Items[int], storing: bool = False) -> list[Path]:
        """All whole-block paths from `start` on that hold a prefix of `tokens` and that the scope can read.

        storing: whether it has computed them itself, and so has no use for others' that are on the host alone.
        """
        own_only = any(owner != PUBLIC for owner, _ in start)
        found = [start]
        for path in sorted(self.stamps, key=len):
            owner, block = path[-1]
            parent, allowed = path[:-1], owner == scope or (owner == PUBLIC and not own_only)
            held = flat(path)
            if storing and owner != scope and path not in self.device:
                continue
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
        return self.blocks_for(count) - len(path) + self.absent(path) <= self.free + len(self.kept()) - on_path

    def absent(self, path: Path) -> int:
        return sum(path[:end] not in self.device for end in range(1, len(path) + 1))

    # --- acts; each says what must have happened to the cache ---

    def admit(self, scope: Scope, tokens: list[int], path: Path, stored: int) -> Running:
        one = Running(scope, list(tokens), stored, path, 0)
        self.running.append(one)
        self.evict(self.absent(path) - self.free)
        self.device.update(path[:end] for end in range(1, len(path) + 1))
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
        known = self._continuations(one.scope, one.path, one.tokens[: full * self.block_size], True)
        furthest = max(map(len, known))
        assert path[:furthest] in known, "blocks that the tree had already are not taken from it"
        one.private -= full - len(one.path)
        one.path = path
        self.device.update(path[:end] for end in range(1, full + 1))
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

    def park(self, one: Running) -> Path:
        """Which path is held for it now."""
        self.running.remove(one)
        self._clock += 1
        for end in range(1, len(one.path) + 1):
            self.stamps[one.path[:end]] = self._clock
        for end in range(len(one.path), 0, -1):
            path = one.path[:end]
            if path in self.pinned() or any(known[:-1] == path for known in self.device):
                break
            self.device.remove(path)
        rest = tuple(one.tokens[len(one.path) * self.block_size : one.stored])
        held = (*one.path, (one.scope, rest)) if rest else one.path
        self.stamps[held] = self._clock
        self.parked.append(held)
        if self.mode is PrefixCache.LIVE:
            self.evict(len(self.kept()))
        return held

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
                if first[-1] == (scope, rest):
                    self.device.add(first)
                return
        self._drop_covered(tail)
        self.stamps[tail] = self._clock
        self.device.add(tail)

    def _drop_covered(self, path: Path) -> None:
        (scope, block), parent = path[-1], path[:-1]
        for end in range(1, len(block)):
            covered = (*parent, (scope, block[:end]))
            if covered in self.stamps and covered not in self.held():
                self._drop(covered)

    def _drop(self, path: Path) -> None:
        del self.stamps[path]
        self.device.discard(path)
        self.host.discard(path)

    def evict(self, count: int) -> None:
        """The least recently used block that nobody uses and below which nothing is on the device, again and again."""
        for _ in range(count):
            parents = {path[:-1] for path in self.device}
            leaves = [path for path in self.kept() if path not in parents]
            self.device.remove(min(leaves, key=lambda path: self.stamps[path]))

    # --- the host ---

    def insert(self, path: Path) -> None:
        """Something that was used just now is on the host, and so is all above it."""
        self._clock += 1
        for end in range(1, len(path) + 1):
            self.stamps[path[:end]] = self._clock

    def take_over(self, host: set[Path], parked: list[Path], stores: int, dropping: bool = False) -> set[Path]:
        """Take over what is on the host after an act that took so many slots; says what is gone from everywhere.

        parked: what is still held. dropping: whether the act drops something without need.
        """
        room = self.host_blocks - len(self.host)
        gone = {path for path in self.stamps if path not in self.device and path not in host}
        assert all(path in self.stamps for path in host)
        assert all(path[:-1] in self.device | host or len(path) == 1 for path in self.stamps.keys() - gone)
        if self.mode is PrefixCache.KEEP and self.host_blocks and not dropping and stores + len(gone) <= room:
            assert not gone, "something was dropped that there was room for"
            assert self.host <= host, "a copy was dropped without need"
        for path in gone:
            del self.stamps[path]
        assert all(path in self.stamps for path in parked), "a parked path is held and gone"
        self.host, self.parked = set(host), parked
        return gone

    def host_leaves(self) -> set[Path]:
        """What may be dropped from the host next."""
        parents = {path[:-1] for path in self.stamps}
        return self.host - self.device - parents - self.held()


def path_to(manager: MemoryManager, node: Node) -> Path:
    """The path of a node of the real tree, one step a block."""
    steps: list[tuple[Scope, Tokens]] = []
    while node.parent is not None:
        tokens, size = unpack(node.tokens), manager.block_size
        cut = [(node.account.scope, tuple(tokens[at : at + size])) for at in range(0, len(tokens), size)]
        steps[:0] = cut
        node = node.parent
    return tuple(steps)


def path_of(manager: MemoryManager, place: Place) -> Path:
    """The path to a place of the real tree."""
    path = path_to(manager, place.node)
    return path[: len(path) - place.node.size + place.taken]


def paths_in(manager: MemoryManager, nodes: Iterable[Node]) -> set[Path]:
    """All blocks of these nodes."""
    found = set()
    for node in nodes:
        path = path_to(manager, node)
        found.update(path[:end] for end in range(len(path) - node.size + 1, len(path) + 1))
    return found
