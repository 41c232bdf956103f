"""What a model will cost on this machine, before anything is loaded.

`make_plan(facts, request, limits)` is the way in; the Plan drives load, admission and refusals.
"""

from .calibrated import calibrated
from .errors import BadBudget, BadPlanRequest
from .machine import Accelerator, Covers, Limit, MachineLimits, gigabytes, parse_budget
from .planner import make_plan
from .request import PlanRequest, Settings, Toggle
from .result import EngineLimits, Plan, RequestCost, Strategy
from .speed import MachineSpeed, Range, Speed, prior_speed
from .streaming import Streaming
from .terms import Measured, Need, Source, Term

__all__ = [
    "Accelerator",
    "BadBudget",
    "BadPlanRequest",
    "Covers",
    "EngineLimits",
    "Limit",
    "MachineLimits",
    "MachineSpeed",
    "Measured",
    "Need",
    "Plan",
    "PlanRequest",
    "Range",
    "RequestCost",
    "Settings",
    "Source",
    "Speed",
    "Strategy",
    "Streaming",
    "Term",
    "Toggle",
    "calibrated",
    "gigabytes",
    "make_plan",
    "parse_budget",
    "prior_speed",
]
