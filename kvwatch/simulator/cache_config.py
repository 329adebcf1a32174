"""The labels of vLLM 0.32's ``cache_config_info``."""

from __future__ import annotations

from typing import Final

from kvwatch.simulator.config import ServerConfig

_CONSTANTS: Final = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "True",
}


def cache_config_labels(config: ServerConfig) -> dict[str, str]:
    """The labels of ``cache_config_info`` but `engine`: Python's `str` of every field, as vLLM writes them."""
    pool = config.kv_cache_size_tokens
    return {
        **_CONSTANTS,
        "block_size": str(config.block_size),
        "effective_attention_block_size": str(config.block_size),
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "kv_cache_max_concurrency": str(pool / config.max_model_len),
        "kv_cache_size_tokens": str(pool),
        # Under data parallelism vLLM repeats the sum over all engines on each of them.
        "num_gpu_blocks": str(config.num_gpu_blocks * config.data_parallel_size),
        "num_gpu_blocks_override": str(config.num_gpu_blocks),
    }
