"""The options of one load (`swiftlmctl load --ctx ...`) laid over the configured settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from swiftlm_proto import messages as m
from swiftlm_proto.layers import ALL_LAYERS, AUTO_LAYERS
from swiftlm_proto.load_options import LOAD_OPTIONS, LoadOption
from swiftlm_proto.load_options import Kind as OptionKind
from swiftlmd.config.settings import OPTIONS, Settings
from swiftlmd.config.values import BadValue, checked
from swiftlmd.faults import Kind, ServiceError

_FOREVER = 0xFFFFFFFF


def options_over(settings: Settings, options: m.LoadOptions | None) -> Settings:
    """`settings` with what the caller asked for; raises ServiceError for a value of no use."""
    values: dict[str, Any] = {}  # Any: the type that each option says
    for asked in LOAD_OPTIONS:
        value = getattr(options, asked.name, None)
        if value is None:
            continue
        option = OPTIONS[asked.setting]
        try:
            values[option.name] = checked(option, _as_configured(asked, value))
        except BadValue as error:
            raise ServiceError(Kind.INVALID, str(error), param=asked.name) from error
    return dataclasses.replace(settings, **values)


def _as_configured(option: LoadOption, value: Any) -> object:  # Any: as the option has it
    if option.kind is OptionKind.LAYERS:
        return {ALL_LAYERS: "all", AUTO_LAYERS: "auto"}.get(value, str(value))
    if option.kind is OptionKind.SECONDS and value == _FOREVER:
        return "never"
    return value
