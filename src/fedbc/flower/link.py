"""A device's connection to a SuperLink, on which every passing fault is waited out."""

from __future__ import annotations

import email.utils
import logging
import random
import ssl
import time
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedbc.errors import FedBCError, InputError

LONGEST_PAUSE = 15.0
SAY_SECONDS = 30.0
AHEAD, BEHIND = 5, 305
"""How many seconds a device's clock may be ahead of the server's, and behind it, before Flower refuses its requests."""
log = logging.getLogger("fedbc.device")


class Rejoin(FedBCError):
    """The SuperLink no longer takes this node for online; it says why."""


class RunIsOver(FedBCError):
    """The run of an order has ended."""


class Clock:
    """Notes how the clocks differ, from the date of the server's replies (an interceptor of Flower's)."""

    def __init__(self) -> None:
        self.ahead = 0.0
        """seconds that this device's clock is ahead of the server's, at least; a busy server's answers take long"""

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        """Note it of one reply."""
        sent = time.time()
        response: httpx.Response = call_next(context)
        if stamp := response.headers.get("date"):
            self.ahead = seconds_ahead(stamp, sent, time.time())
        return response


def seconds_ahead(stamp: str, sent: float, received: float) -> float:
    """How far this clock is ahead of the server's, at least; behind if negative, 0 if they may well agree.

    The server put its date on its answer at some instant in between, and left out the fraction of the second.
    """
    there = email.utils.parsedate_to_datetime(stamp).timestamp()
    least, most = sent - there - 1, received - there
    return least if least > 0 else min(most, 0.0)


class Link:
    """A device's requests to a SuperLink."""

    def __init__(self, address: str, root_certificates: str, key: ec.EllipticCurvePrivateKey) -> None:
        check_authority(Path(root_certificates), "copy the authority's certificate here")
        self.address, self.key, self._clock = address, key, Clock()
        self.client: Any = FleetHttpClient.from_server_address(
            address,
            False,
            root_certificates,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                self._clock,
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )
        self._said = 0.0
        self.asked_at = time.monotonic()
        """when it last asked; one who asks again and again does not stand still"""

    def close(self) -> None:
        """Close its connection."""
        self.client.close()

    @property
    def clock(self) -> float:
        """Seconds that this device's clock is ahead of the server's."""
        return self._clock.ahead

    def about_the_clock(self) -> str:
        """How the clocks differ, in plain words."""
        word = "ahead of" if self.clock > 0 else "behind"
        return (
            f"this device's clock is {abs(self.clock):.0f} s {word} the server's; more than {AHEAD} s ahead or "
            f"{BEHIND} s behind is refused: set it, and keep it set (chrony, systemd-timesyncd)"
        )

    def ask(self, what: str, request: Any) -> Any:
        """Ask until there is an answer. Rejoin or RunIsOver if the server's answer is a no that means one of these."""
        pause = 0.5
        while True:
            self.asked_at = time.monotonic()
            try:
                return self.once(what, request)
            except httpx.TransportError as error:
                self._say(f"{self.address} does not answer ({_words(error)})")
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500 and error.response.status_code != 429:
                    raise InputError(f"the server refuses {what}: {error.response.text:.200}") from None
                self._say(f"the server answers with an error of its own ({error.response.status_code})")
            time.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(LONGEST_PAUSE, 2 * pause)

    def once(self, what: str, request: Any) -> Any:
        """Ask once."""
        try:
            return getattr(self.client, what)(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                raise Rejoin(self._why_unauthorized()) from None
            if what == "ActivateNode" and error.response.status_code < 500:
                raise Rejoin(
                    "the SuperLink does not take this node: its key is not registered, or was revoked, or another "
                    "process is there with it"
                ) from None
            if error.response.status_code == httpx.codes.FORBIDDEN:
                raise RunIsOver("the run has ended") from None
            raise

    def _why_unauthorized(self) -> str:
        if not -BEHIND < self.clock < AHEAD - 1:  # which is known to a second
            return f"the SuperLink refuses this node: {self.about_the_clock()}"
        return "the SuperLink does not know this node: its key is not registered, or was revoked"

    def _say(self, what: str) -> None:
        if time.monotonic() - self._said > SAY_SECONDS:
            self._said = time.monotonic()
            log.warning("%s: it is asked again and again", what)


def check_authority(certificate: Path, hint: str) -> None:
    """An InputError if the authority's certificate is missing, with this hint, or damaged."""
    if not certificate.is_file():
        raise InputError(f"{certificate} does not exist: {hint}")
    try:
        ssl.create_default_context(cafile=str(certificate))
    except OSError as error:
        raise InputError(f"{certificate} is damaged: {error}") from None


def wrong_certificate(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """What of an error says that the server showed a certificate which is not accepted; None if nothing does."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _words(error: httpx.TransportError) -> str:
    if (wrong := wrong_certificate(error)) is not None:
        return f"its certificate is not accepted: {wrong.verify_message}; is keys/ca.crt the server's authority?"
    return str(error) or type(error).__name__
