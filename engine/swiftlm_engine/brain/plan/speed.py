"""Predicted speed, always as a range: bytes over bandwidth and operations over arithmetic.

Priors are published bandwidths and conservative arithmetic rates; a calibration record replaces
them. A prediction that rests on priors says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from swiftlm_engine.brain.facts import ModelFacts


@dataclass(frozen=True, slots=True)
class Range:
    """A value between two bounds."""

    low: float
    high: float

    def scaled(self, factor: float) -> Range:
        return Range(self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """What the machine moves and computes per second. `measured` = from a calibration record.

    `packed_ops_s` is for quantised weights, which CPU back ends compute far slower than floats.
    """

    memory_bytes_s: Range = Range(4e9, 14e9)
    float_ops_s: Range = Range(3e9, 70e9)
    packed_ops_s: Range = Range(2e9, 6e9)
    ssd_bytes_s: Range = Range(0.8e9, 2e9)
    layer_s: Range = Range(2e-5, 2e-4)  # launches and host work per layer and step
    sync_s: Range = Range(2e-5, 2e-4)  # reading router ids back, per streamed layer
    ssd_threads: int = 0  # that read at once; more than 0 = the disk was measured
    measured: bool = False


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """Tokens per second of one sequence: decode with an empty and a full context."""

    prefill: Range
    decode: Range
    decode_full: Range
    measured: bool


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one decoded token moves: bytes of weights, of KV at full context, and from the disk.

    `sweep_bytes` is what a prefilled token reads from the disk, its share of a chunk.
    """

    weight_bytes: int
    full_kv_bytes: int
    disk_bytes: float = 0.0
    disk_bytes_cached: float = 0.0
    synced_layers: int = 0
    sweep_bytes: float = 0.0
    cpu_share: float = 0.0
    expanded_weights: int = 0  # packed on disk, floats in memory


# GB/s and half-precision TFLOP/s of Apple's chips (published; M5 with its matrix units).
_APPLE: dict[str, tuple[float, float]] = {
    "M1": (68, 2.6), "M1 Pro": (200, 5.2), "M1 Max": (400, 10.4), "M1 Ultra": (800, 20.8),
    "M2": (100, 3.6), "M2 Pro": (200, 6.8), "M2 Max": (400, 13.5), "M2 Ultra": (800, 27.0),
    "M3": (100, 3.6), "M3 Pro": (150, 6.4), "M3 Max": (350, 14.2), "M3 Ultra": (819, 28.0),
    "M4": (120, 4.3), "M4 Pro": (273, 8.6), "M4 Max": (480, 17.0),
    "M5": (153, 12.0), "M5 Pro": (307, 25.0), "M5 Max": (540, 50.0),
}  # fmt: skip
# CPU layers in MLX against the GPU, both ways of reading the one measurement there is.
_CPU_PENALTY = Range(20.0, 55.0)


def prior_speed(device_name: str, accelerator: str, num_cores: int = 2) -> MachineSpeed:
    """What to expect of a device before anything is measured."""
    if accelerator == "metal":
        bandwidth, tflops = _apple(device_name.removeprefix("Apple ").strip())
        return MachineSpeed(
            memory_bytes_s=Range(0.55e9 * bandwidth, 0.85e9 * bandwidth),
            float_ops_s=Range(0.35e12 * tflops, 0.75e12 * tflops),
            packed_ops_s=Range(0.3e12 * tflops, 0.7e12 * tflops),
            ssd_bytes_s=Range(2.5e9, 6.5e9),
            layer_s=Range(3e-5, 1.5e-4),
            sync_s=Range(3.5e-4, 1.0e-3),
        )
    if accelerator == "cuda":
        return MachineSpeed(
            Range(0.3e12, 2.4e12), Range(20e12, 400e12), Range(10e12, 200e12), Range(1e9, 6e9)
        )
    share = max(1, num_cores) / 2
    base = MachineSpeed()
    return MachineSpeed(
        base.memory_bytes_s.scaled(share),
        base.float_ops_s.scaled(share),
        base.packed_ops_s.scaled(share),
    )


def _apple(chip: str) -> tuple[float, float]:
    """One that nobody has heard of is taken for the newest known one of its size."""
    if chip in _APPLE:
        return _APPLE[chip]
    size = chip.partition(" ")[2]
    known = [figures for name, figures in _APPLE.items() if name.partition(" ")[2] == size]
    return known[-1] if known and chip.startswith("M") else (100, 3.5)


def predict(facts: ModelFacts, machine: MachineSpeed, step: StepCost) -> PredictedSpeed:
    """Speeds of one sequence alone on the machine."""
    operations = 2 * facts.weights.active_weights
    packed = operations if facts.quantisation.default is not None else 0
    packed = max(0, packed - 2 * step.expanded_weights)
    layers = len(facts.layers)

    def compute_s(fast: bool) -> float:
        floats = (operations - packed) / _end(machine.float_ops_s, fast)
        return floats + packed / _end(machine.packed_ops_s, fast)

    def decode_s(fast: bool, kv_bytes: int) -> float:
        moved = (step.weight_bytes + kv_bytes) / _end(machine.memory_bytes_s, fast)
        host = layers * _end(machine.layer_s, not fast)
        disk = step.disk_bytes_cached if fast else step.disk_bytes
        waits = disk / _end(machine.ssd_bytes_s, fast)
        waits += step.synced_layers * _end(machine.sync_s, not fast)
        penalty = 1 + step.cpu_share * (_end(_CPU_PENALTY, not fast) - 1)
        return max(moved, compute_s(fast)) * penalty + host + waits

    def prefill_s(fast: bool) -> float:
        penalty = 1 + step.cpu_share * (_end(_CPU_PENALTY, not fast) - 1)
        # The next experts are read while the last ones compute: the slower of the two decides.
        reads = step.sweep_bytes / _end(machine.ssd_bytes_s, fast)
        return max(compute_s(fast) * penalty, reads)

    return PredictedSpeed(
        prefill=Range(1 / prefill_s(False), 1 / prefill_s(True)),
        decode=Range(1 / decode_s(False, 0), 1 / decode_s(True, 0)),
        decode_full=Range(
            1 / decode_s(False, step.full_kv_bytes), 1 / decode_s(True, step.full_kv_bytes)
        ),
        measured=machine.measured,
    )


def _end(bounds: Range, high: bool) -> float:
    return bounds.high if high else bounds.low
