"""The daemon as launchd, systemd or nobody runs it: `base.ServiceManager`."""

from __future__ import annotations

from swiftlmctl.service.base import Phase, ServiceManager, ServiceState
from swiftlmctl.service.select import choose

__all__ = ["Phase", "ServiceManager", "ServiceState", "choose"]
