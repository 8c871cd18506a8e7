"""Let Debian's Alertmanager find its templates where its package was unpacked.

Debian moved Alertmanager's built-in notification templates out of the program, into
/usr/share/prometheus/alertmanager, and no flag says otherwise: unpacked elsewhere, the
programs refuse every configuration (0.25.0-1). The path inside them is replaced with one of
the same length that goes through a file descriptor, which a small script opens for them.
"""

from __future__ import annotations

from pathlib import Path

_SHARE = Path("usr", "share", "prometheus", "alertmanager")
_COMPILED_IN = b"/usr/share/prometheus/alertmanager"
_DESCRIPTOR = 9
_REPLACEMENT = b"/proc/self/fd/%d" % _DESCRIPTOR + b"/." * 9 + b"/"

_SCRIPT = f"""\
#!/bin/sh
root=${{0%/*}}/../..
exec {_DESCRIPTOR}<"$root/{_SHARE}"
exec "$root/usr/lib/tailwatch/${{0##*/}}" "$@"
"""


def relocate(root: Path) -> None:
    """Make the programs under `root`, an unpacked package, independent of /usr/share.

    Packages without that directory, and programs without that path, stay as they are.
    """
    if not (root / _SHARE).is_dir():
        return
    moved = root / "usr" / "lib" / "tailwatch"
    for program in list((root / "usr" / "bin").iterdir()):
        content = program.read_bytes()
        if _COMPILED_IN not in content:
            continue
        moved.mkdir(parents=True, exist_ok=True)
        target = moved / program.name
        target.write_bytes(content.replace(_COMPILED_IN, _REPLACEMENT))
        target.chmod(0o755)
        program.write_text(_SCRIPT)
