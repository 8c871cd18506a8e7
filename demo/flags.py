"""What the demo's command lines have in common."""

import argparse


def port(text: str) -> int:
    """Return a TCP port.

    Raises:
        argparse.ArgumentTypeError: it is not a number from 1 to 65535.
    """
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text} is no port, expected 1 to 65535")
    return int(text)
