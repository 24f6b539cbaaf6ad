#!/usr/bin/python3
"""Loads the proxy of HTTPS_PROXY with tunnels to an echo service, within fixed bounds.

flood tunnels N HOST:PORT          N tunnels at once: open all, use all, use all again, close all
flood connects N RATE HOST:PORT    N tunnels one after the other, RATE a second: open, use, close
"""
import asyncio
import base64
import os
import resource
import sys
import time
from urllib.parse import urlsplit

LIMIT = 20_000  # tunnels in one run


class Tunnel:
    async def open(self, target):
        proxy = urlsplit(os.environ["HTTPS_PROXY"])
        self.reader, self.writer = await asyncio.open_connection(proxy.hostname, proxy.port)
        auth = ""
        if proxy.username:
            user = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
            auth = f"Proxy-Authorization: Basic {user}\r\n"
        self.writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{auth}\r\n".encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(head.split(b"\r\n")[0].decode())
        return self

    async def use(self, text):
        self.writer.write(text)
        if await self.reader.readexactly(len(text)) != text:
            raise RuntimeError("the echo came back changed")

    async def close(self):
        self.writer.close()
        await self.writer.wait_closed()


async def tunnels(count, target):
    opened = await asyncio.gather(*(Tunnel().open(target) for _ in range(count)))
    for text in (b"first", b"second"):
        await asyncio.gather(*(tunnel.use(text) for tunnel in opened))
    await asyncio.gather(*(tunnel.close() for tunnel in opened))
    print(f"{count} tunnels at once")


async def connects(count, rate, target):
    async def once(start):
        await asyncio.sleep(start)
        tunnel = await Tunnel().open(target)
        await tunnel.use(b"x")
        await tunnel.close()

    begin = time.monotonic()
    await asyncio.gather(*(once(number / rate) for number in range(count)))
    print(f"{count} tunnels, {count / (time.monotonic() - begin):.0f} a second")


async def main():
    verb, count, *rest = sys.argv[1:]
    count = min(int(count), LIMIT)
    async with asyncio.timeout(120):
        if verb == "tunnels":
            await tunnels(count, *rest)
        else:
            await connects(count, int(rest[0]), rest[1])


resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
asyncio.run(main())
