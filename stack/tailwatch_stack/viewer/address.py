"""Where the viewer listens."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple

from tailwatch_stack.errors import TailwatchError, UsageError


class ListenAddress(NamedTuple):
    """A host, empty for every interface, and a TCP port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        """Return it as it goes into a URL."""
        host = self.host or "0.0.0.0"
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """Read `host:port`, `[ipv6]:port` or `:port`, as Prometheus' own flags are written.

    Raises:
        UsageError: the port is missing or not in 1..65535.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise UsageError(f"--web.listen-address {text}: expected host:port, port from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"--web.listen-address {text}: expected an IPv6 address in brackets")
    return ListenAddress(host, int(port))


def bind(address: ListenAddress) -> socket.socket:
    """Return a socket that listens on the address.

    Raises:
        TailwatchError: the port is taken, or the address is not one of this machine.
    """
    host = address.host or "0.0.0.0"
    try:
        family, kind, protocol, _, sockaddr = socket.getaddrinfo(
            host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise TailwatchError(f"cannot listen on {address}: {error.strerror}") from error
    except UnicodeError as error:  # a label of the name is empty or too long
        raise TailwatchError(f"cannot listen on {address}: that is no host name") from error
    # As other servers do: connections of an earlier run in TIME_WAIT do not matter.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(sockaddr)
        listener.listen()  # two may bind, with the option above, but only one may listen
    except OSError as error:
        listener.close()
        raise TailwatchError(
            f"cannot listen on {address}: {error.strerror}; "
            "choose another address with --web.listen-address"
        ) from error
    return listener
