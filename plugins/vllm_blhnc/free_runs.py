"""Free block ids as runs of consecutive ids: which ids to hand out so that they lie side by side.

Standard library only. An *extent* is a maximal run of consecutive free ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["FreeRuns", "IdSet"]

_WORD = 1024  # bits; two levels of words this long cover a million ids


class IdSet:
    """A set of whole numbers in ``range(limit)`` that answers which member is next above or below a number.

    Two levels of bit words, so every method is a constant number of operations on integers of 1,024 bits (and on
    one of ``limit / 1024`` bits).
    """

    def __init__(self, limit: int):
        self._words = [0] * (limit // _WORD + 1)
        self._filled = 0  # bit i: word i is not empty

    def add(self, number: int) -> None:
        """Put a number in; harmless if it is a member."""
        i, bit = divmod(number, _WORD)
        self._words[i] |= 1 << bit
        self._filled |= 1 << i

    def discard(self, number: int) -> None:
        """Take a number out; harmless if it is no member."""
        i, bit = divmod(number, _WORD)
        self._words[i] &= ~(1 << bit)
        if not self._words[i]:
            self._filled &= ~(1 << i)

    def floor(self, number: int) -> int | None:
        """The largest member that is not above the number."""
        i, bit = divmod(number, _WORD)
        if below := self._words[i] & ((2 << bit) - 1):
            return i * _WORD + below.bit_length() - 1
        if words := self._filled & ((1 << i) - 1):
            i = words.bit_length() - 1
            return i * _WORD + self._words[i].bit_length() - 1
        return None

    def ceil(self, number: int) -> int | None:
        """The smallest member that is not below the number."""
        i, bit = divmod(number, _WORD)
        if above := self._words[i] >> bit:
            return number + _lowest(above)
        if words := self._filled >> (i + 1):
            i += 1 + _lowest(words)
            return i * _WORD + _lowest(self._words[i])
        return None


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


class FreeRuns:
    """The free ids of ``range(limit)``, kept as extents that merge as ids come back.

    Every operation on an extent is a constant number of dictionary and `IdSet` operations, so `take` and `add`
    cost a constant per run and less per block.
    """

    def __init__(self, limit: int):
        self._length: dict[int, int] = {}  # first id of an extent -> ids in it
        self._first: dict[int, int] = {}  # last id of an extent -> its first
        self._starts = IdSet(limit)
        self._by_length: dict[int, dict[int, None]] = {}  # ids in an extent -> first ids, in order of arrival
        self._lengths = IdSet(limit + 1)
        self._limit = limit
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        start = self._starts.floor(number)
        return start is not None and number < start + self._length[start]

    def __iter__(self) -> Iterator[int]:
        """All free ids, ascending."""
        start = self._starts.ceil(0)
        while start is not None:
            end = start + self._length[start]
            yield from range(start, end)
            start = self._starts.ceil(end) if end < self._limit else None

    def extents(self) -> Iterator[tuple[int, int]]:
        """All extents as (first id, number of ids), ascending."""
        return iter(sorted(self._length.items()))

    def add(self, numbers: Iterable[int]) -> None:
        """Put ids back. Raises ValueError for one that is free already: it would be handed out twice."""
        for first, length in _runs(numbers):
            self._add_run(first, length)

    def remove(self, number: int) -> None:
        """Take one id out, wherever it lies. Raises KeyError if it is not free."""
        start = self._starts.floor(number)
        if start is None or number >= start + self._length[start]:
            raise KeyError(number)
        length = self._drop(start)
        self._put(start, number - start)
        self._put(number + 1, start + length - number - 1)

    def take(self, count: int, after: int | None = None) -> list[int]:
        """Hand out `count` ids in as few runs as there are.

        after: the id these will follow. If the next id is free the list begins there, so that the run goes on.
        The rest comes from the shortest extent that holds it, or where none does from the longest ones. Raises
        ValueError if fewer ids are free.
        """
        if count > self._count:
            raise ValueError(f"cannot take {count} block ids, {self._count} are free")
        taken: list[int] = []
        if count and after is not None and after + 1 in self._length:
            taken += self._take_front(after + 1, count)
        while len(taken) < count:
            need = count - len(taken)
            length = self._lengths.ceil(need) or self._lengths.floor(self._limit)
            assert length is not None, "ids are free, so there is an extent"
            start, _ = self._by_length[length].popitem()  # the dictionary's only way to its end that costs a constant
            taken += self._take_front(start, need)
        return taken

    def _take_front(self, start: int, most: int) -> range:
        length = self._drop(start)
        count = min(length, most)
        self._put(start + count, length - count)
        return range(start, start + count)

    def _add_run(self, start: int, length: int) -> None:
        if not 0 <= start <= start + length <= self._limit:
            raise ValueError(f"block ids {start} to {start + length - 1} are not in range({self._limit})")
        before = self._starts.floor(start + length - 1)
        if before is not None and before + self._length[before] > start:
            raise ValueError(f"block ids {start} to {start + length - 1} are not all in use, so they cannot be freed")
        if start - 1 in self._first:
            left = self._first[start - 1]
            length += self._drop(left)
            start = left
        if start + length in self._length:
            length += self._drop(start + length)
        self._put(start, length)

    def _put(self, start: int, length: int) -> None:
        if not length:
            return
        self._length[start] = length
        self._first[start + length - 1] = start
        self._starts.add(start)
        self._by_length.setdefault(length, {})[start] = None
        self._lengths.add(length)
        self._count += length

    def _drop(self, start: int) -> int:
        length = self._length.pop(start)
        del self._first[start + length - 1]
        self._starts.discard(start)
        same = self._by_length[length]
        same.pop(start, None)  # `take` has it out already
        if not same:
            del self._by_length[length]
            self._lengths.discard(length)
        self._count -= length
        return length


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive ids as (first, length), whether they count up or down in `numbers`."""
    first = last = None
    for number in numbers:
        if first is not None and last is not None:
            if number == last + 1:
                last = number
                continue
            if number == first - 1:
                first = number
                continue
            yield first, last - first + 1
        first = last = number
    if first is not None and last is not None:
        yield first, last - first + 1
