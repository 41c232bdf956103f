"""What a model will cost on this machine, before anything is loaded.

`make_plan(facts, request, limits)` is the way in; the Plan drives load, admission and refusals.
"""

from swiftlm_engine.brain.plan.calibrated import calibrated
from swiftlm_engine.brain.plan.errors import BadBudget, BadPlanRequest
from swiftlm_engine.brain.plan.expansion import CpuWeights, Expansion
from swiftlm_engine.brain.plan.group_plan import (
    GroupHost,
    GroupPlan,
    Way,
    best_way,
    make_group_plan,
)
from swiftlm_engine.brain.plan.group_report import group_report, ranks_report
from swiftlm_engine.brain.plan.group_speed import LinkSpeed
from swiftlm_engine.brain.plan.machine import (
    SOFT_SHARE,
    Accelerator,
    Covers,
    Limit,
    MachineLimits,
    gigabytes,
    parse_budget,
)
from swiftlm_engine.brain.plan.memory_terms import MeasuredTerms, Need, Term, TermSource
from swiftlm_engine.brain.plan.planner import make_plan
from swiftlm_engine.brain.plan.request import PlanRequest, Settings, Toggle, auto_context
from swiftlm_engine.brain.plan.result import EngineLimits, Plan, RequestCost, Strategy
from swiftlm_engine.brain.plan.speed import MachineSpeed, PredictedSpeed, Range, prior_speed
from swiftlm_engine.brain.plan.streaming import Streaming, knee

__all__ = [
    "SOFT_SHARE",
    "Accelerator",
    "BadBudget",
    "BadPlanRequest",
    "Covers",
    "CpuWeights",
    "EngineLimits",
    "Expansion",
    "GroupHost",
    "GroupPlan",
    "Limit",
    "LinkSpeed",
    "MachineLimits",
    "MachineSpeed",
    "MeasuredTerms",
    "Need",
    "Plan",
    "PlanRequest",
    "PredictedSpeed",
    "Range",
    "RequestCost",
    "Settings",
    "Strategy",
    "Streaming",
    "Term",
    "TermSource",
    "Toggle",
    "Way",
    "auto_context",
    "best_way",
    "calibrated",
    "gigabytes",
    "group_report",
    "knee",
    "make_group_plan",
    "make_plan",
    "parse_budget",
    "prior_speed",
    "ranks_report",
]
