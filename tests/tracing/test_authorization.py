"""Who may read the page."""

from __future__ import annotations

import base64

import pytest

from tailwatch_tracing.authorization import AUTH_VARIABLE, authorization


def basic(credentials: str) -> bytes:
    return b"Basic " + base64.b64encode(credentials.encode())


@pytest.mark.parametrize(
    ("option", "headers"),
    [
        ("Bearer s3cret-Token.~+/=", [b"Bearer s3cret-Token.~+/="]),
        ("bearer  abc\n", [b"BEARER abc"]),  # as a mounted secret ends
        ("Basic prometheus:s3cret", [basic("prometheus:s3cret")]),
        ("basic prom:a:b c", [basic("prom:a:b c").replace(b"Basic", b"basic")]),
        ("Basic prom:pässwörd", [basic("prom:pässwörd")]),
    ],
)
def test_the_right_credentials_are_let_in(option: str, headers: list[bytes]) -> None:
    auth = authorization(option)
    assert auth is not None
    assert auth.allows(headers)


@pytest.mark.parametrize("option", ["Bearer abc", "Basic user:abc"])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [b""],
        [b"Bearer"],
        [b"Bearer "],
        [b"Bearer ab"],
        [b"Bearer abcd"],
        [b"Bearer ABC"],
        [b"Basic abc"],  # the token under the other scheme
        [b"Bearer user:abc"],
        [b"Bearer " + base64.b64encode(b"user:abc")],
        [b"Basic user:abc"],  # not encoded
        [b"Basic ====="],
        [b"Basic \xff\xfe"],
        [basic("user:ab")],
        [basic("user:abcd")],
        [basic("USER:abc")],
        [basic("user")],
        [basic("")],
        [b"abc"],
        [b"Digest abc"],
        [b"Bearer abc", b"Bearer abc"],
        [basic("user:abc"), basic("user:abc")],
        [b"Bearer abc, Bearer abc"],
    ],
)
def test_anything_else_is_not(option: str, headers: list[bytes]) -> None:
    auth = authorization(option)
    assert auth is not None
    assert not auth.allows(headers)


def test_the_challenge_names_the_scheme() -> None:
    bearer, user = authorization("Bearer abc"), authorization("Basic user:abc")
    assert bearer is not None
    assert user is not None
    assert bearer.challenge == 'Bearer realm="metrics"'
    assert user.challenge == 'Basic realm="metrics", charset="UTF-8"'


def test_the_variable_counts_where_there_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert authorization(None) is None
    monkeypatch.setenv(AUTH_VARIABLE, "Bearer of-variable")
    auth = authorization(None)
    assert auth is not None
    assert auth.allows([b"Bearer of-variable"])
    auth = authorization("Bearer of-option")
    assert auth is not None
    assert auth.allows([b"Bearer of-option"])
    assert not auth.allows([b"Bearer of-variable"])


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("hunter2", "has another form"),
        ("user:hunter2", "has another form"),
        ("Digest hunter2", "has another form"),
        ("Bearer", "token"),
        ("Bearer  ", "token"),
        ("Bearer hunter2 hunter2", "token"),
        ("Bearer hunter2\x07", "token"),
        ("Bearer hünter2", "token"),
        ("Basic hunter2", "user and a password"),
        ("Basic :hunter2", "user and a password"),
        ("Basic hunter2:", "user and a password"),
    ],
)
@pytest.mark.parametrize("name", ["metrics_auth", AUTH_VARIABLE])
def test_another_form_is_one_clear_line_without_the_secret(
    value: str, says: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty variable, too: a secret that was not mounted must not open the page."""
    option: str | None = value
    if name == AUTH_VARIABLE:
        monkeypatch.setenv(AUTH_VARIABLE, value)
        option = None
    with pytest.raises(ValueError, match=says) as caught:
        authorization(option)
    message = str(caught.value)
    assert message.startswith(name)
    assert "'Bearer TOKEN' or 'Basic USER:PASSWORD'" in message
    assert "hunter2" not in message
    assert "\n" not in message


def test_only_text_is_a_setting() -> None:
    with pytest.raises(TypeError, match="metrics_auth: tuple"):
        authorization(("user", "hunter2"))  # type: ignore[arg-type]


def test_the_secret_is_not_kept() -> None:
    auth = authorization("Bearer hunter2")
    assert auth is not None
    kept = [str(getattr(auth, name)) for name in auth.__slots__]
    assert not [value for value in kept if "hunter2" in value]
