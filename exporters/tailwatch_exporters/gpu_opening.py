"""Opens a GPU by its place in the enumeration, without waiting for one that hangs."""

from __future__ import annotations

import threading

from tailwatch_exporters._nvml import Device, Library


class DeviceOpening:
    """Asks for a GPU's handle and uuid in a thread of its own, from the beginning on.

    Args:
        library: NVML, initialised.
        index: the GPU's place in the enumeration.
    """

    def __init__(self, library: Library, index: int) -> None:
        self._library = library
        self._index = index
        self._found: tuple[str, Device] | None = None
        self._error: Exception | None = None
        # A daemon: a call that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"gpu-open-{index}", daemon=True)
        self._thread.start()

    def signal_stop(self) -> None:
        """Do nothing: it ends by itself when its calls return."""

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the calls; return whether they have returned."""
        self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive()

    def result(self) -> tuple[str, Device]:
        """Return uuid and GPU, after `join`.

        Raises:
            NvmlError: it could not be opened.
        """
        if self._error is not None:
            raise self._error
        if self._found is None:
            raise RuntimeError("asked for before the calls returned")
        return self._found

    def _run(self) -> None:
        try:
            device = self._library.device_by_index(self._index)
            self._found = (device.uuid(), device)
        except Exception as error:  # raised to who asks for the result
            self._error = error
