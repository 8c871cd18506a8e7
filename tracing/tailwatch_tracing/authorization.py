"""Who may read the page: HTTP Basic (RFC 7617) or a bearer token (RFC 6750)."""

from __future__ import annotations

import binascii
import os
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

AUTH_VARIABLE = "TAILWATCH_METRICS_AUTH"

_CHALLENGES = {
    "basic": 'Basic realm="metrics", charset="UTF-8"',
    "bearer": 'Bearer realm="metrics"',
}


class Authorization:
    """What a request for the page must show.

    Of the secret only a digest is kept: no traceback or dump of this process has it from here.
    """

    __slots__ = ("_expected", "_scheme", "challenge")

    def __init__(self, scheme: str, secret: bytes) -> None:
        self._scheme = scheme
        self._expected = sha256(secret).digest()
        self.challenge = _CHALLENGES[scheme]
        """The WWW-Authenticate header of a refusal."""

    def allows(self, headers: Sequence[bytes]) -> bool:
        """Return whether a request's Authorization headers, of which it may have one, are right.

        The time it takes does not depend on how much of a wrong secret is right.
        """
        header, *more = headers or (b"",)
        scheme, _, credentials = header.partition(b" ")
        given = credentials.strip(b" ")
        if self._scheme == "basic":
            try:
                given = binascii.a2b_base64(given, strict_mode=True)
            except binascii.Error:
                given = b""
        is_same = compare_digest(sha256(given).digest(), self._expected)
        return is_same and scheme.lower() == self._scheme.encode() and not more


def authorization(option: str | None) -> Authorization | None:
    """Return what the page asks for, by an option or else by TAILWATCH_METRICS_AUTH.

    Args:
        option: `Bearer TOKEN` or `Basic USER:PASSWORD`, in clear. None leaves it to the variable;
            when that is not set either, the page is for everybody who can reach it.

    Raises:
        ValueError: another form, or an empty value: a secret that was not mounted must not open
            the page. The message does not have the value.
    """
    name, value = "metrics_auth", option
    if value is None:
        name, value = AUTH_VARIABLE, os.environ.get(AUTH_VARIABLE)
        if value is None:
            return None
    if not isinstance(value, str):
        raise TypeError(f"{name}: {type(value).__name__}, expected {_FORMS}")
    value = value.strip()
    scheme, _, secret = value.partition(" ")
    secret = secret.strip()
    if scheme.lower() not in _CHALLENGES:
        raise ValueError(f"{name} {'has another form' if value else 'is empty'}, expected {_FORMS}")
    if scheme.lower() == "bearer":
        if not secret.isascii() or not secret.isprintable() or not secret or " " in secret:
            raise ValueError(f"{name}: a bearer token is printable ASCII without spaces, {_FORMS}")
    else:
        user, colon, password = secret.partition(":")
        if not (user and colon and password):
            raise ValueError(f"{name}: Basic needs a user and a password, expected {_FORMS}")
    return Authorization(scheme.lower(), secret.encode())


_FORMS = "'Bearer TOKEN' or 'Basic USER:PASSWORD'"
