"""The gate: all that devices see of the server.

Flower's SuperLink has one port for everything: what devices need (its Fleet API), what the `flwr`
command needs (its Control API, which has no authentication in Flower's free distribution) and what
its own processes need (its Runtime API). So the SuperLink listens on the loopback, and the gate
passes on to it, from the devices' network, the calls of the Fleet API and nothing else.

It also is the shelf: Flower takes a signature from nobody but the hub that it downloads apps from,
so the gate answers in the hub's place, on the loopback, with the signed bundles of a folder.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from corsage.app.deployment.holding import Holding, is_own, node_of
from corsage.app.output.usage import command, number, read_options
from corsage.core.errors import ConfigError, CorsageError

if TYPE_CHECKING:
    import httpx
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.responses import Response

USAGE = """\
usage: corsage gate SERVER_FOLDER [--host 0.0.0.0] [--port 8443] [--superlink 127.0.0.1:8000]
                    [--shelf-port 8001] [--megabytes 64]

Passes the calls of devices, and no others, on to the SuperLink of this machine; and hands the
SuperLink the signed app. SERVER_FOLDER was made by `corsage deploy`.
"""
GATE_OPTIONS = {
    "host": "0.0.0.0",
    "port": "8443",
    "superlink": "127.0.0.1:8000",
    "shelf-port": "8001",
    "megabytes": "64",
}
CALLS = {
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
}
"""What a device needs. Not `register-node`: who is known is decided at the server."""
HEARD = {b"content-type", b"content-length", b"accept", b"accept-encoding", b"user-agent"}
"""Headers of a device's call that are passed on, with those that begin with `flwr-`."""
HEADERS = 100
"""How many headers a call may have: the SuperLink takes seconds for thousands of them."""
HOP = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "date",
    "server",
}
"""Headers of an answer that belong to one connection."""
NAMES = 4 << 20
"""How many bytes a call may have that names what is sent; what is sent comes in others."""
FLEET = "/v1/fleet/"
PUSH, PULL = FLEET + "push-messages", FLEET + "pull-messages"
ANSWER_SECONDS = 120.0
"""Seconds that the SuperLink may take for an answer."""


class TooLong(Exception):
    """A request that is longer than a device's can be."""


def is_call(method: str, path: str, query: bytes) -> bool:
    """True if a request is a call that a device makes."""
    return method == "POST" and not query and path in {FLEET + name for name in CALLS}


def gate(superlink: str, ca: Path, most: int, transport: Any = None) -> Starlette:
    """The application that devices reach.

    Parameters
    ----------
    superlink : where the SuperLink is, host:port.
    ca : the certificate by which it is known.
    most : how many bytes a request may have: Flower cuts arrays into pieces of 20 MB.
    transport : in place of the network, for tests.
    """
    import httpx
    from starlette.applications import Starlette
    from starlette.routing import Route

    trust = ssl.create_default_context(cafile=str(ca))
    client = httpx.AsyncClient(
        base_url=f"https://{superlink}",
        verify=trust,
        timeout=ANSWER_SECONDS,
        limits=httpx.Limits(max_connections=None),
        trust_env=False,
        transport=transport,
    )

    holding = Holding()

    async def passed(request: Request) -> Response:
        return await pass_on(request, client, most, holding)

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(routes=[Route("/{path:path}", passed, methods=methods)])


async def pass_on(
    request: Request, client: httpx.AsyncClient, most: int, holding: Holding
) -> Response:
    """The SuperLink's answer to a device's call; for anything else there is nothing here."""
    import httpx
    from starlette.requests import ClientDisconnect
    from starlette.responses import PlainTextResponse, StreamingResponse

    path = request.scope["path"]  # as it came: `request.url` drops what cannot be in one
    called = is_call(request.method, path, request.scope["query_string"])
    if not called or not is_short(request.headers, most):
        return PlainTextResponse(*(("too long", 413) if called else ("not found", 404)))
    content: Any = cut(request, most)
    headers = [(name, value) for name, value in request.headers.raw if passes(name)]
    try:
        if path in (PUSH, PULL):
            content = b"".join([part async for part in cut(request, min(most, NAMES))])
        if path == PUSH and not is_own(content):
            return PlainTextResponse("a reply in another's name", 403)
        if path == PULL and holding.is_busy(node_of(path, content)):
            return await held(request, client, headers, content, holding)
        call = client.build_request("POST", path, headers=headers, content=content)
        answer = await client.send(call, stream=True)
        if path == PUSH and answer.status_code == 200:
            holding.replied(node_of(path, content))
    except (TooLong, ClientDisconnect):
        return PlainTextResponse("too long, or broken off", 413)
    except httpx.TransportError:
        return PlainTextResponse("the SuperLink does not answer", 502)
    return StreamingResponse(body(answer), answer.status_code, headers_of(answer))


async def held(
    request: Request,
    client: httpx.AsyncClient,
    headers: list[tuple[bytes, bytes]],
    content: bytes,
    holding: Holding,
) -> Response:
    """The answer to a call for work, once there is some."""
    from starlette.responses import Response

    own = [(name, value) for name, value in headers if name != b"accept-encoding"]
    own.append((b"accept-encoding", b"identity"))
    ask = partial(client.post, PULL, headers=own, content=content)
    answer = await holding.answer(ask, request.is_disconnected)
    return Response(answer.content, answer.status_code, headers_of(answer))


def headers_of(answer: httpx.Response) -> dict[str, str]:
    """The headers of an answer that are a device's business."""
    return {name: value for name, value in answer.headers.items() if name.lower() not in HOP}


def is_short(headers: Headers, most: int) -> bool:
    """True if a call's headers are few, and tell a length that it may have, in one way."""
    said = headers.get("content-length", "0")
    two = "content-length" in headers and "transfer-encoding" in headers
    length = bool(re.fullmatch("[0-9]{1,18}", said)) and int(said) <= most
    return length and not two and len(headers.raw) <= HEADERS


def passes(name: bytes) -> bool:
    """True if a header of a call is the SuperLink's business."""
    return name in HEARD or name.startswith(b"flwr-")


async def cut(request: Request, most: int) -> AsyncIterator[bytes]:
    """A device's body, as it comes, as long as it is not too long."""
    seen = 0
    async for part in request.stream():
        seen += len(part)
        if seen > most:
            raise TooLong
        yield part


async def body(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The SuperLink's body, as it comes."""
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()


def shelf(folder: Path, address: str) -> Starlette:
    """The hub's two answers: which bundle an app is, with its signatures; and the bundle."""
    from starlette.applications import Starlette
    from starlette.responses import FileResponse, JSONResponse
    from starlette.routing import Route

    async def fetch(request: Request) -> Response:
        wanted = await request.json()
        entry = find(read_shelf(folder), wanted.get("app_id"), wanted.get("app_version"))
        if entry is None:
            return JSONResponse({"detail": "not on the shelf"}, 404)
        url = f"http://{address}/apps/{entry['fab']}"
        return JSONResponse({"fab_url": url, "verifications": entry["verifications"]})

    async def bundle(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in {entry["fab"] for entry in read_shelf(folder)}:
            return JSONResponse({"detail": "not on the shelf"}, 404)
        return FileResponse(folder / name)

    return Starlette(
        routes=[
            Route("/hub/fetch-fab", fetch, methods=["POST"]),
            Route("/apps/{name}", bundle, methods=["GET"]),
        ]
    )


def find(entries: list[dict[str, Any]], app: str, version: str | None) -> dict[str, Any] | None:
    """The bundle that is meant; without a version the newest."""
    found = [e for e in entries if e["app_id"] == app and version in (None, e["app_version"])]
    return max(found, key=lambda e: [int(n) for n in e["app_version"].split(".")], default=None)


def read_shelf(folder: Path) -> list[dict[str, Any]]:
    """The signed bundles of a folder."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def serve(folder: Path, options: dict[str, str]) -> None:
    """Both applications, until the process is asked to end."""
    import uvicorn

    port, shelf_port = number(options, "port"), number(options, "shelf-port")
    most = number(options, "megabytes", 2**12) << 20
    loopback = f"127.0.0.1:{shelf_port}"
    shelves = uvicorn.Server(
        uvicorn.Config(
            shelf(folder / "apps", loopback),
            host="127.0.0.1",
            port=shelf_port,
            log_level="warning",
        )
    )
    Thread(target=shelves.run, daemon=True).start()
    uvicorn.run(
        gate(options["superlink"], folder / "ca.crt", most),
        host=options["host"],
        port=port,
        ssl_certfile=str(folder / "server.crt"),
        ssl_keyfile=str(folder / "server.key"),
        log_level="warning",
        server_header=False,
        http="h11",  # which bounds what is before the body; the other one keeps whatever comes
        ws="none",
    )


@command(USAGE, CorsageError, needs_words=True)
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 with one line on what is wrong."""
    options, (folder, *rest) = read_options(words, GATE_OPTIONS)
    if rest:
        raise ConfigError(f"{rest[0]}: one folder is enough.")
    check_folder(Path(folder))
    serve(Path(folder), options)


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not one of `corsage deploy`."""
    for name in ("ca.crt", "server.crt", "server.key", "apps"):
        if not (folder / name).exists():
            raise ConfigError(f"{folder / name}: is not there; make it with `corsage deploy`.")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
