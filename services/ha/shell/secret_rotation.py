"""Watches this node's secrets, and takes the steps of ``tidemark cluster rotate-secret``.

Other secrets take effect with the next link; links that exist are not touched. Files that cannot be
used are reported once and ignored: the secrets that were read last stay in use. A step needs no
other permission than its seal, which only who knows the present secret can make; so it is accepted
on the admin port whatever ``commands`` says.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from services.ha.shell.command_bodies import Answer, error_answer, json_answer, read_arguments
from services.ha.shell.links import Credentials
from services.ha.shell.secret_files import SecretFiles, Stamp
from shared.cluster.group_secret import (
    SECRET_SIZE_MAX,
    SECRET_SIZE_MIN,
    Fingerprints,
    Recipient,
    RotationStep,
    Secrets,
    after,
    fingerprint,
    unseal,
)
from tidemark.errors import BadConfig, BadRequest, ClusterRefused, NotServing, TidemarkError

log = logging.getLogger(__name__)

CHALLENGE_SIZE: Final = 16
WATCH_S: Final = 1.0
"""Interval at which the files are compared with what was read."""


class BadSeal(ClusterRefused):
    """The step was sealed with another secret, or for another state of this node."""

    code, title, status = "bad-seal", "The order is not sealed with the group's secret", 403


class SecretNotWritable(ClusterRefused):
    """This process cannot replace the files of the secret."""

    code, title = "secret-not-writable", "The files of the secret are not replaced by ha"


class SecretRotation:
    """The secrets of one ha process. Belongs to its event loop."""

    def __init__(self, files: SecretFiles, credentials: Credentials, own: Recipient) -> None:
        """credentials: those of the links; their secrets are replaced when the files change."""
        self._files, self._credentials = files, credentials
        self._own = own._replace(challenge=secrets.token_hex(CHALLENGE_SIZE))
        self._turn = asyncio.Lock()
        self._stamps: tuple[Stamp | None, ...] = ()
        """Stamps of the files that were read; while they cannot be used, they are read again."""
        self._ignored = ""
        """Why the files cannot be used, as it was logged last; empty: they can."""
        self._seen: Fingerprints | None = None
        self._writable = False

    def routes(self) -> list[web.RouteDef]:
        """Return the call for the admin port."""
        return [web.post("/v1/cluster/rotate-secret", self._on_step)]

    def status(self) -> Mapping[str, Any]:
        """Return fingerprints of the secrets; None until they were first computed."""
        seen = self._seen
        return {
            "node": self._own.node,
            "challenge": self._own.challenge,
            "proves": None if seen is None else seen.proves,
            "accepts": None if seen is None else list(seen.accepts),
            "file": str(self._files.path),
            "writable": self._writable,
        }

    async def watch(self, stop: asyncio.Event) -> None:
        """Read the files again whenever they change, until stop."""
        while not stop.is_set():
            async with self._turn:
                stamps = await asyncio.to_thread(self._files.stamps)
                if stamps != self._stamps:
                    await self._read(stamps)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await stop.wait()

    async def _read(self, stamps: tuple[Stamp | None, ...]) -> None:
        """Use what the files hold. stamps: taken before they are read."""
        try:
            found = await asyncio.to_thread(self._files.read)
        except BadConfig as error:
            if error.detail != self._ignored:
                log.warning(
                    "the files of the secret cannot be used; the present secrets stay in use",
                    extra={"event": "secret-ignored", "detail": error.detail},
                )
            self._ignored = error.detail
            return
        self._stamps, self._ignored = stamps, ""
        before, seen = self._credentials.secrets, self._seen
        if found != before or seen is None:
            seen = await asyncio.to_thread(self._fingerprints, found)
        self._seen = seen
        self._writable = await asyncio.to_thread(lambda: self._files.writable)
        if found != before:
            self._credentials.replace(found)
            log.info(
                "new links use other secrets",
                extra={
                    "event": "secret-changed",
                    "proves": seen.proves,
                    "accepts": list(seen.accepts),
                },
            )

    def _fingerprints(self, of: Secrets) -> Fingerprints:
        own = self._own
        found = [fingerprint(each, own.cluster, own.group) for each in of.accepted]
        return Fingerprints(found[0], tuple(found))

    async def _on_step(self, request: web.Request) -> web.Response:
        try:
            arguments = await read_arguments(request)
            return json_answer(Answer(200, await self._take(arguments)))
        except TidemarkError as error:
            return error_answer(error)

    async def _take(self, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Take a step unless it was taken before.

        Raises BadRequest, BadSeal, BadConfig, NotServing, RotationUnfinished, SecretNotWritable.
        """
        async with self._turn:
            step, new = self._opened(arguments)
            present = await asyncio.to_thread(self._files.read)
            wanted = after(step, new, present)
            if wanted != present:
                await self._write(present, wanted)
                # 1. A rotation is given up by hand. 2. The node is as it was before. 3. Who has
                # recorded the order could send it again.
                self._own = self._own._replace(challenge=secrets.token_hex(CHALLENGE_SIZE))
            await self._read(await asyncio.to_thread(self._files.stamps))
        return {"changed": wanted != present, "secret": self.status()}

    def _opened(self, arguments: Mapping[str, str]) -> tuple[RotationStep, bytes]:
        """Return the step and the new secret. Raises BadRequest, BadSeal, NotServing."""
        try:
            step = RotationStep(arguments.get("step", ""))
            sealed = base64.b64decode(arguments.get("sealed", ""), validate=True)
        except (ValueError, binascii.Error) as error:
            raise BadRequest(f"not a step of a rotation: {error}. Nothing was done.") from None
        if self._seen is None:
            raise NotServing("the node recovers its log. Nothing was done.", "Try again later.")
        keys = self._credentials.secrets.accepted
        new = unseal(sealed, keys, step, self._own, self._seen)
        if new is None:
            raise BadSeal(
                f"{self._own.node} cannot open the order with a secret that it accepts, or its "
                "secrets changed since the order was made. Nothing was done.",
                "Repeat the command, with --secret-file naming the present secret.",
            )
        if not SECRET_SIZE_MIN <= len(new) <= SECRET_SIZE_MAX or new != new.strip():
            raise BadRequest(
                f"a secret has {SECRET_SIZE_MIN} to {SECRET_SIZE_MAX} bytes, and no white space "
                "around them. Nothing was done."
            )
        return step, new

    async def _write(self, before: Secrets, wanted: Secrets) -> None:
        try:
            await asyncio.to_thread(self._files.write, before, wanted)
        except OSError as error:
            raise SecretNotWritable(
                f"{self._files.path} cannot be replaced: {error.strerror}.",
                "Change the files by hand, with `tidemark cluster rotate-secret --by-hand`.",
            ) from error
