"""A web server that can simulate the faults of real ones."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FaultySite:
    """The files and faults of a web server, and its received requests."""

    files: dict[str, bytes]
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    """The number of bytes after which each of the next responses breaks off."""
    stalls: bool = False
    """Whether a response that breaks off stalls with an open connection instead of closing it."""
    says_length: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """The path and Range header of every request."""
    url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve(site: FaultySite) -> Iterator[FaultySite]:
    """Serve the site on a free local port, in a thread, within this context."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append((self.path, wanted))
            content = site.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and site.ranges else 0
            if begin:
                self.send_response(206)
                self.send_header(
                    "Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}"
                )
            else:
                self.send_response(200)
            if site.says_length:
                self.send_header("Content-Length", str(len(content) - begin))
            self.end_headers()
            cut = site.cuts.pop(0) if site.cuts else None
            self.wfile.write(content[begin:][:cut])
            if cut is not None and site.stalls:
                self.wfile.flush()
                site.ended.wait()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        site.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
