import socket

import pytest

from tailwatch_stack.errors import TailwatchError, UsageError
from tailwatch_stack.native import ports

DEFAULTS = {"prometheus": 9090, "viewer": 12162}


def test_flags_replace_defaults() -> None:
    assert ports.parse(["viewer=8080"], DEFAULTS) == {"prometheus": 9090, "viewer": 8080}


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("grafana=3000", "--port grafana=3000: expected one of prometheus, viewer before the ="),
        ("8080", "--port 8080: expected one of prometheus, viewer before the ="),
        ("viewer=", "--port viewer=: expected a port from 1 to 65535 after the ="),
        ("viewer=0", "--port viewer=0: expected a port from 1 to 65535 after the ="),
        ("viewer=65536", "--port viewer=65536: expected a port from 1 to 65535 after the ="),
        ("viewer=-1", "--port viewer=-1: expected a port from 1 to 65535 after the ="),
        ("viewer=9090", "port 9090 is given to both prometheus and viewer"),
    ],
)
def test_a_wrong_flag_is_named(flag: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        ports.parse([flag], DEFAULTS)
    assert str(error.value) == message


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_taken_port_is_named_with_its_service_and_the_flag(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(TailwatchError) as error:
            ports.check_free({"viewer": port})
    assert error.value.exit_code == 1
    assert str(error.value) == (
        f"port {port} for viewer is taken: "
        "stop what listens there or choose another with --port viewer=PORT"
    )
    ports.check_free({"viewer": port})  # and is free again at once
