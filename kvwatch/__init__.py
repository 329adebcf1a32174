"""kvwatch: says what holds a vLLM server back, the KV cache, the compute side or nothing, and what to do about it."""

from __future__ import annotations

__version__ = "0.1.0"
