#!/usr/bin/python3
"""Holds a tick stream open through the proxy of HTTPS_PROXY, and tells later what came of it.

tunnel open HOST:PORT ID    CONNECT, send ID, keep what comes back
tunnel open http://… ID     ask for a page by plain HTTP and keep what comes
tunnel show ID              one JSON line: {"lines": 12, "ended": "" | "reset" | "closed", "at": seconds since 1970}
                            or an error if a line is missing, doubled or torn
"""
import base64
import http.client
import json
import os
import socket
import sys
import time
from urllib.parse import urlsplit


PROXY = urlsplit(os.environ["HTTPS_PROXY"])
AUTHORIZATION = {}
if PROXY.username:
    user = base64.b64encode(f"{PROXY.username}:{PROXY.password}".encode()).decode()
    AUTHORIZATION = {"Proxy-Authorization": f"Basic {user}"}


def connect(target, name):
    """Return what reads from a tunnel."""
    sock = socket.create_connection((PROXY.hostname, PROXY.port), timeout=10)
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *(f"{k}: {v}" for k, v in AUTHORIZATION.items()), "", ""]
    sock.sendall("\r\n".join(lines).encode())
    head = b""
    while b"\r\n\r\n" not in head:
        got = sock.recv(1)
        if not got:
            sys.exit(f"the proxy closed after {head!r}")
        head += got
    if head.split(b" ")[1] != b"200":
        sys.exit(f"CONNECT {target}: {head.decode()}")
    sock.settimeout(None)
    sock.sendall(f"{name}\n".encode())
    return sock.recv


def page(url):
    """Return what reads from a page."""
    connection = http.client.HTTPConnection(PROXY.hostname, PROXY.port)
    connection.request("GET", url, headers=AUTHORIZATION)
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"GET {url}: {response.status}")
    return response.read1


def hold(target, name):
    read = page(target) if target.startswith("http://") else connect(target, name)
    ended = "closed"
    with open(f"/tmp/tunnel-{name}.data", "wb", buffering=0) as data:
        try:
            while got := read(4096):
                data.write(got)
        except ConnectionResetError:
            ended = "reset"
    at = time.time()
    with open(f"/tmp/tunnel-{name}.part", "w", encoding="ascii") as end:
        json.dump({"ended": ended, "at": at}, end)
    os.rename(end.name, f"/tmp/tunnel-{name}.end")


def show(name):
    state = {"ended": "", "at": 0}
    if os.path.exists(f"/tmp/tunnel-{name}.end"):
        with open(f"/tmp/tunnel-{name}.end", encoding="ascii") as end:
            state = json.load(end)
    with open(f"/tmp/tunnel-{name}.data", "rb") as data:
        lines = data.read().split(b"\n")[:-1]  # what comes after the last line end is still on its way
    for number, line in enumerate(lines):
        if line != f"{name} {number}".encode():
            sys.exit(f"line {number} is {line!r}")
    print(json.dumps({"lines": len(lines), **state}))


if sys.argv[1:2] == ["open"] and len(sys.argv) == 4:
    hold(*sys.argv[2:])
elif sys.argv[1:2] == ["show"] and len(sys.argv) == 3:
    show(sys.argv[2])
else:
    sys.exit(__doc__)
