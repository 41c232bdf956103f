"""What a load may be asked for, each option once: the one table of it.

From it follow the flags of `swiftlmctl load` and `plan`, the settings under [engine] with their
checks and help, and how a message's fields are laid over the settings. A new option is a row here
and a field of `LoadOptions` in admin.proto; tests compare the two, and follow every option to the
engine's request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What values an option takes."""

    COUNT = "count"  # at least 1; the setting 0 and a missing flag leave it to `zero`
    TEXT = "text"
    SIZE = "size"
    LAYERS = "layers"  # a number, all or auto
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class LoadOption:
    """`name`: the field of LoadOptions. `help` has no full stop: flags and settings go on."""

    name: str
    kind: Kind
    help: str
    zero: str = ""  # what happens where a count is not given
    choices: tuple[str, ...] = ()
    default: str = ""  # of a text
    maximum: int = 2**31 - 1  # that a message carries: a larger number would arrive as another
    flags: tuple[str, ...] = ()
    key: str = ""
    planned: bool = True  # `plan` takes it: it changes what a model takes, or how it runs

    @property
    def setting(self) -> str:
        """The key of the configuration behind it."""
        return self.key or f"engine.{self.name}"

    @property
    def spelled(self) -> tuple[str, ...]:
        """The names of its flag."""
        return self.flags or ("--" + self.name.replace("_", "-"),)


_AUTO_ON_OFF = ("auto", "on", "off")
_KV = ("auto", "fp16", "turbo", "k4v3", "k4v4", "k8v3", "spec", "spec-srht")

LOAD_OPTIONS = (
    LoadOption(
        "context", Kind.COUNT, "Tokens of context", "from the plan", flags=("--context", "--ctx")
    ),
    LoadOption("parallel", Kind.COUNT, "Sequences decoded together", "from the plan", maximum=1024),
    LoadOption("kv", Kind.TEXT, "Format of the KV cache (turbo is k4v3)", choices=_KV),
    LoadOption(
        "memory_budget",
        Kind.SIZE,
        "Memory that all models together may hold; auto and off = as the machine allows",
    ),
    LoadOption(
        "dtype",
        Kind.TEXT,
        "Activation dtype; empty = the model's own",
        choices=("", "float32", "float16", "bfloat16"),
    ),
    LoadOption(
        "exact",
        Kind.TEXT,
        "On a GPU, compute a request to the same bits whoever else is served: unless it costs "
        "a lone one more than a quarter (auto), always (on), never (off)",
        choices=_AUTO_ON_OFF,
    ),
    LoadOption("gpu_layers", Kind.LAYERS, "First layers on the accelerator, the rest on the CPU"),
    LoadOption(
        "stream_experts",
        Kind.TEXT,
        "Read experts, or whole layers, from disk as needed",
        choices=_AUTO_ON_OFF,
    ),
    LoadOption(
        "expert_slots", Kind.COUNT, "Experts kept in memory per streamed layer", "from the plan"
    ),
    LoadOption("top_k_experts", Kind.COUNT, "Experts used per token", "the model's own number"),
    LoadOption(
        "ssd_nocache", Kind.TEXT, "Bypass the page cache when streaming", choices=_AUTO_ON_OFF
    ),
    LoadOption(
        "ssd_prefetch",
        Kind.TEXT,
        "Read the experts that the next layer's router would choose",
        choices=("off", "next-router"),
        default="off",
    ),
    LoadOption(
        "draft",
        Kind.TEXT,
        "Speculative decoding by a draft model (a name or a folder's path) or `ngram`; off = none",
    ),
    LoadOption("draft_tokens", Kind.COUNT, "Tokens drafted ahead", "4, with `ngram` 8", maximum=64),
    LoadOption("prefill_chunk", Kind.COUNT, "Tokens of prefill in one step", "measured"),
    LoadOption(
        "cpu_weights",
        Kind.TEXT,
        "On the CPU, hold quantized weights as float32, which is faster: where it takes at most "
        "a quarter of the budget (auto), always (expand), never (keep)",
        choices=("auto", "expand", "keep"),
    ),
    LoadOption(
        "keep_alive_s",
        Kind.SECONDS,
        "Idle time after which the model is unloaded: 10m, 2h, 0, never",
        flags=("--keep-alive",),
        key="models.keep_alive",
        planned=False,
    ),
)

PLANNED = tuple(option for option in LOAD_OPTIONS if option.planned)
GROUP = tuple(option for option in LOAD_OPTIONS if option.name in ("context", "parallel"))
BY_NAME = {option.name: option for option in LOAD_OPTIONS}
