"""The page of a sweep, served while it runs: what has ended, what runs and how far it is (`live_rows.py`).

It only reads: runs neither know of it nor need it. aiohttp serves (it comes with Lightning's fsspec); the page is made
again when a run has written something and somebody asks, at most every few seconds.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from experiments.report.page import Study, render
from experiments.run.curves import METRICS_NAME
from sweeps.live_rows import live_rows
from sweeps.study import SWEEP_NAME, gather, study_of

FEWEST_SECONDS_BETWEEN_PAGES = 3.0
WATCHED = ("result.json", METRICS_NAME, SWEEP_NAME)
# Files of a run that the page links to; nothing else leaves the folder.
SERVED = {"result.json": "application/json", "log.txt": "text/plain", "table.csv": "text/csv"}


@dataclass
class Board:
    """The page of `root` and when it was made."""

    root: Path
    version: str = ""
    page: str = ""
    made: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def look(self) -> str:
        """A word that changes when a run writes."""
        times = [path.stat().st_mtime_ns for name in WATCHED for path in self.root.rglob(name)]
        return f"{len(times)}-{max(times, default=0)}"

    async def current(self) -> str:
        """The page, made again where it is behind."""
        async with self.lock:
            version = await asyncio.to_thread(self.look)
            if version != self.version and time.monotonic() - self.made > FEWEST_SECONDS_BETWEEN_PAGES:
                self.page = await asyncio.to_thread(live_page, self.root)
                self.version, self.made = version, time.monotonic()
            return self.page


def live_page(root: Path) -> str:
    """The page as it stands: rows of ended and of unfinished runs."""
    rows, columns = gather(root, may_be_empty=True)
    rows += live_rows(root, columns)
    study = study_of(root, rows)
    return render(Study(**{**vars(study), "live": True}))


def application(root: Path) -> web.Application:
    """The routes: the page, its version, the files that it links to."""
    board = Board(root)

    async def page(request: web.Request) -> web.Response:
        return web.Response(text=await board.current(), content_type="text/html")

    async def version(request: web.Request) -> web.Response:
        return web.Response(text=await asyncio.to_thread(board.look), headers={"Cache-Control": "no-store"})

    async def file(request: web.Request) -> web.StreamResponse:
        path = (root / request.match_info["path"]).resolve()
        if path.name not in SERVED or not path.is_relative_to(root.resolve()) or not path.is_file():
            raise web.HTTPNotFound(text="The dashboard serves results, logs and the table of its folder alone.")
        return web.FileResponse(path, headers={"Content-Type": f"{SERVED[path.name]}; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/", page), web.get("/version", version), web.get("/{path:.+}", file)])
    return app


def serve(root: Path, host: str, port: int) -> None:
    """Serve until interrupted. Raises ValueError where the folder is none, OSError where the port is taken."""
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder; give the --output of a sweep or of a depth study.")
    web.run_app(
        application(root), host=host, port=port, access_log=None, handle_signals=True,
        print=lambda *said: print(f"{root} at http://{host}:{port}  (Ctrl-C ends it; the runs go on)", flush=True),
    )  # fmt: skip
