"""Encrypted connections, with certificates made for the test, against servers that check them."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from four_clients import WAYS, client_for
from scripted_http_server import serving_http
from scripted_server import ScriptedServer, last

from trtspec.client import ConnectionFailed, Retry, Tls


@dataclass(frozen=True)
class Party:
    """Somebody's certificate and key."""

    certificate: Path
    key: Path


def openssl(*args: object) -> None:
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)


def make_authority(folder: Path, name: str) -> Party:
    party = Party(folder / f"{name}.pem", folder / f"{name}.key")
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", 2, "-subj", f"/CN={name}", "-keyout", party.key, "-out", party.certificate),
    )
    return party


def issue(authority: Party, folder: Path, name: str) -> Party:
    party, request, names = (
        Party(folder / f"{name}.pem", folder / f"{name}.key"),
        folder / "csr",
        folder / "ext",
    )
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", party.key, "-out", request),
    )
    openssl(
        *("x509", "-req", "-in", request, "-CA", authority.certificate, "-CAkey", authority.key, "-days", 2),
        *("-CAcreateserial", "-extfile", names, "-out", party.certificate),
    )
    return party


@dataclass(frozen=True)
class World:
    authority: Party
    server: Party
    client: Party
    stranger: Party


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("certificates")
    authority = make_authority(folder, "authority")
    parties = [issue(authority, folder, name) for name in ("server", "client")]
    return World(authority, *parties, make_authority(folder, "stranger"))


@contextmanager
def serving(way: str, world: World, *, asks_for_certificate: bool) -> Iterator[str]:
    """Give the address of an encrypted server."""
    with ExitStack() as stack:
        if "http" in way:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(world.server.certificate, world.server.key)
            if asks_for_certificate:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(world.authority.certificate)
            yield stack.enter_context(serving_http(lambda _: [last("safe")], context=context)).url
        else:
            pair = (world.server.key.read_bytes(), world.server.certificate.read_bytes())
            authority = world.authority.certificate.read_bytes() if asks_for_certificate else None
            credentials = grpc.ssl_server_credentials([pair], authority, asks_for_certificate)
            server = ScriptedServer(lambda _: [last("safe")], credentials=credentials)
            yield f"grpcs://{stack.enter_context(server).url}"


def ask(way: str, url: str, tls: Tls | None) -> str:
    with client_for(way, url, tls=tls, retry=Retry(attempts=1), timeout_s=20) as client:
        text: Any = client.generate("x").text
        return str(text)


@pytest.mark.parametrize("way", WAYS)
def test_a_server_with_a_certificate_of_a_known_authority_is_asked(way: str, world: World) -> None:
    with serving(way, world, asks_for_certificate=False) as url:
        assert ask(way, url, Tls(ca=world.authority.certificate)) == "safe"


@pytest.mark.parametrize("way", WAYS)
def test_a_server_with_a_certificate_of_an_unknown_authority_is_not(way: str, world: World) -> None:
    with serving(way, world, asks_for_certificate=False) as url:
        for tls in (None, Tls(ca=world.stranger.certificate)):
            with pytest.raises(ConnectionFailed):
                ask(way, url, tls)


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_asks_for_a_certificate_gets_ours(way: str, world: World) -> None:
    ca = world.authority.certificate
    with serving(way, world, asks_for_certificate=True) as url:
        assert ask(way, url, Tls(ca=ca, certificate=world.client.certificate, key=world.client.key)) == "safe"
        with pytest.raises(ConnectionFailed):
            ask(way, url, Tls(ca=ca))
