"""What the layers of a model keep in the KV cache, whatever serves it. Sizes in elements; bytes come with a dtype and GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer that keeps a key and a value of every token it can still see."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    """Tokens it looks back; ``None``: all of them."""
    chunk: int | None = None
    """Tokens of the chunk it looks into (Llama 4), instead of a window."""


@dataclass(frozen=True, slots=True)
class Latent:
    """A layer of multi-head latent attention: one vector for a token, the same on every GPU."""

    rank: int
    rope_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Indexer:
    """The key cache of sparse attention's indexer beside a latent layer: 8-bit keys and a float32 scale for each 128 of them."""

    dim: int


@dataclass(frozen=True, slots=True)
class LayerState:
    """A layer with a state of fixed size for each sequence: state space, linear attention, short convolution."""

    kind: str
    recurrent: int
    """Elements of the recurrent state; tensor parallelism divides them."""
    recurrent_bytes: int
    """Bytes of one of them."""
    convolution: int = 0
    """Bytes of the convolution's last columns that tensor parallelism divides."""
    groups: int = 0
    """Mamba 2: groups of B and C; repeated until the GPUs divide them."""
    group_bytes: int = 0

    def bytes_per_gpu(self, gpus: int, at_least: int = 0) -> int:
        """Bytes on one GPU, a recurrent element taking ``at_least`` so many (vLLM 0.32 mamba2_state_shape).

        ``layers/mamba/mamba_utils.py``, extra_groups_for_head_shards.
        """
        groups = self.groups if self.groups % gpus == 0 else gpus
        recurrent = self.recurrent * max(self.recurrent_bytes, at_least)
        return (recurrent + self.convolution + groups * self.group_bytes) // gpus


MAMBA2 = "Mamba 2"
Layer = Attention | Latent | Indexer | LayerState


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder as the planner understands it."""

    layers: tuple[tuple[Layer, ...], ...]
    """For each layer of the model the caches it keeps: none, one, or several (attention beside a state)."""
    heads: int | None
    """Query heads: tensor parallelism divides them."""
    kind: str
    """In words: ``32 layers x 8 KV heads x 128``."""
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Why a layer may keep less than is counted: the answer is then an upper bound of the bytes."""
    own_kv_dtype: str | None = None
    """What ``--kv-cache-dtype auto`` becomes with this checkpoint; ``None``: the model's own 16 bits."""
    own_dtype_since: tuple[int, ...] = ()
    """The first vLLM that follows it."""

    @property
    def caches(self) -> list[Layer]:
        """Every cache of every layer, in order."""
        return [cache for layer in self.layers for cache in layer]
