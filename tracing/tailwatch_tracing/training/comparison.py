"""What is wrong between epochs, or between ranks: orders that repeat, statistics that differ."""

from __future__ import annotations

from tailwatch_tracing import families
from tailwatch_tracing.training.batch_norm import BatchNormStatistics
from tailwatch_tracing.training.ranks import Ranks, Report, spread
from tailwatch_tracing.training.readings import Readings
from tailwatch_tracing.training.record import RankRecord
from tailwatch_tracing.training.sample_order import Order


class Comparison:
    """Compares this rank's epochs with each other, and this rank with others.

    Args:
        record: Where the result is shown.
        readings: Through which BatchNorm's statistics are read.
        batch_norm: Them.
        ranks: The others; None without any.
    """

    def __init__(
        self,
        record: RankRecord,
        readings: Readings,
        batch_norm: BatchNormStatistics,
        ranks: Ranks | None,
    ) -> None:
        self._record = record
        self._readings = readings
        self._batch_norm = batch_norm
        self._ranks = ranks
        self._order: Order | None = None
        self._repeated_epoch = 0

    def forget_order(self) -> None:
        """Begin anew, with another data loader."""
        self._order = None

    def note_order(self, order: Order) -> None:
        """Take the order of an epoch, and count it if the epoch before had the same."""
        repeats = self._order is not None and self._order.digest == order.digest
        self._record.count(families.TRAINING_ORDER_REPEATS, "epochs", by=int(repeats))
        self._order = order

    def tell(self, step: int) -> None:
        """Tell the other ranks of this one, as of a step."""
        order = self._order
        means, variances = self._batch_norm.means(), self._batch_norm.variances()
        if self._ranks is None:
            return
        if not means:
            self._report(Report(step, order, [], []))
            return

        def report(values: list[float]) -> None:
            half = len(values) // 2
            self._report(Report(step, order, values[:half], values[half:]))

        self._readings.take([*means, *variances], report)

    def compare(self) -> None:
        """Compare with another rank, if it has told of the same step.

        Raises:
            RuntimeError: as torch does when the store is gone; it is not asked again.
        """
        if self._ranks is None:
            return
        try:
            own, other = self._ranks.own, self._ranks.other()
        except Exception:
            self._ranks = None
            raise
        if own is None or other is None:
            return
        distance = spread(own, other)
        if distance is not None:
            self._record.show(families.TRAINING_BN_SPREAD, distance)
        if own.order is not None and other.order is not None:
            is_new = own.order == other.order and own.order.epoch != self._repeated_epoch
            self._record.count(families.TRAINING_ORDER_REPEATS, "ranks", by=int(is_new))
            if is_new:
                self._repeated_epoch = own.order.epoch

    def _report(self, report: Report) -> None:
        try:
            if self._ranks is not None:
                self._ranks.tell(report)
        except Exception:
            self._ranks = None
            raise
