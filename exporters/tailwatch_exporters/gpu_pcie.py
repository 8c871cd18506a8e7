"""PCIe traffic of one GPU: which of NVML's three sources may be believed, per direction.

NVML has byte counters (fields 197 and 198), GPM rates (Hopper and newer) and a throughput call
that measures for 20 ms. The counters would be best, since nothing is missed between samples, but
NVML does not state their width, and 32 bits wrap within seconds at an inference server's rates.
So a counter is published only when its type has 64 bits and its growth agrees with the measured
rate; until then, and otherwise, the rate is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from tailwatch_exporters._nvml import Device, FieldValue
from tailwatch_exporters.gpu_sample import (
    COUNTER_LIMIT,
    U32_LIMIT,
    DeviceCalls,
    SampleBuilder,
)

_AGREEMENT_FACTOR = 2.0
_EVIDENCE_BYTES = 1_000_000.0  # at rest all agree; of a few bursts one falls between two samples
_TRIAL_SAMPLES = 3
_WATCH_SAMPLES = 30
_RETRY_SAMPLES = 60
_WRAP_BYTES = 2.0**32

Verdict = Literal["trial", "accepted", "rejected"]


class PcieRate(NamedTuple):
    """A measured rate in bytes per second and where it comes from."""

    bytes_per_second: float
    source: Literal["gpm", "throughput"]


class ByteCounter:
    """Decides whether one direction's byte counter may be published.

    The growth of the counter is compared with the measured rate over three samples, and then
    again over every thirty. Bursts make the 20 ms measurement scatter, so a factor of two counts
    as agreement; what this is meant to find is off by orders of magnitude. A counter that was
    rejected is tried again after sixty samples, but not one that was seen to wrap at 32 bits
    though its type has 64.
    """

    def __init__(self) -> None:
        self.verdict: Verdict = "trial"
        self._samples_left = _TRIAL_SAMPLES
        self._wraps = False
        self._last: tuple[float, float] | None = None
        self._grown_bytes = 0.0
        self._expected_bytes = 0.0

    def observe(self, at: float, answer: FieldValue, rate: PcieRate | None) -> bool:
        """Take one sample; return whether the counter was rejected by it.

        Args:
            at: when the counter was read, in seconds of any clock.
            answer: the counter, in bytes.
            rate: measured over the same interval, None where nothing measures it.
        """
        if self.verdict == "rejected":
            self._samples_left -= 1
            if self._samples_left <= 0 and not self._wraps:
                self._begin("trial", _TRIAL_SAMPLES)
                self._last = None
            return False
        if answer.value is None or not answer.is_wide:
            return self._reject()
        last, self._last = self._last, (at, answer.value)
        if last is None or rate is None:
            return False
        expected_bytes = rate.bytes_per_second * (at - last[0])
        if answer.value < last[1]:
            self._wraps = last[1] < _WRAP_BYTES <= last[1] + _AGREEMENT_FACTOR * expected_bytes
            if self._wraps:
                return self._reject()
            # The driver was reloaded: nothing to compare with.
            self._begin(self.verdict, self._samples_left)
            return False
        self._grown_bytes += answer.value - last[1]
        self._expected_bytes += expected_bytes
        self._samples_left -= 1
        return self._judge() if self._samples_left <= 0 else False

    def _judge(self) -> bool:
        low, high = sorted((self._grown_bytes, self._expected_bytes))
        if high < _EVIDENCE_BYTES:
            return False  # the window goes on until there is something to compare
        if high > _AGREEMENT_FACTOR * low:
            return self._reject()
        self._begin("accepted", _WATCH_SAMPLES)
        return False

    def _reject(self) -> bool:
        self._begin("rejected", _RETRY_SAMPLES)
        return True

    def _begin(self, verdict: Verdict, samples: int) -> None:
        self.verdict = verdict
        self._samples_left = samples
        self._grown_bytes = self._expected_bytes = 0.0


class _Direction(NamedTuple):
    """One direction of the PCIe traffic: NVML's field, and the families."""

    field: str
    total: str
    per_second: str


_TRANSMIT = _Direction("197", "gpu_pcie_transmit_bytes_total", "gpu_pcie_transmit_bytes_per_second")
_RECEIVE = _Direction("198", "gpu_pcie_receive_bytes_total", "gpu_pcie_receive_bytes_per_second")


class PcieProbe:
    """PCIe traffic per direction, from the best source that may be believed."""

    def __init__(self) -> None:
        self._counters = {_TRANSMIT: ByteCounter(), _RECEIVE: ByteCounter()}

    def read(
        self,
        at: float,
        device: Device,
        calls: DeviceCalls,
        builder: SampleBuilder,
        counters: tuple[FieldValue | None, FieldValue | None],
        rates: tuple[PcieRate | None, PcieRate | None],
    ) -> None:
        """Publish both directions.

        Args:
            at: when the byte counters were read, in seconds.
            device, calls, builder: of the sample.
            counters: the byte counters, transmitted and received, None where there are none.
            rates: GPM's rates; where there are none, the call that takes 20 ms is made.
        """
        sent = rates[0] or _throughput(calls, device.pcie_transmit_kilobytes, builder)
        self._publish(at, builder, _TRANSMIT, counters[0], sent)
        received = rates[1] or _throughput(calls, device.pcie_receive_kilobytes, builder)
        self._publish(at, builder, _RECEIVE, counters[1], received)

    def _publish(
        self,
        at: float,
        builder: SampleBuilder,
        direction: _Direction,
        answer: FieldValue | None,
        rate: PcieRate | None,
    ) -> None:
        counter = self._counters[direction]
        if answer is not None and not _is_believable(direction, answer, builder):
            answer = None
        if answer is not None and counter.observe(at, answer, rate):
            builder.reject(direction.field)
        if answer is not None and answer.value is not None and counter.verdict == "accepted":
            builder.add(direction.total, answer.value, ("source", "field"))
        elif rate is not None:
            builder.add(direction.per_second, rate.bytes_per_second, ("source", rate.source))


def _is_believable(direction: _Direction, answer: FieldValue, builder: SampleBuilder) -> bool:
    value = answer.value
    return value is None or builder.is_plausible(direction.field, value, COUNTER_LIMIT)


def _throughput(
    calls: DeviceCalls, call: Callable[[], int], builder: SampleBuilder
) -> PcieRate | None:
    kilobytes = calls.attempt(call)
    if kilobytes is None or not builder.is_plausible("pcie_throughput", kilobytes, U32_LIMIT):
        return None
    return PcieRate(kilobytes * 1000.0, "throughput")
