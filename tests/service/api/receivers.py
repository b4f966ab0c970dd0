"""Receivers of notices: a small HTTP server and a small mail server, on loopback."""

import asyncio
import json
import re
from email import message_from_bytes, policy

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler


class Hook(RequestHandler):
    async def post(self):
        self.settings["hooks"].requests.put_nowait(json.loads(self.request.body))
        await self.settings["hooks"].answer(self)


class Hooks:
    """`requests`: received requests in order. `answer`: the answer to the next ones."""

    def __init__(self):
        self.requests = asyncio.Queue()
        self.closing = asyncio.Event()
        sockets = bind_sockets(0, "127.0.0.1")
        self.host = f"127.0.0.1:{sockets[0].getsockname()[1]}"
        self.url = f"http://{self.host}/hook?key=a-secret"
        self.server = HTTPServer(Application([("/.*", Hook)], hooks=self, log_function=lambda _: None))
        self.server.add_sockets(sockets)

    async def answer(self, handler):
        handler.finish("ok")

    async def hang(self, handler):
        await self.closing.wait()

    async def next(self):
        async with asyncio.timeout(10):
            return await self.requests.get()

    async def close(self):
        self.closing.set()
        self.server.stop()
        await self.server.close_all_connections()


class MailServer:
    """The part of SMTP that smtplib needs. `mails`: received mails in order. commands: all commands."""

    def __init__(self):
        self.mails = asyncio.Queue()
        self.commands = []

    async def open(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def _serve(self, reader, writer):
        writer.write(b"220 here\r\n")
        while line := (await reader.readline()).strip().upper():
            self.commands.append(line)
            if line == b"DATA":
                writer.write(b"354 go on\r\n")
                head = await reader.readuntil(b"\r\n.\r\n")
                self.mails.put_nowait(message_from_bytes(head[:-3], policy=policy.default))
            writer.write(b"250 ok\r\n" if line != b"QUIT" else b"221 bye\r\n")
        writer.close()

    async def next(self):
        async with asyncio.timeout(10):
            return await self.mails.get()

    async def code(self):
        """Return the code in the next mail."""
        mail = await self.next()
        (found,) = re.findall(r"^    ([0-9]{8})\r?$", mail.get_content(), re.MULTILINE)
        return found

    async def close(self):
        self.server.close()
