"""What an operator can ask of a plan that no plan can answer."""

from __future__ import annotations


class BadPlanRequest(ValueError):
    """The request contradicts itself or the model; the message says what would be valid."""


class BadBudget(BadPlanRequest):
    """A memory budget that is no size, negative, or more than the machine has."""
