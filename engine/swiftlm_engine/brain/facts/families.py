"""Layer lists of every model family whose memory is not plain attention in every layer.

One rule per structure, keyed by mlx-lm's model type; the tests build each cache with mlx-lm and
compare bytes. A type without a rule gets plain attention, flagged where that is a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from swiftlm_engine.brain.facts.config import Config
from swiftlm_engine.brain.facts.errors import BadConfig
from swiftlm_engine.brain.facts.kv import supports_head_size
from swiftlm_engine.brain.facts.layers import KvStore, Layer, LayerKind

Rule = Callable[[Config], list[Layer]]

# These read no head_dim from config.json.
_HEAD_FROM_HIDDEN = frozenset({
    "baichuan_m1", "granite", "granitemoe", "granitemoehybrid", "internlm2", "jamba", "lfm2",
    "lfm2_moe", "mixtral", "nemotron-nas", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe",
    "recurrent_gemma", "stablelm", "starcoder2",
})  # fmt: skip
_MAX_LAYERS = 4096
# Every query head has its own keys, whatever a config says.
_NO_GROUPS = frozenset({"gpt2", "gpt_neox", "gptj", "phixtral", "qwen", "talkie"})
_WITH_SINKS = frozenset({"gpt_oss"})
# mlx-lm caches these by other classes than plain KV, and no rule below knows them yet.
_UNPRICED = frozenset({"deepseek_v41", "minimax_m3_vl", "muse_spark"})
# Few configs of these are known: one without a key that its rule reads is priced as plain, too.
_SELDOM_SEEN = frozenset({
    "baichuan_m1", "bailing_hybrid", "bailing_moe_linear", "bailing_moe_v3", "gear", "jamba",
    "kimi_k3", "longcat_flash_ngram", "mimo_v2_flash", "nemotron-nas", "olmo_hybrid", "plamo2",
    "recurrent_gemma", "rwkv7", "spark2_5", "step3p5",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerList:
    """The layers, and whether their memory is known or assumed to be plain attention."""

    layers: tuple[Layer, ...]
    assumed: bool


def layer_list(config: Config) -> LayerList:
    # mlx-lm's wrappers of these make no cache of their own: every layer of the model inside gets
    # a plain one, its windows notwithstanding.
    wrapped = config.root.get("model_type") in ("mistral3", "pixtral", "llava")
    rule = _plain if wrapped else _RULES.get(config.model_type, _plain)
    assumed = not _UNPRICED.isdisjoint((config.model_type, config.root.get("model_type")))
    try:
        layers = tuple(rule(config))
    except BadConfig:
        if config.model_type not in _SELDOM_SEEN:
            raise
        layers, assumed = tuple(_plain(config)), True
    # The engine compresses only where each layer has one cache, of the plain class.
    if assumed:
        layers = _uncompressed(layers, "a cache of its own")
    elif any(layer.kind in (LayerKind.NONE, LayerKind.SHARED) for layer in layers):
        layers = _uncompressed(layers, "fewer caches than layers")
    return LayerList(layers, assumed)


def _uncompressed(layers: tuple[Layer, ...], why: str) -> tuple[Layer, ...]:
    return tuple(
        replace(
            layer,
            stores=tuple(
                replace(store, turbo_blocker=store.turbo_blocker or why) for store in layer.stores
            ),
        )
        for layer in layers
    )


def head_size(config: Config) -> int:
    if config.model_type not in _HEAD_FROM_HIDDEN and (size := config.maybe("head_dim")):
        return size
    return config.count("hidden_size", "n_embd") // _query_heads(config)


def kv_heads(config: Config) -> int:
    heads = _query_heads(config)
    if config.model_type == "gpt_bigcode":
        return 1 if config.flag("multi_query", default=True) else heads
    if config.model_type in _NO_GROUPS:
        return heads
    if config.model_type == "recurrent_gemma":
        return 1
    if config.model_type == "step3p5":
        return config.count("num_attention_groups")
    return config.count("num_key_value_heads", "num_kv_heads", "n_head_kv", default=heads)


def num_layers(config: Config) -> int:
    return bounded(config, config.count("num_hidden_layers", "n_layers", "n_layer", "num_layers"))


def bounded(config: Config, layers: int) -> int:
    """Lists of that length are made of it."""
    if layers > _MAX_LAYERS:
        raise BadConfig(config.path, f"config.json: {layers:,} layers, more than any model has")
    return layers


def _query_heads(config: Config) -> int:
    return config.count("num_attention_heads", "num_heads", "n_heads", "n_head")


def _attention(
    config: Config,
    kind: LayerKind = LayerKind.FULL,
    *,
    heads: int | None = None,
    size: int | None = None,
) -> Layer:
    """A layer of ordinary attention; windows and chunks carry their limit."""
    size = size or head_size(config)
    limit, blocker, sinks = None, "", config.model_type in _WITH_SINKS
    if kind is LayerKind.SLIDING:
        limit = config.count("sliding_window", "sliding_window_size", "window_size")
        blocker = "sliding window, already bounded"
    elif kind is LayerKind.CHUNKED:
        limit, blocker = config.count("attention_chunk_size"), "chunked attention, already bounded"
    else:
        blocker = _turbo_blocker(config, size, sinks)
    store = KvStore(kind, heads or kv_heads(config), size, size, limit, blocker, sinks)
    return Layer(kind, (store,))


def _turbo_blocker(config: Config, size: int, sinks: bool) -> str:
    """Why a layer of full attention cannot be compressed; the engine's verdict says the same."""
    if sinks:
        return "attention sinks"
    if config.text.get("attn_logit_softcapping"):
        return "soft-capped logits"
    if config.maybe("num_kv_shared_layers") or config.flag("use_cla"):
        return "layers share KV"
    return "" if supports_head_size(size) else f"head size {size}"


def _plain(config: Config) -> list[Layer]:
    return [_attention(config)] * num_layers(config)


def _by_layer_types(config: Config) -> list[Layer]:
    types = config.names("layer_types", num_layers(config))
    if types is None:
        return _plain(config)
    kinds = [LayerKind.SLIDING if t == "sliding_attention" else LayerKind.FULL for t in types]
    return [_attention(config, kind) for kind in kinds]


def _by_pattern(config: Config) -> list[Layer]:
    """Every pattern-th layer is full, the others slide (Gemma 3, Command R7B)."""
    pattern = config.count("sliding_window_pattern", "_sliding_window_pattern")
    return [
        _attention(config, LayerKind.SLIDING if (i + 1) % pattern else LayerKind.FULL)
        for i in range(num_layers(config))
    ]


def _alternating(config: Config) -> list[Layer]:
    if config.text.get("layer_types") is not None:
        return _by_layer_types(config)
    kinds = (LayerKind.SLIDING, LayerKind.FULL)
    return [_attention(config, kinds[i % 2]) for i in range(num_layers(config))]


def _olmo3(config: Config) -> list[Layer]:
    if config.text.get("layer_types") is not None:
        return _by_layer_types(config)
    return [
        _attention(config, LayerKind.SLIDING if (i + 1) % 4 else LayerKind.FULL)
        for i in range(num_layers(config))
    ]


def _exaone4(config: Config) -> list[Layer]:
    pattern = config.text.get("sliding_window_pattern")
    if not isinstance(pattern, str) or not pattern:
        return _plain(config)
    return [
        _attention(
            config, LayerKind.SLIDING if pattern[i % len(pattern)] == "L" else LayerKind.FULL
        )
        for i in range(num_layers(config))
    ]


def _gemma4(config: Config) -> list[Layer]:
    """Gemma 4 and 3n: the last layers read an earlier layer's KV; full layers have wider heads."""
    count = num_layers(config)
    types = config.names("layer_types", count)
    if types is None:
        pattern = config.count("sliding_window_pattern", default=5)
        types = ["full_attention" if (i + 1) % pattern == 0 else "sliding" for i in range(count)]
    own = count - config.count("num_kv_shared_layers", default=0, least=0)
    wide = config.maybe("global_head_dim") or None
    wide_heads = None
    if config.flag("attention_k_eq_v"):
        wide_heads = config.maybe("num_global_key_value_heads")
    full = _attention(config, heads=wide_heads, size=wide)
    sliding = _attention(config, LayerKind.SLIDING)
    layers = [full if t == "full_attention" else sliding for t in types[:own]]
    return layers + [Layer(LayerKind.SHARED)] * (count - own)


def _llama4(config: Config) -> list[Layer]:
    return [
        _attention(config, LayerKind.CHUNKED if (i + 1) % 4 else LayerKind.FULL)
        for i in range(num_layers(config))
    ]


def _latent(config: Config) -> KvStore:
    """MLA: mlx-lm keeps the latent as keys and the rotary part as values, one head."""
    return KvStore(
        LayerKind.MLA, 1, config.count("kv_lora_rank"), config.count("qk_rope_head_dim"),
        turbo_blocker="MLA latent, already compressed",
    )  # fmt: skip


def _mla(config: Config) -> list[Layer]:
    return [Layer(LayerKind.MLA, (_latent(config),))] * num_layers(config)


def _mla_twice(config: Config) -> list[Layer]:
    return [Layer(LayerKind.MLA, (_latent(config), _latent(config)))] * (
        bounded(config, config.count("num_layers", "num_hidden_layers"))
    )


def _mla_indexed(config: Config) -> list[Layer]:
    """DeepSeek 3.2: beside the latent, mlx-lm keeps the indexer's keys and as many zeros."""
    size = config.count("index_head_dim")
    index = KvStore(LayerKind.MLA, 1, size, size, turbo_blocker="indexer keys")
    return [Layer(LayerKind.MLA, (_latent(config), index))] * num_layers(config)


def _mla_expanded(config: Config) -> list[Layer]:
    """DeepSeek V2 and kin: mlx-lm caches the expanded heads, not the latent."""
    k_dim = config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim")
    hidden, heads = config.count("hidden_size"), _query_heads(config)
    v_dim = config.count("v_head_dim", default=hidden // heads)
    if config.model_type == "minicpm3":
        v_dim = hidden // heads
    store = KvStore(LayerKind.MLA, heads, k_dim, v_dim, turbo_blocker="unequal head sizes")
    return [Layer(LayerKind.MLA, (store,))] * num_layers(config)


def _delta_net(config: Config) -> list[Layer]:
    """Qwen3-Next, Qwen3.5: GatedDeltaNet, and every interval-th layer full attention."""
    interval = config.count("full_attention_interval", default=4)
    k_heads, v_heads = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    k_size, v_size = config.count("linear_key_head_dim"), config.count("linear_value_head_dim")
    taps = config.count("linear_conv_kernel_dim") - 1
    linear = Layer(
        LayerKind.LINEAR,
        state_elements=taps * (2 * k_heads * k_size + v_heads * v_size),
        state_elements_f32=v_heads * v_size * k_size,
    )
    full = _attention(config)
    return [linear if (i + 1) % interval else full for i in range(num_layers(config))]


def _kimi_linear(config: Config) -> list[Layer]:
    delta = config.section("linear_attn_config")
    try:
        heads, size, listed = delta["num_heads"], delta["head_dim"], set(delta["kda_layers"])
        taps = delta.get("short_conv_kernel_size", 4) - 1
        linear = Layer(
            LayerKind.LINEAR,
            state_elements=3 * taps * heads * size,
            state_elements_f32=heads * size * size,
        )
    except (KeyError, TypeError) as error:
        raise BadConfig(config.path, f"config.json: linear_attn_config: {error!r}") from error
    mla = Layer(LayerKind.MLA, (_latent(config),))
    return [linear if i + 1 in listed else mla for i in range(num_layers(config))]


def _mamba(config: Config) -> list[Layer]:
    """Mamba 1: convolution taps and the state, both in the model's dtype."""
    inner, taps = config.count("intermediate_size"), config.count("conv_kernel") - 1
    layer = Layer(LayerKind.LINEAR, state_elements=inner * (taps + config.count("state_size")))
    return [layer] * num_layers(config)


def _afm7(config: Config) -> list[Layer]:
    """The last layers read the KV of the one before them."""
    count = num_layers(config)
    own = count - config.count("num_kv_reuse_layers", default=0, least=0)
    return [_attention(config)] * own + [Layer(LayerKind.SHARED)] * (count - own)


def _openelm(config: Config) -> list[Layer]:
    heads = config.sizes("num_key_value_heads", num_layers(config), kv_heads(config))
    return [_attention(config, heads=number) for number in heads]


def _mamba2(config: Config, heads: str, size: str, state: str, groups: str, taps: str) -> Layer:
    """A Mamba-2 state: convolution taps in the model's dtype, the state itself in float32."""
    inner = config.count(heads) * config.count(size)
    channels = inner + 2 * config.count(groups, default=1) * config.count(state)
    conv = (config.count(taps, default=4) - 1) * channels
    return Layer(
        LayerKind.LINEAR, state_elements=conv, state_elements_f32=inner * config.count(state)
    )


def _pure_mamba2(config: Config) -> list[Layer]:
    layer = _mamba2(config, "num_heads", "head_dim", "state_size", "n_groups", "conv_kernel")
    return [layer] * num_layers(config)


_MAMBA_KEYS = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")


def _falcon_h1(config: Config) -> list[Layer]:
    mamba, (store,) = _mamba2(config, *_MAMBA_KEYS), _attention(config).stores
    store = replace(store, turbo_blocker="beside a recurrent state")
    both = Layer(LayerKind.FULL, (store,), mamba.state_elements, mamba.state_elements_f32)
    return [both] * num_layers(config)


def _granite_hybrid(config: Config) -> list[Layer]:
    types = config.names("layer_types", num_layers(config)) or []
    full = _attention(config)
    if "mamba" not in types:
        return [full] * len(types)
    mamba = _mamba2(config, *_MAMBA_KEYS)
    return [mamba if t == "mamba" else full for t in types]


def _nemotron_h(config: Config) -> list[Layer]:
    pattern = config.text.get("hybrid_override_pattern")
    if not isinstance(pattern, str | list):
        raise BadConfig(config.path, "config.json has no hybrid_override_pattern")
    bounded(config, len(pattern))
    mamba = _mamba2(
        config, "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"
    )
    kinds = {"M": mamba, "*": _attention(config)}
    return [kinds.get(letter, Layer(LayerKind.NONE)) for letter in pattern]


def _lfm2(config: Config) -> list[Layer]:
    count = num_layers(config)
    types = config.names("layer_types", count)
    indices = config.text.get("full_attn_idxs")
    if indices is None:
        indices = [i for i, t in enumerate(types or []) if t == "full_attention"]
    taps = config.count("conv_L_cache") - 1
    conv = Layer(LayerKind.LINEAR, state_elements=taps * config.count("hidden_size"))
    full = _attention(config)
    return [full if i in indices else conv for i in range(count)]


def _jamba(config: Config) -> list[Layer]:
    """Mamba 1 as wide as it says, and attention in every period-th layer."""
    count, inner = num_layers(config), config.count("hidden_size") * config.count("mamba_expand")
    elements = inner * (config.count("mamba_d_conv") - 1 + config.count("mamba_d_state"))
    mamba, full = Layer(LayerKind.LINEAR, state_elements=elements), _attention(config)
    if (types := config.names("layers_block_type", count)) is None:
        period = config.count("attn_layer_period")
        offset = config.count("attn_layer_offset", least=0)
        types = ["attention" if i % period == offset else "mamba" for i in range(count)]
    return [full if t == "attention" else mamba for t in types]


def _plamo2(config: Config) -> list[Layer]:
    count, step = num_layers(config), config.count("mamba_step", default=2)
    width = config.count("mamba_num_heads") * config.count("hidden_size_per_head")
    mamba = Layer(
        LayerKind.LINEAR,
        state_elements=(config.count("mamba_d_conv") - 1) * width,
        state_elements_f32=width * config.count("mamba_d_state"),
    )
    full = _attention(config, size=config.count("hidden_size_per_head"))
    if not config.flag("mamba_enabled", default=True):
        return [full] * count
    if count <= step // 2:
        return [mamba] * (count - 1) + [full]
    return [full if i % step == step // 2 else mamba for i in range(count)]


def _recurrent_gemma(config: Config) -> list[Layer]:
    """RG-LRU: convolution taps and one number for each channel; windows in between."""
    width = config.maybe("lru_width") or config.count("hidden_size")
    recurrent = Layer(LayerKind.LINEAR, state_elements=width * config.count("conv1d_width"))
    size, limit = head_size(config), config.count("attention_window_size")
    blocker = "sliding window, already bounded"
    window = KvStore(LayerKind.SLIDING, 1, size, size, limit, blocker)
    types = config.text.get("block_types") or config.text.get("_block_types")
    if not isinstance(types, list) or not types:
        raise BadConfig(config.path, "config.json has no block_types")
    kinds = {"recurrent": recurrent, "attention": Layer(LayerKind.SLIDING, (window,))}
    names = [str(types[i % len(types)]) for i in range(num_layers(config))]
    return [kinds.get(name, kinds["attention"]) for name in names]


def _rwkv7(config: Config) -> list[Layer]:
    """The last token of both halves of a layer, and a matrix for each head."""
    hidden = config.count("hidden_size")
    elements = 2 * hidden + hidden * config.count("head_dim")
    return [Layer(LayerKind.LINEAR, state_elements=elements)] * num_layers(config)


def _olmo_hybrid(config: Config) -> list[Layer]:
    k_width = config.count("linear_num_key_heads") * config.count("linear_key_head_dim")
    v_width = config.count("linear_num_value_heads") * config.count("linear_value_head_dim")
    taps = config.count("linear_conv_kernel_dim") - 1
    linear = Layer(
        LayerKind.LINEAR,
        state_elements=taps * (2 * k_width + v_width),
        state_elements_f32=v_width * config.count("linear_key_head_dim"),
    )
    types = config.names("layer_types", num_layers(config)) or []
    full = _attention(config)
    return [linear if t == "linear_attention" else full for t in types]


def _grouped(config: Config, full: Layer, linear: Layer) -> list[Layer]:
    """Bailing: the last layer of each group is full, and what fills no group."""
    count, group = num_layers(config), config.count("layer_group_size")
    whole = count // group * group
    return [full if (i + 1) % group == 0 or i >= whole else linear for i in range(count)]


def _bailing_hybrid(config: Config) -> list[Layer]:
    state = _query_heads(config) * head_size(config) ** 2
    linear = Layer(LayerKind.LINEAR, state_elements_f32=state)
    return _grouped(config, Layer(LayerKind.MLA, (_latent(config),)), linear)


def _bailing_linear(config: Config) -> list[Layer]:
    heads = _query_heads(config)
    size = config.count("hidden_size") // heads
    linear = Layer(LayerKind.LINEAR, state_elements=heads * size**2)
    return _grouped(config, _attention(config), linear)


def _bailing_v3(config: Config) -> list[Layer]:
    heads, size = _query_heads(config), head_size(config)
    taps = config.count("short_conv_kernel_size", default=4) - 1
    linear = Layer(
        LayerKind.LINEAR,
        state_elements=3 * taps * heads * size,
        state_elements_f32=heads * size**2,
    )
    return _grouped(config, Layer(LayerKind.MLA, (_latent(config),)), linear)


def _gear(config: Config) -> list[Layer]:
    taps = config.count("conv_L_cache", default=3) - 1
    conv = Layer(LayerKind.LINEAR, state_elements=2 * taps * kv_heads(config) * head_size(config))
    types = config.names("layer_types", num_layers(config)) or []
    attention = {
        "full_attention": _attention(config),
        "sliding_attention": _attention(config, LayerKind.SLIDING),
    }
    return [attention.get(t, conv) for t in types]


def _baichuan_m1(config: Config) -> list[Layer]:
    """Beside its KV each layer keeps the key and the value before the last."""
    sliding = config.text.get("sliding_window_layers") or []
    hidden = config.count("hidden_size")
    heads = config.maybe("num_swa_key_value_heads") or kv_heads(config)
    size = hidden // (config.maybe("num_swa_attention_heads") or _query_heads(config))
    window = _attention(config, LayerKind.SLIDING, heads=heads, size=size)
    layers = [window if i in sliding else _attention(config) for i in range(num_layers(config))]
    return [
        replace(
            layer,
            stores=(replace(store, turbo_blocker="beside a convolution's state"),),
            state_elements=store.elements_per_token,
        )
        for layer in layers
        for store in layer.stores
    ]


def _iquest_loop(config: Config) -> list[Layer]:
    """Each layer runs twice: the second time over a window."""
    size, blocker = head_size(config), "layers run several times"
    limit = config.count("loop_window_size", default=64)
    full = KvStore(LayerKind.FULL, kv_heads(config), size, size, None, blocker)
    window = KvStore(LayerKind.SLIDING, kv_heads(config), size, size, limit, blocker)
    return [Layer(LayerKind.FULL, (full, window))] * num_layers(config)


def _nanbeige(config: Config) -> list[Layer]:
    """The whole stack runs several times, with KV of its own each time."""
    weights = config.text.get("loop_loss_weights")  # one for each loop but the first
    loops = config.count("num_loops", default=1)
    loops = len(weights) + 1 if isinstance(weights, list) and weights else loops
    (store,) = _attention(config).stores
    if loops > 1:
        store = replace(store, turbo_blocker="layers run several times")
    return [Layer(LayerKind.FULL, (store,) * loops)] * num_layers(config)


def _nemotron_nas(config: Config) -> list[Layer]:
    """Each layer has its own number of heads, or no attention at all."""
    blocks = config.text.get("block_configs")
    if not isinstance(blocks, list):
        raise BadConfig(config.path, "config.json has no block_configs")
    bounded(config, len(blocks))
    layers = []
    for block in blocks:
        attention = block.get("attention", {})
        if attention.get("no_op") or attention.get("replace_with_linear"):
            layers.append(Layer(LayerKind.NONE))
            continue
        heads = _query_heads(config) // attention["n_heads_in_group"]
        layers.append(_attention(config, heads=heads))
    return layers


def _longcat_ngram(config: Config) -> list[Layer]:
    """Beside its KV the first layer keeps the ids before the last, 8 bytes each."""
    layers = _mla_twice(config)
    ids = config.count("emb_neighbor_num", default=4) - 1
    return [replace(layers[0], state_elements_f32=2 * ids), *layers[1:]]


def _mimo_v2(config: Config) -> list[Layer]:
    types = config.text.get("hybrid_layer_pattern")
    if not isinstance(types, list) or len(types) < num_layers(config):
        raise BadConfig(config.path, "config.json: hybrid_layer_pattern does not list every layer")
    size, v_size = head_size(config), config.count("v_head_dim")
    blocker = _turbo_blocker(config, size, config.flag("add_full_attention_sink_bias"))
    if v_size != size:
        blocker = blocker or "unequal head sizes"
    sinks = config.flag("add_swa_attention_sink_bias")
    full = KvStore(LayerKind.FULL, kv_heads(config), size, v_size, None, blocker)
    window = KvStore(
        LayerKind.SLIDING, config.count("swa_num_key_value_heads"), config.count("swa_head_dim"),
        config.count("swa_v_head_dim"), config.count("sliding_window_size"),
        "sliding window, already bounded", sinks,
    )  # fmt: skip
    full = replace(full, sinks=config.flag("add_full_attention_sink_bias"))
    layers = Layer(LayerKind.FULL, (full,)), Layer(LayerKind.SLIDING, (window,))
    return [layers[t == 1] for t in types[: num_layers(config)]]


def _three_to_one(config: Config) -> list[Layer]:
    """Three sliding layers and a full one, where the config lists no layers."""
    if config.text.get("layer_types") is not None:
        return _by_layer_types(config)
    kinds = [LayerKind.SLIDING] * 3 + [LayerKind.FULL]
    return [_attention(config, kinds[i % 4]) for i in range(num_layers(config))]


def _step3p5(config: Config) -> list[Layer]:
    """Sliding layers have heads of their own."""
    count, other = num_layers(config), config.section("attention_other_setting")
    types = config.names("layer_types", count)
    if not types:
        types = ["full_attention" if i % 2 else "sliding_attention" for i in range(count)]
    window = _attention(config, LayerKind.SLIDING, heads=other.get("num_attention_groups"))
    full = _attention(config)
    return [window if t == "sliding_attention" else full for t in types]


def _llama4_alone(config: Config) -> list[Layer]:
    """Without its wrapper the class makes no caches of its own."""
    return _plain(config) if config.root.get("model_type") == "llama4_text" else _llama4(config)


_RULES: dict[str, Rule] = {
    "llama": _by_layer_types,
    "ministral3": _by_layer_types,
    "mistral3": _by_layer_types,
    "afmoe": _by_layer_types,
    "laguna": _by_layer_types,
    "mellum": _by_layer_types,
    "exaone_moe": _by_layer_types,
    "exaone4": _exaone4,
    "olmo3": _olmo3,
    "gpt_oss": _alternating,
    "gemma3": _by_pattern,
    "gemma3_text": _by_pattern,
    "cohere2": _by_pattern,
    "gemma3n": _gemma4,
    "gemma3n_text": _gemma4,
    "gemma4": _gemma4,
    "gemma4_text": _gemma4,
    "llama4": _llama4,
    "llama4_text": _llama4_alone,
    "deepseek_v3": _mla,
    "glm4_moe_lite": _mla,
    "kimi_k25": _mla,
    "mistral4": _mla,
    "longcat_flash": _mla_twice,
    "deepseek_v32": _mla_indexed,
    "glm_moe_dsa": _mla_indexed,
    "deepseek_v2": _mla_expanded,
    "kimi_vl": _mla,
    "minicpm3": _mla_expanded,
    "youtu_llm": _mla_expanded,
    "qwen3_next": _delta_net,
    "qwen3_5": _delta_net,
    "qwen3_5_text": _delta_net,
    "qwen3_5_moe": _delta_net,
    "qwen3_5_moe_text": _delta_net,
    "kimi_linear": _kimi_linear,
    "mamba": _mamba,
    "mamba2": _pure_mamba2,
    "afm7": _afm7,
    "openelm": _openelm,
    "plamo3": _by_pattern,
    "falcon_h1": _falcon_h1,
    "granitemoehybrid": _granite_hybrid,
    "nemotron_h": _nemotron_h,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "baichuan_m1": _baichuan_m1,
    "bailing_hybrid": _bailing_hybrid,
    "bailing_moe_linear": _bailing_linear,
    "bailing_moe_v3": _bailing_v3,
    "gear": _gear,
    "iquestloopcoder": _iquest_loop,
    "jamba": _jamba,
    "kimi_k3": _kimi_linear,
    "longcat_flash_ngram": _longcat_ngram,
    "mimo_v2_flash": _mimo_v2,
    "muse_glimmer": _three_to_one,
    "nanbeige": _nanbeige,
    "nemotron-nas": _nemotron_nas,
    "olmo_hybrid": _olmo_hybrid,
    "plamo2": _plamo2,
    "recurrent_gemma": _recurrent_gemma,
    "rwkv7": _rwkv7,
    "spark2_5": _three_to_one,
    "step3p5": _step3p5,
}
