"""Whatever stands in a config.json: a number or a refusal with the reason, never another error."""

from __future__ import annotations

import contextlib

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvwatch.capacity.architecture import read_model
from kvwatch.capacity.cache import ServerSetup, kv_cache
from kvwatch.capacity.class_defaults import complete
from kvwatch.capacity.model_length import longest
from kvwatch.plan.sources import class_defaults

KEYS = sorted({key for row in class_defaults().values() for key in row} | {"per_layer_config", "block_configs", "quantization_config"})
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 300),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.one_of(st.none(), st.integers(0, 3), st.sampled_from(["full_attention", "mamba", "sliding_attention", "?"])), max_size=40),
    st.dictionaries(st.sampled_from(["0", "01", "type", "attention", "factor"]), st.one_of(st.none(), st.integers(0, 9)), max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(
    model_type=st.sampled_from(sorted(class_defaults())),
    changed=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
    gpus=st.sampled_from([1, 2, 3]),
    version=st.sampled_from([(0, 8), (0, 11), (0, 19), (0, 34)]),
)
@example(model_type="afmoe", changed={"layer_types_rule": {}, "role": "decoder"}, gpus=1, version=(0, 34))
@example(model_type="git", changed={"d_model": 1}, gpus=1, version=(0, 8))
def test_any_config_gives_a_number_or_a_reason(model_type, changed, gpus, version):
    config = {"model_type": model_type, **changed}
    cache = None
    with contextlib.suppress(ValueError):
        cache = kv_cache(read_model(config, class_defaults()), ServerSetup(gpus=gpus, version=version))
    if cache is not None:
        assert cache.need(4096) >= 1
        assert cache.bytes_per_block >= 1
        assert cache.need(8192) >= cache.need(4096)
    assert (longest(complete(config, class_defaults()), version) or 1) >= 1
