"""PCIe traffic of one GPU: which of NVML's three sources may be believed, per direction.

NVML has byte counters (fields 197 and 198), GPM rates (Hopper and newer) and a throughput call
that measures for 20 ms. The counters would be best, since nothing is missed between samples, but
NVML does not state their width, and 32 bits wrap within seconds at an inference server's rates.
So a counter is published only when its type has 64 bits and its growth agrees with the measured
rate; until then, and otherwise, the rate is.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tailwatch_exporters._nvml import FieldValue

_AGREEMENT_FACTOR = 2.0
_EVIDENCE_BYTES_PER_SECOND = 100_000.0  # two counters at rest agree without meaning anything
_TRIAL_SAMPLES = 3
_WATCH_SAMPLES = 30
_RETRY_SAMPLES = 60

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
    rejected is tried again after sixty samples.
    """

    def __init__(self) -> None:
        self.verdict: Verdict = "trial"
        self._samples_left = _TRIAL_SAMPLES
        self._last: tuple[float, float] | None = None
        self._grown_bytes = 0.0
        self._expected_bytes = 0.0
        self._seconds = 0.0

    def observe(self, at: float, answer: FieldValue, rate: PcieRate | None) -> bool:
        """Take one sample; return whether the counter was rejected by it.

        Args:
            at: when the counter was read, in seconds of any clock.
            answer: the counter, in bytes.
            rate: measured over the same interval, None where nothing measures it.
        """
        if self.verdict == "rejected":
            self._samples_left -= 1
            if self._samples_left <= 0:
                self._begin("trial", _TRIAL_SAMPLES)
                self._last = None
            return False
        if answer.value is None or not answer.is_wide:
            return self._reject()
        last, self._last = self._last, (at, answer.value)
        if last is None or rate is None:
            return False
        if answer.value < last[1]:  # the driver was reloaded: nothing to compare with
            self._begin(self.verdict, self._samples_left)
            return False
        self._grown_bytes += answer.value - last[1]
        self._expected_bytes += rate.bytes_per_second * (at - last[0])
        self._seconds += at - last[0]
        self._samples_left -= 1
        return self._judge() if self._samples_left <= 0 else False

    def _judge(self) -> bool:
        low, high = sorted((self._grown_bytes, self._expected_bytes))
        if high < _EVIDENCE_BYTES_PER_SECOND * self._seconds:
            self._begin(self.verdict, 1)
        elif high > _AGREEMENT_FACTOR * low:
            return self._reject()
        else:
            self._begin("accepted", _WATCH_SAMPLES)
        return False

    def _reject(self) -> bool:
        self._begin("rejected", _RETRY_SAMPLES)
        return True

    def _begin(self, verdict: Verdict, samples: int) -> None:
        self.verdict = verdict
        self._samples_left = samples
        self._grown_bytes = self._expected_bytes = self._seconds = 0.0
