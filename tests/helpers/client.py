"""The client of the fork server in forked.py: `python -IS client.py SOCKET ARGUMENT …`.

It asks the server to run Python with these arguments, passes its own standard streams to the
server's child, and exits with the child's exit code. It imports only fast modules.
"""

import json
import os
import socket
import sys

if __name__ == "__main__":
    _, path, *words = sys.argv
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
        code = server.recv(1)
    raise SystemExit(code[0] if code else 1)
