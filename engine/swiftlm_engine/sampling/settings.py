"""What one request asks of its sampling, checked against the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, replace


class BadSampling(ValueError):
    """A sampling value that no model can honour; `param` is the request field at fault."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


# As vLLM has it: log-probabilities that are divided by less leave the range of float32.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Temperature 0, or next to it, is greedy. `seed` None draws a fresh seed for the request."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 = all
    min_p: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float = 1.0
    repetition_context: int = 64  # tokens looked back, as llama.cpp, Ollama and LM Studio do
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def filters(self) -> tuple[float, int, float, float, float]:
        """Rows with equal filters are filtered in one call."""
        return (self.top_p, self.top_k, self.min_p, self.xtc_probability, self.xtc_threshold)

    @property
    def needs_history(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def check(self, vocab_size: int) -> SamplingSettings:
        """These settings, with `top_k` clamped to the vocabulary. Raises `BadSampling`."""
        _within("temperature", self.temperature, 0.0, 100.0)
        _within("top_p", self.top_p, 0.0, 1.0)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("xtc_probability", self.xtc_probability, 0.0, 1.0)
        _within("xtc_threshold", self.xtc_threshold, 0.0, 0.5)
        _within("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        for token_id, bias in self.logit_bias:
            if not 0 <= token_id < vocab_size:
                raise BadSampling(
                    "logit_bias",
                    f"logit_bias names token {token_id}; this model has 0 to {vocab_size - 1}",
                )
            _within("logit_bias", bias, -10_000.0, 10_000.0)
        if self.top_k >= vocab_size:
            return replace(self, top_k=0)
        return self


def _within(param: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also refuses NaN
        raise BadSampling(param, f"{param} is {value}; it must lie between {low:g} and {high:g}")
