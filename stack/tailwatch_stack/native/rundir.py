"""The temporary directory of a run: rendered configurations, logs, and the demo's data."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Ends when the pipe from us closes: at a normal stop, and also when we are killed with -9.
# The children die in that moment too; one may still write while the directory goes.
_REMOVE_WHEN_PARENT_ENDS = """\
cat > /dev/null
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf -- "$1" && exit
    sleep 0.2
done
"""


@contextmanager
def run_directory() -> Iterator[Path]:
    """Give a directory that is gone after the block, however this process ends."""
    directory = Path(tempfile.mkdtemp(prefix="tailwatch-"))
    try:
        with subprocess.Popen(
            ["/bin/sh", "-c", _REMOVE_WHEN_PARENT_ENDS, "tailwatch-cleaner", directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C on the terminal is not for it
        ):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # had the cleaner been killed
