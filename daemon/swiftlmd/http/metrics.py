"""Prometheus metrics of the HTTP surface, in a registry of their own.

Counters grow as requests end; what the daemon and its engines know is read from one
`DaemonStatus` when somebody scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError
from swiftlmd.http import streaming
from swiftlmd.http.context import RequestLog
from swiftlmd.http.tally import Tally

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

# name, help, how to read it from the statistics of one engine
_ENGINE_GAUGES: tuple[tuple[str, str, Callable[[m.EngineStats], float]], ...] = (
    ("requests_running", "Sequences in the decode batch or in prefill.", lambda s: s.running),
    ("requests_waiting", "Requests in the engine's queue.", lambda s: s.waiting),
    ("decode_tokens_per_second", "Over the last seconds.", lambda s: s.decode_tokens_per_s),
    ("prefill_tokens_per_second", "Over the last seconds.", lambda s: s.prefill_tokens_per_s),
    ("engine_footprint_bytes", "Memory of the engine process.", lambda s: s.footprint_bytes),
    ("engine_active_bytes", "Memory that MLX holds in arrays.", lambda s: s.active_bytes),
    ("engine_pool_bytes", "Memory in MLX's free buffers.", lambda s: s.pool_bytes),
    ("kv_bytes", "KV caches of running sequences.", lambda s: s.kv_bytes),
    ("prefix_cache_bytes", "RAM of the prefix cache.", lambda s: s.prefix_cache_bytes),
    ("step_age_seconds", "Since the last step while work waits.", lambda s: s.step_age_s),
)

_ENGINE_COUNTERS: tuple[tuple[str, str, Callable[[m.EngineStats], float]], ...] = (
    ("engine_steps", "Steps of the engine.", lambda s: s.steps),
    ("prefix_cache_hits", "Prompts that found a prefix.", lambda s: s.prefix_cache_hits),
    ("prefix_cache_misses", "Prompts that found none.", lambda s: s.prefix_cache_misses),
    ("engine_requests_aborted", "Requests ended by their client.", lambda s: s.aborted),
    ("engine_requests_failed", "Requests ended by a fault.", lambda s: s.failed),
)


class Metrics:
    def __init__(self) -> None:
        # One more line per counter, which nothing reads. (Untyped in the library.)
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        registry = self.registry
        self._requests = Counter(
            "swiftlm_requests", "HTTP requests.", ["route", "status"], registry=registry
        )
        self._generations = Counter(
            "swiftlm_generations",
            "Generations that have ended, by their outcome: ok, or why not.",
            ["route", "outcome"],
            registry=registry,
        )
        self._key_requests = Counter(
            "swiftlm_key_requests",
            "HTTP requests by API key.",
            ["key", "status"],
            registry=registry,
        )
        self._key_tokens = Counter(
            "swiftlm_key_tokens",
            "Tokens by API key; kind is prompt or completion.",
            ["key", "model", "kind"],
            registry=registry,
        )
        self._active = Gauge("swiftlm_requests_active", "Generations in flight.", registry=registry)
        self._tokens = Counter(
            "swiftlm_tokens_generated", "Completion tokens.", ["model"], registry=registry
        )
        self._prompt_tokens = Counter(
            "swiftlm_prompt_tokens", "Prompt tokens.", ["model"], registry=registry
        )
        self._cached_tokens = Counter(
            "swiftlm_cached_tokens",
            "Prompt tokens from the prefix cache.",
            ["model"],
            registry=registry,
        )
        self._first_token = Histogram(
            "swiftlm_time_to_first_token_seconds",
            "From the request to its first token.",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._duration = Histogram(
            "swiftlm_request_duration_seconds",
            "Whole requests.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        self._active.inc()
        try:
            yield
        finally:
            self._active.dec()

    @contextmanager
    def generation(self, route: str, model: str) -> Iterator[Tally]:
        """Books a generation of another door than HTTP; the block notes its events."""
        tally, outcome = Tally(), "client_left"
        try:
            with self.in_flight():
                yield tally
            outcome = tally.outcome()
        except ServiceError as error:
            outcome = error.code
            raise
        finally:
            self.book(RequestLog(route=route, model=model, usage=tally.usage()), outcome)

    def observe(self, record: RequestLog, status: int, seconds: float) -> None:
        """Counts one request whose connection is done with it."""
        self._requests.labels(record.route, str(status)).inc()
        self._duration.labels(record.route).observe(seconds)
        if record.key:
            self._key_requests.labels(record.key, str(status)).inc()

    def book(self, record: RequestLog, outcome: str) -> None:
        """Counts one generation at its end, good or not, and every token of it.

        The name of a model becomes a label only once it has answered: clients invent names.
        """
        self._generations.labels(record.route, outcome).inc()
        usage = record.usage
        if usage is None or not (usage.prompt_tokens or usage.completion_tokens):
            return
        if record.first_token_s:
            self._first_token.labels(record.model).observe(record.first_token_s)
        self._tokens.labels(record.model).inc(usage.completion_tokens)
        self._prompt_tokens.labels(record.model).inc(usage.prompt_tokens)
        self._cached_tokens.labels(record.model).inc(usage.cached_tokens)
        if record.key:
            self._key_tokens.labels(record.key, record.model, "prompt").inc(usage.prompt_tokens)
            self._key_tokens.labels(record.key, record.model, "completion").inc(
                usage.completion_tokens
            )

    def render(self, status: m.DaemonStatus) -> bytes:
        """The exposition text: our counters, then what `status` says now."""
        scraped = CollectorRegistry()
        scraped.register(_StatusCollector(status))
        return generate_latest(self.registry) + generate_latest(scraped)


class _StatusCollector(Collector):
    def __init__(self, status: m.DaemonStatus) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status = self._status
        machine = status.machine or m.MachineStatus()
        yield _gauge("uptime_seconds", "Since the daemon started.", status.uptime_s)
        yield _gauge("daemon_bytes", "Memory of the daemon itself.", status.daemon_bytes)
        yield CounterMetricFamily(
            "swiftlm_requests_accepted", "By every door.", value=status.requests
        )
        yield CounterMetricFamily(
            "swiftlm_requests_failed", "Of those, ended by a fault.", value=status.errors
        )
        yield _gauge("memory_budget_bytes", "What the service may hold.", machine.budget_bytes)
        yield _gauge("memory_used_bytes", "What the ledger has priced.", machine.used_bytes)
        yield _gauge("memory_measured_bytes", "As the kernel counts it.", machine.measured_bytes)
        yield self._loaded()
        running = [model for model in status.models if model.stats is not None]
        for name, text, read in _ENGINE_GAUGES:
            gauge = GaugeMetricFamily(f"swiftlm_{name}", text, labels=["model"])
            for model in running:
                gauge.add_metric([model.model], read(_stats(model)))
            yield gauge
        yield from _signs(running)
        for name, text, read in _ENGINE_COUNTERS:
            counter = CounterMetricFamily(f"swiftlm_{name}", text, labels=["model"])
            for model in running:
                counter.add_metric([model.model], read(_stats(model)))
            yield counter
        yield from streaming.collect(running)

    def _loaded(self) -> Metric:
        loaded = GaugeMetricFamily(
            "swiftlm_model_loaded", "1 for each model that is ready.", labels=["model"]
        )
        for model in self._status.models:
            if model.state == m.ModelStatusState.READY:
                loaded.add_metric([model.model], 1)
        return loaded


def _signs(running: list[m.ModelStatus]) -> Iterable[Metric]:
    """What is known of an engine that says nothing itself."""
    age = GaugeMetricFamily(
        "swiftlm_engine_last_sign_seconds", "Since the engine last answered.", labels=["model"]
    )
    silent = GaugeMetricFamily(
        "swiftlm_engine_silent_seconds", "Since a question without an answer.", labels=["model"]
    )
    unhealthy = GaugeMetricFamily(
        "swiftlm_engine_unhealthy",
        "1 without an answer or a step for half of engine.stall.",
        labels=["model"],
    )
    for model in running:
        age.add_metric([model.model], model.last_sign_s)
        silent.add_metric([model.model], model.silent_s)
        unhealthy.add_metric([model.model], float(model.unhealthy))
    return age, silent, unhealthy


def _stats(model: m.ModelStatus) -> m.EngineStats:
    return model.stats or m.EngineStats()


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"swiftlm_{name}", text, value=value)
