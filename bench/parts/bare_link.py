"""The first of three hosts sends some MB to each of the others, by bare TCP; they print their seconds."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

_PORT = 29611
_STEP_BYTES = 1 << 20


def send(connection: socket.socket, size_bytes: int) -> None:
    data = memoryview(bytes(_STEP_BYTES))
    while size_bytes:
        size_bytes -= connection.send(data[: min(_STEP_BYTES, size_bytes)])
    connection.close()


def serve(others: int, size_bytes: int) -> None:
    with socket.create_server(("", _PORT)) as server:
        connections = [server.accept()[0] for _ in range(others)]
        threads = [threading.Thread(target=send, args=(one, size_bytes)) for one in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def receive(address: str) -> float:
    """Return the seconds from the first byte to the last."""
    buffer = bytearray(_STEP_BYTES)
    while True:
        try:
            connection = socket.create_connection((address, _PORT))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    connection.recv_into(buffer, 1)
    began = time.perf_counter()
    while connection.recv_into(buffer):
        pass
    return time.perf_counter() - began


if __name__ == "__main__":
    if os.environ["RANK"] == "0":
        serve(int(os.environ["WORLD_SIZE"]) - 1, int(sys.argv[1]) * 1_000_000)
    else:
        print(receive(os.environ["MASTER_ADDR"]))
