"""A hub of one model on this machine, which speaks as much of the protocol as fetching needs."""

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LocalHub:
    """Serves `files` (name -> bytes) as the model `name`.

    Attributes:
        refuses: status that every request gets; 0: none. token: that a request needs; empty: none.
        breaks_after: bytes after which the next download of a large file ends early; None: it does not.
        requests: (method, path, headers) of all.
    """

    def __init__(self, name, files):
        self.name, self.files = name, files
        self.refuses, self.token, self.breaks_after = 0, "", None
        self.requests = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                hub.answer(self, has_body=False)

            def do_GET(self):
                hub.answer(self, has_body=True)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request, has_body):
        self.requests.append((request.command, request.path, dict(request.headers)))
        denied = self.token and request.headers.get("Authorization") != f"Bearer {self.token}"
        if self.refuses or denied:
            return self._send(request, self.refuses or 401, b"{}", has_body)
        path = request.path.split("?")[0]
        if path.startswith(f"/api/models/{self.name}"):
            return self._api(request, path, has_body)
        prefix, _, rest = path.removeprefix(f"/{self.name}/").partition("/")
        revision, _, file = rest.partition("/")
        if prefix != "resolve" or revision not in ("main", COMMIT) or file not in self.files:
            code = "RevisionNotFound" if prefix == "resolve" and file in self.files else "EntryNotFound"
            return self._send(request, 404, b"{}", has_body, {"X-Error-Code": code})
        content = self.files[file]
        etag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        start = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(request, 206 if start else 200, content[start:], has_body, headers)

    def _api(self, request, path, has_body):
        rest = path.removeprefix(f"/api/models/{self.name}").strip("/").split("/")
        if rest[0] == "revision" and rest[1] not in ("main", COMMIT):
            return self._send(request, 404, b"{}", has_body, {"X-Error-Code": "RevisionNotFound"})
        if rest[0] == "tree":
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in self.files.items()
            ]
            return self._send(request, 200, json.dumps(entries).encode(), has_body)
        info = {"id": self.name, "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}
        info |= {"private": False, "downloads": 0, "likes": 0, "tags": []}
        self._send(request, 200, json.dumps(info).encode(), has_body)

    def _send(self, request, status, body, has_body, headers=None):
        request.send_response(status)
        for key, value in (headers or {}).items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Content-Type", "application/json")
        request.end_headers()
        if not has_body:
            return
        if self.breaks_after is not None and len(body) > self.breaks_after and status == 200:
            body, self.breaks_after, request.close_connection = body[: self.breaks_after], None, True
        with contextlib.suppress(BrokenPipeError):
            request.wfile.write(body)
