"""Every option of the daemon, each written once: key, type, default, help, needs_restart.

The help of `swiftlmd serve`, `swiftlmctl config show` and the docs are generated from this file.
A key is `table.name` in config.toml, `SWIFTLM_TABLE_NAME` in the environment and
`--table-name` on the command line. An option that takes effect only in a new daemon process
(or, under [engine], in the next load of a model) says so with `needs_restart`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from swiftlm_proto.load_options import BY_NAME, Kind

NEVER = float("inf")


class Form(Enum):
    """How a value is written in config.toml and as text."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    SWITCH = "true or false"
    LIST = "list of text"
    TABLE = "table of text"
    DURATION = 'seconds, or "90s", "30m", "2h", "never"'
    SIZE = '"auto", "off", bytes, "24GB" or "60%" (at most "100%")'


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of one key."""

    key: str
    name: str  # the field of Settings
    form: Form
    default: Any  # of the type that `form` says
    help: str
    needs_restart: bool
    choices: tuple[str, ...]
    minimum: float
    maximum: float
    secret: bool
    local_only: bool  # a path, environment or hashes: never set over HTTP
    pattern: str  # of a text, as a regular expression; `takes` says it in words
    takes: str
    holds_models: bool  # names of models, or paths: no path over HTTP

    @property
    def environment_name(self) -> str:
        return "SWIFTLM_" + self.key.upper().replace(".", "_")

    @property
    def accepts(self) -> str:
        """The values it can have, or their form: what a page needs to offer a field."""
        return " | ".join(choice or '""' for choice in self.choices) or self.form.value

    @property
    def flag(self) -> str:
        return "--" + self.key.replace(".", "-").replace("_", "-")


def _option(
    form: Form,
    default: Any,  # the dataclass field carries the real type
    help: str,
    *,
    needs_restart: bool = False,
    choices: tuple[str, ...] = (),
    minimum: float = 0,
    maximum: float = 2**62,
    secret: bool = False,
    local_only: bool = False,
    holds_models: bool = False,
    pattern: str = "",
    takes: str = "",
) -> Any:
    metadata = {
        "form": form,
        "help": help,
        "needs_restart": needs_restart,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "secret": secret,
        "local_only": local_only,
        "holds_models": holds_models,
        "pattern": pattern,
        "takes": takes,
    }
    if isinstance(default, Mapping):
        frozen = types.MappingProxyType(dict(default))
        return field(default_factory=lambda: frozen, metadata=metadata)
    return field(default=default, metadata=metadata)


def _of_load(name: str, *, holds_models: bool = False) -> Any:
    """An option of [engine] that a single load may set, too, as the table of those has it."""
    option = BY_NAME[name]
    if option.kind is Kind.COUNT:
        help = f"{option.help}; 0 = {option.zero}."
        return _option(Form.INTEGER, 0, help, maximum=option.maximum)
    if option.kind is Kind.SIZE:
        return _option(Form.SIZE, "auto", option.help + ".", minimum=1)
    if option.kind is Kind.LAYERS:
        pattern, takes = "all|auto|[0-9]{1,6}", "all, auto or a number of layers"
        help = f"{option.help}: all, auto or a number."
        return _option(Form.TEXT, "all", help, pattern=pattern, takes=takes)
    default = option.default or next(iter(option.choices), "")
    return _option(
        Form.TEXT, default, option.help + ".", choices=option.choices, holds_models=holds_models
    )


_TEXT, _INTEGER, _NUMBER, _SWITCH = Form.TEXT, Form.INTEGER, Form.NUMBER, Form.SWITCH
_LIST, _TABLE, _DURATION, _SIZE = Form.LIST, Form.TABLE, Form.DURATION, Form.SIZE


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration one daemon runs by. A field is its key with `.` written as `_`."""

    http_host: str = _option(
        _TEXT, "127.0.0.1", "Address that HTTP listens on.", needs_restart=True
    )
    http_port: int = _option(
        _INTEGER, 5413, "Port of HTTP; never moved when busy.", needs_restart=True, maximum=65535
    )
    http_api_keys: tuple[str, ...] = _option(
        _LIST,
        (),
        "Keys that clients must send; `config set` stores hashes. None = no key is required.",
        secret=True,
        local_only=True,
    )
    http_keys: Mapping[str, str] = _option(
        _TABLE,
        {},
        "Named keys, each as `sha256:` and its hash; `swiftlmctl keys add` makes them.",
        secret=True,
        local_only=True,
    )
    http_allowed_hosts: tuple[str, ...] = _option(
        _LIST, (), "Names accepted in the Host header in addition to loopback ones; * = any."
    )
    http_allowed_origins: tuple[str, ...] = _option(
        _LIST, (), "Web origins that may call from a browser in addition to our own pages; * = any."
    )
    http_max_body_bytes: int = _option(
        _INTEGER, 64 * 2**20, "Largest request body.", minimum=1024, needs_restart=True
    )
    http_max_in_flight: int = _option(
        _INTEGER,
        256,
        "Requests accepted at once; more get 429 with Retry-After.",
        minimum=1,
        needs_restart=True,
    )
    http_keepalive: float = _option(
        _DURATION,
        10.0,
        "Silence in a stream after which a comment is sent.",
        minimum=0.1,
        needs_restart=True,
    )
    http_tls: str = _option(
        _TEXT,
        "off",
        "HTTPS for non-local clients: auto creates certificates, files uses yours. The plain "
        "port is then for this machine only.",
        needs_restart=True,
        choices=("off", "auto", "files"),
    )
    http_tls_port: int = _option(
        _INTEGER,
        5414,
        "Port of HTTPS, at `host`.",
        needs_restart=True,
        minimum=1,
        maximum=65535,
    )
    http_tls_certificate: str = _option(
        _TEXT,
        "",
        'File of the certificate with its chain, for tls = "files".',
        needs_restart=True,
        local_only=True,
    )
    http_tls_key: str = _option(
        _TEXT, "", "File of its key, without a passphrase.", needs_restart=True, local_only=True
    )
    http_web: bool = _option(_SWITCH, True, "Serve the web page.", needs_restart=True)

    models_default: str = _option(
        _TEXT, "smollm2-135m", "Model of requests that name none, or `default`.", holds_models=True
    )
    models_aliases: Mapping[str, str] = _option(
        _TABLE,
        {"claude-*": "default"},
        "Other names for models; `*` matches anything, the target may be `default`.",
        holds_models=True,
    )
    models_unknown: str = _option(
        _TEXT,
        "error",
        "What an unknown model name gets: an error, or the default model.",
        choices=("error", "default"),
    )
    models_on_missing: str = _option(
        _TEXT,
        "error",
        "What a request for a hub model that is not here gets: an error, or the model, fetched.",
        choices=("error", "pull"),
    )
    models_folders: tuple[str, ...] = _option(
        _LIST, (), "Further folders that hold models.", needs_restart=True, local_only=True
    )
    models_preload: tuple[str, ...] = _option(
        _LIST, (), "Models loaded when the daemon starts.", holds_models=True
    )
    models_pinned: tuple[str, ...] = _option(
        _LIST, (), "Models loaded when the daemon starts and never evicted.", holds_models=True
    )
    models_keep_alive: float = _option(
        _DURATION, 1800.0, "Idle time after which a model is unloaded; 0 = at once."
    )
    models_max_loaded: int = _option(
        _INTEGER, 0, "Models loaded at once; 0 = as many as fit into the budget."
    )
    models_swap_hold: float = _option(
        _DURATION, 5.0, "A model stays at least this long before another may take its place."
    )
    models_swap_wait: float = _option(
        _DURATION, 60.0, "A request waits this long for a busy model to make room."
    )
    models_load_timeout: float = _option(
        _DURATION, 1800.0, "A load that took longer is given up.", minimum=1
    )

    engine_context: int = _of_load("context")
    engine_parallel: int = _of_load("parallel")
    engine_kv: str = _of_load("kv")
    engine_dtype: str = _of_load("dtype")
    engine_exact: str = _of_load("exact")
    engine_cpu_weights: str = _of_load("cpu_weights")
    engine_memory_budget: str = _of_load("memory_budget")
    engine_buffer_cache: str = _option(_SIZE, "auto", "Free buffers that MLX may keep.")
    engine_wire: str = _option(
        _TEXT, "auto", "Keep weights from being paged out (Metal).", choices=("auto", "off")
    )
    engine_prefix_cache: str = _option(_SIZE, "auto", "Memory for KV kept across requests.")
    engine_prefix_disk: str = _option(
        _SIZE, "auto", "Disk for KV kept across restarts; auto = 20GB, a share is one of 100 GB."
    )
    engine_prefill_chunk: int = _of_load("prefill_chunk")
    engine_prefill_slice_ms: int = _option(
        _INTEGER, 0, "Longest wait of a decoding sequence for a prefill; 0 = 250."
    )
    engine_max_queue: int = _option(
        _INTEGER, 0, "Requests that may wait for a slot; 0 = 64.", maximum=100_000
    )
    engine_gpu_layers: str = _of_load("gpu_layers")
    engine_stream_experts: str = _of_load("stream_experts")
    engine_expert_slots: int = _of_load("expert_slots")
    engine_top_k_experts: int = _of_load("top_k_experts")
    engine_ssd_nocache: str = _of_load("ssd_nocache")
    engine_ssd_prefetch: str = _of_load("ssd_prefetch")
    engine_draft: str = _of_load("draft", holds_models=True)
    engine_draft_tokens: int = _of_load("draft_tokens")
    engine_template_kwargs: Mapping[str, str] = _option(
        _TABLE, {}, "Values (JSON) handed to every chat template."
    )
    engine_sampling: Mapping[str, str] = _option(
        _TABLE, {}, "Sampling of requests that choose none; before the model's own advice."
    )
    engine_stall: float = _option(
        _DURATION, 300.0, "An engine whose step takes longer is restarted; never = off.", minimum=1
    )
    engine_cluster: bool = _option(_SWITCH, False, "Split the model over the hosts of [cluster].")
    engine_cluster_split: str = _option(
        _TEXT,
        "auto",
        "How to split the model: equal parts of each layer (tensor), or layer ranges (pipeline).",
        choices=("auto", "tensor", "pipeline"),
    )
    engine_environment: Mapping[str, str] = _option(
        _TABLE, {}, "Environment variables added to engine processes.", local_only=True
    )

    cluster_hosts: tuple[str, ...] = _option(
        _LIST,
        (),
        "Hosts of a group, one per rank: `localhost` first, then names of `agents` or of ssh.",
        local_only=True,
    )
    cluster_agents: Mapping[str, str] = _option(
        _TABLE,
        {},
        "Where a host's `swiftlmd join` listens, as `HOST:PORT`; the others use ssh.",
        local_only=True,
    )
    cluster_address: str = _option(_TEXT, "127.0.0.1", "Where remote hosts reach this machine.")
    cluster_lost_after: float = _option(
        _DURATION,
        10.0,
        "Silence after which a rank is lost and its group ends.",
        minimum=1,
        maximum=3600,
    )

    calibration_auto: bool = _option(_SWITCH, True, "Measure a model when the machine is idle.")

    hub_endpoint: str = _option(
        _TEXT, "", "Address of the model hub; empty = huggingface.co.", local_only=True
    )
    hub_home: str = _option(
        _TEXT,
        "",
        "Folder that holds the hub cache (`hub`); empty = the environment's or the usual one.",
        needs_restart=True,
        local_only=True,
    )
    hub_offline: bool = _option(_SWITCH, False, "Never use the network for models.")
    hub_http_proxy: str = _option(_TEXT, "", "Proxy for http downloads.")
    hub_https_proxy: str = _option(_TEXT, "", "Proxy for https downloads.")
    hub_no_proxy: str = _option(_TEXT, "", "Hosts reached without the proxy.")
    hub_ca_bundle: str = _option(
        _TEXT, "", "File of certificates trusted for downloads.", local_only=True
    )

    log_level: str = _option(
        _TEXT, "info", "Lowest level that is logged.", choices=("debug", "info", "warning", "error")
    )
    log_access: bool = _option(_SWITCH, True, "Write one line per request to access.log.")

    service_drain: float = _option(
        _DURATION,
        25.0,
        "Time that running requests get to finish; supervisors kill after 45s.",
        maximum=30,
    )
    power_prevent_sleep: bool = _option(
        _SWITCH, False, "Keep the machine awake while requests run."
    )

    model: Mapping[str, Mapping[str, Any]] = field(  # values are of the type each option says
        default_factory=lambda: types.MappingProxyType({}), metadata={"per_model": True}
    )

    def for_model(self, name: str) -> Settings:
        """These settings with the [model."NAME"] table laid over [engine] and keep_alive."""
        table = self.model.get(name)
        if not table:
            return self
        return dataclasses.replace(self, **{PER_MODEL[key].name: v for key, v in table.items()})

    def load_options(self) -> tuple[object, ...]:
        """What a loaded model would have to be loaded again for, when it changes."""
        keys = (key for key in PER_MODEL if key not in ("keep_alive", "stall"))
        return tuple(getattr(self, PER_MODEL[key].name) for key in keys)

    def asked_beside(self, usual: Settings) -> dict[str, Any]:
        """Fields of one model's load in which this differs from `usual`."""
        names = (option.name for key, option in PER_MODEL.items() if key != "keep_alive")
        asked = {name: getattr(self, name) for name in names}
        return {name: value for name, value in asked.items() if value != getattr(usual, name)}


def _described(item: dataclasses.Field[Any]) -> Option:
    table, _, rest = item.name.partition("_")
    default = item.default
    if default is dataclasses.MISSING:
        assert item.default_factory is not dataclasses.MISSING
        default = item.default_factory()
    return Option(key=f"{table}.{rest}", name=item.name, default=default, **item.metadata)


OPTIONS: Mapping[str, Option] = types.MappingProxyType(
    {
        option.key: option
        for option in map(
            _described,
            (
                f
                for f in dataclasses.fields(Settings)
                if f.metadata and "per_model" not in f.metadata
            ),
        )
    }
)

# What a [model."NAME"] table may hold: [engine] without its prefix, and how long to keep it.
_SHARED = ("engine.memory_budget", "engine.environment")
PER_MODEL: Mapping[str, Option] = types.MappingProxyType(
    {
        key.partition(".")[2]: option
        for key, option in OPTIONS.items()
        if (key.startswith("engine.") and key not in _SHARED) or key == "models.keep_alive"
    }
)
