"""What a model will cost on this machine, before anything is loaded.

`make_plan(facts, request, limits)` is the way in; the Plan drives load, admission and refusals.
"""

from .calibrated import calibrated
from .errors import BadBudget, BadPlanRequest
from .group_plan import GroupHost, GroupPlan, Way, best_way, make_group_plan
from .group_report import group_report, ranks_report
from .group_speed import LinkSpeed
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
    "GroupHost",
    "GroupPlan",
    "Limit",
    "LinkSpeed",
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
    "Way",
    "best_way",
    "calibrated",
    "gigabytes",
    "group_report",
    "make_group_plan",
    "make_plan",
    "parse_budget",
    "prior_speed",
    "ranks_report",
]
