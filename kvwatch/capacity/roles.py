"""Models that no KV cache can be planned for, and why: encoders, encoder-decoders, caches that are compressed in ways not counted here."""

from __future__ import annotations

import re
from typing import Final

from kvwatch.capacity.fields import Config, listed, model_type

_ENCODER_CLASSES: Final = re.compile(
    r"^(?!.*(?:ForCausalLM|LMHeadModel|ForConditionalGeneration)$)"
    r"(?=.*(?:Bert|Roberta|ModernBert|CLIP|Siglip|Electra|MPNet|Deberta|NomicBert|GteModel|GteNew|JinaEmbed|ViT|Dinov|Wav2Vec))"
)
"""Architecture names of encoders, for model types whose class was not read (vLLM 0.32 registry, embedding models)."""
_ENCODER_TYPES: Final = re.compile(
    r"bert(?:a|-|_|$)|^(?:new$|clip|siglip|electra|xlnet|funnel|longformer|vit(?!s)|dinov\d|wav2vec2|hubert|nomic_bert|gte$)"
)
_ENCODER_DECODERS: Final = re.compile(r"^(?:t5|mt5|umt5|byt5|bart|mbart|pegasus|marian|m2m_100|nllb|whisper|led|blenderbot|florence2)")


_NO_LANGUAGE_MODEL: Final = re.compile(r"^(?:dit|pixart|prithvi|terratorch|sana|flux)")
_NO_LANGUAGE_CLASS: Final = re.compile(r"Transformer[23]DModel|UNet|Autoencoder|MAE$|ForImageClassification$|DiT|Pipeline$|StableDiffusion")
_STATES_NOT_READ: Final = re.compile(r"^(?:rwkv|xlstm|retnet|hgrn)")


def refuse_without_plan(config: Config, text: Config) -> None:
    """Raises `ValueError` with the reason when ``config`` is no decoder whose KV cache can be counted here."""
    name = model_type(config) or model_type(text) or "this model"
    if _is_encoder_decoder(config, text):
        raise ValueError(f"{name} is an encoder-decoder model: it caches its cross attention too, which is not understood here")
    if _is_encoder(config, text):
        raise ValueError(f"{name} is encoder-only: it generates no tokens, so there is no KV cache to plan")
    if config.get("role") == "encoder":
        raise ValueError(f"vLLM generates no text with {name} (an encoder, a codec or a part of another model): there is nothing to plan")
    if _is_no_language_model(config, text):
        raise ValueError(f"{name} is no language model: it keeps no KV cache, so there is nothing to plan")
    if listed(text, "cross_attention_layers"):
        raise ValueError(f"{name} has layers with cross attention, which cache what another part has read: not understood here")
    if _STATES_NOT_READ.match(model_type(text)):
        raise ValueError(f"{name} has no attention: it keeps a state of fixed size for each sequence, which is not understood here")
    if text.get("compress_ratios"):
        raise ValueError(f"{name} compresses its KV cache by layer (compress_ratios), not understood here")


def _is_no_language_model(config: Config, text: Config) -> bool:
    """Diffusion, images, the earth: written by diffusers, or by a class that generates no tokens."""
    classes = config.get("architectures")
    named = [str(name) for name in classes] if isinstance(classes, list) else []
    return (
        isinstance(config.get("_class_name"), str)
        or (text is config and bool(_NO_LANGUAGE_MODEL.match(model_type(config))))
        or any(_NO_LANGUAGE_CLASS.search(name) and not name.endswith("ForCausalLM") for name in named)
    )


def _is_encoder_decoder(config: Config, text: Config) -> bool:
    if config.get("is_encoder_decoder") or text.get("is_encoder_decoder"):
        return True
    if config.get("role") == "decoder" or text.get("role") == "decoder":
        return False
    return "encoder-decoder" in (config.get("role"), text.get("role")) or bool(_ENCODER_DECODERS.match(model_type(config)))


def _is_encoder(config: Config, text: Config) -> bool:
    if (
        (text is config and text.get("use_bidirectional_attention") is True)
        or text.get("is_causal") is False
        or config.get("is_causal") is False
    ):
        return True
    if config.get("role") == "decoder":
        return False
    classes = config.get("architectures")
    named = [str(name) for name in classes] if isinstance(classes, list) else []
    if any(_ENCODER_CLASSES.match(name) for name in named):
        return True
    return bool(_ENCODER_TYPES.search(model_type(config).lower())) and not any(name.endswith("ForCausalLM") for name in named)
