"""Which of several kvwatches watches a target: each decides alone, and all decide alike."""

from __future__ import annotations

from hashlib import blake2b


def shard_of(url: str, total: int) -> int:
    """The shard, 0 to *total* - 1, that watches the target at *url*.

    Rendezvous hashing (Thaler and Ravishankar, 1998): the shard whose hash with the URL is highest. With one shard more, only the
    targets that the new one wins move, on average one of *total* + 1; the others stay where their history is.
    """
    return max(range(total), key=lambda shard: blake2b(f"{shard} {url}".encode(), digest_size=8).digest())
