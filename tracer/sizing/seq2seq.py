"""Encoder-decoder models, and encoders alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracer.sizing.config import Config
from tracer.sizing.decoders import has_head
from tracer.sizing.shape import Cache, ModelShape, Role, Weights, linear, table, times, vector


def _attention(inputs: int, width: int, bias: bool, key_bias: bool) -> list[Weights]:
    return [
        *linear("attention.q", "attention", inputs, width, bias=bias),
        *linear("attention.k", "attention", inputs, width, bias=key_bias),
        *linear("attention.v", "attention", inputs, width, bias=bias),
        *linear("attention.out", "attention", width, inputs, bias=bias),
    ]


def _feed_forward(hidden: int, width: int, *, ups: int, bias: bool) -> list[Weights]:
    return [
        *times(linear("mlp.up", "ffn", hidden, width, bias=bias), ups),
        *linear("mlp.down", "ffn", width, hidden, bias=bias),
    ]


def _as_encoder(parts: list[Weights]) -> list[Weights]:
    role: Role = "encoder"
    return [replace(part, role=role) for part in parts]


def build_t5(config: Config) -> ModelShape:
    """T5, mT5, UMT5, Flan: no biases, relative positions in the first or in every layer."""
    hidden, head = config.integer("d_model"), config.integer("d_kv")
    heads, width = config.integer("num_heads"), config.integer("d_ff")
    encoders = config.integer("num_layers")
    decoders = config.integer("num_decoder_layers", default=encoders)
    ups = 2 if str(config.get("feed_forward_proj", default="relu")).startswith("gated") else 1
    inner = heads * head
    attend, norm = _attention(hidden, inner, False, False), vector("norm", "norm", hidden)
    feed = _feed_forward(hidden, width, ups=ups, bias=False)
    each = config.model_type == "umt5"
    buckets = config.integer("relative_attention_num_buckets") * heads

    def positions(layers: int) -> list[Weights]:
        return vector("relative_positions", "attention", buckets, layers if each else 1)

    encoder = times([*attend, *feed, *times(norm, 2)], encoders) + positions(encoders) + norm
    decoder = times([*attend, *attend, *feed, *times(norm, 3)], decoders) + positions(decoders)
    vocabulary = config.integer("vocab_size")
    shape = ModelShape(
        model_type=config.model_type,
        architecture=config.architecture,
        weights=(
            *table("embedding", vocabulary, hidden),
            *_as_encoder(encoder),
            *decoder,
            *norm,
        ),
        caches=_caches(decoders, 2 * inner, heads),
        basis="formula",
        layers=decoders,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        query_width=inner,
        ffn_width=width,
        gated=ups == 2,
        vocabulary=vocabulary,
        tied=has_head(config),
        encoder_layers=encoders,
        reduces_a_layer=3,
    )
    if has_head(config) and not config.flag("tie_word_embeddings", True):
        return shape.noted(
            f"transformers 5 ties the head of this family to its embedding; a runtime that loads "
            f"the published head apart holds {hidden * vocabulary:,} parameters more"
        )
    return shape


def _caches(decoders: int, values: int, heads: int) -> tuple[Cache, ...]:
    """Keys and values of the decoder's own tokens, and once those of the encoder's output."""
    detail = f"2 x {heads} heads x {values // (2 * heads)}"
    return (
        Cache("full", decoders, values, heads=heads, detail=detail),
        Cache("cross", decoders, values, heads=heads, detail=detail),
    )


# Families with BART's layer: extra norms on the embedding, a last norm, learned positions that
# begin at an offset. Sinusoidal positions are a table for Marian and Pegasus, a buffer for M2M.
_BART_EXTRAS: dict[str, tuple[bool, bool, int | None]] = {
    "bart": (True, False, 2),
    "mbart": (True, True, 2),
    "marian": (False, False, 0),
    "pegasus": (False, True, 0),
    "blenderbot": (False, True, 0),
    "m2m_100": (False, True, None),
}


def build_bart(config: Config) -> ModelShape:
    """BART, mBART, Marian, Pegasus, Blenderbot, M2M-100 and NLLB."""
    embed_norm, last_norm, offset = _BART_EXTRAS[config.model_type]
    hidden, vocabulary = config.integer("d_model"), config.integer("vocab_size")
    norm = vector("norm", "norm", hidden, 2)
    encoder, decoder = _two_stacks(config, hidden, key_bias=True)
    ends = (norm if embed_norm else []) + (norm if last_norm else [])
    if offset is not None:
        rows = config.integer("max_position_embeddings") + offset
        ends += table("positions", rows, hidden)
    tied = config.flag("tie_word_embeddings", True)
    tables = table("embedding", vocabulary, hidden)
    if not tied:  # the two stacks then have a table each beside the shared one
        tables += times(tables, 2)
    if has_head(config) and not tied:
        tables += linear("lm_head", "lm_head", hidden, vocabulary)
    weights = [*tables, *_as_encoder(encoder + ends), *decoder, *ends]
    return _seq2seq(config, hidden, vocabulary, weights, tied=tied)


def build_whisper(config: Config) -> ModelShape:
    """Whisper: two convolutions over the sound, then BART's layers without biases on the keys."""
    hidden, vocabulary = config.integer("d_model"), config.integer("vocab_size")
    bins = config.integer("num_mel_bins")
    norm = vector("norm", "norm", hidden, 2)
    encoder, decoder = _two_stacks(config, hidden, key_bias=False)
    encoder += linear("conv1", "encoder", 3 * bins, hidden, bias=True)
    encoder += linear("conv2", "encoder", 3 * hidden, hidden, bias=True)
    encoder += table("positions", config.integer("max_source_positions"), hidden) + norm
    positions = table("positions", config.integer("max_target_positions"), hidden)
    tied = config.flag("tie_word_embeddings", True)
    tables = table("embedding", vocabulary, hidden) + positions
    if has_head(config) and not tied:
        tables += linear("lm_head", "lm_head", hidden, vocabulary)
    weights = [*tables, *_as_encoder(encoder), *decoder, *norm]
    return _seq2seq(config, hidden, vocabulary, weights, tied=tied)


def _two_stacks(
    config: Config, hidden: int, *, key_bias: bool
) -> tuple[list[Weights], list[Weights]]:
    attend = _attention(hidden, hidden, True, key_bias)
    norm = vector("norm", "norm", hidden, 2)

    def feed(key: str) -> list[Weights]:
        return _feed_forward(hidden, config.integer(key), ups=1, bias=True)

    encoder = [*attend, *feed("encoder_ffn_dim"), *times(norm, 2)]
    decoder = [*attend, *attend, *feed("decoder_ffn_dim"), *times(norm, 3)]
    return (
        times(encoder, config.integer("encoder_layers")),
        times(decoder, config.integer("decoder_layers")),
    )


def _seq2seq(
    config: Config, hidden: int, vocabulary: int, weights: list[Weights], *, tied: bool
) -> ModelShape:
    decoders, heads = config.integer("decoder_layers"), config.integer("decoder_attention_heads")
    longest = config.get("max_target_positions", "max_position_embeddings")
    return ModelShape(
        model_type=config.model_type,
        architecture=config.architecture,
        weights=tuple(weights),
        caches=_caches(decoders, 2 * hidden, heads),
        basis="formula",
        layers=decoders,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        query_width=hidden,
        ffn_width=config.integer("decoder_ffn_dim"),
        gated=False,
        vocabulary=vocabulary,
        longest=longest if isinstance(longest, int) else None,
        tied=tied and has_head(config),
        encoder_layers=config.integer("encoder_layers"),
        reduces_a_layer=3,
    )


def build_bert(config: Config) -> ModelShape | None:
    """BERT and RoBERTa with a language-model head, or bare with the pooler."""
    hidden, vocabulary = config.integer("hidden_size"), config.integer("vocab_size")
    layers, width = config.integer("num_hidden_layers"), config.integer("intermediate_size")
    name = config.architecture or "MaskedLM"
    norm = vector("norm", "norm", hidden, 2)
    dense = linear("dense", "other", hidden, hidden, bias=True)
    if name.endswith(("MaskedLM", "LMHeadModel", "ForCausalLM")):
        head = [*dense, *norm, *vector("lm_head.bias", "lm_head", vocabulary)]
    elif has_head(config):
        return None  # a classifier or another head: its size is not in the config
    else:
        head = dense
    layer = _attention(hidden, hidden, True, True) + times(norm, 2)
    layer += _feed_forward(hidden, width, ups=1, bias=True)
    rows = config.integer("max_position_embeddings") + config.integer("type_vocab_size", default=0)
    heads = config.integer("num_attention_heads")
    tied = config.flag("tie_word_embeddings", True) and has_head(config)
    untied = has_head(config) and not tied
    return ModelShape(
        model_type=config.model_type,
        architecture=config.architecture,
        weights=(
            *table("embedding", vocabulary, hidden),
            *table("positions", rows, hidden),
            *norm,
            *times(layer, layers),
            *head,
            *(linear("lm_head", "lm_head", hidden, vocabulary, bias=True) if untied else []),
        ),
        caches=(),
        basis="formula",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        query_width=hidden,
        ffn_width=width,
        gated=False,
        vocabulary=vocabulary,
        longest=config.get("max_position_embeddings"),
        tied=tied,
    )


SEQ2SEQ: dict[str, Callable[[Config], ModelShape]] = {
    "t5": build_t5,
    "mt5": build_t5,
    "umt5": build_t5,
    "whisper": build_whisper,
    **dict.fromkeys(_BART_EXTRAS, build_bart),
}
