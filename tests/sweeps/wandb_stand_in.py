"""A stand-in for W&B's server: as much of its GraphQL as our commands ask for, and nothing else.

Covered: `Viewer` (the login); for agents `SweepWithRuns` (the sweep's file), `CreateAgent`, `Heartbeat` (hands out one
run after the other to whoever asks, each point once); for `sweeps table --wandb` `Runs`, in pages, filtered by sweep;
for `sweeps panels` `upsertView`, which is remembered; for a run that logs online its beginning, its stream of history
and summary (kept in `streamed`), whether it is preempted (kept in `preempting`; nothing is handed out again) and its
files, which are taken and thrown away. Not covered: hyperband, artifacts,
whether W&B's pages draw a view. Anything else is remembered in `unknown` and answered with empty data.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml


class StandIn(ThreadingHTTPServer):
    """Serves one sweep; `points` are handed out in order, across all agents."""

    daemon_threads = True

    def __init__(
        self,
        content: dict[str, Any] | None = None,
        points: list[dict[str, Any]] | None = None,
        runs: list[dict[str, Any]] | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(("127.0.0.1", port), Answer)
        self.content, self.points, self.runs = content or {}, list(points or []), list(runs or [])
        self.views: list[dict[str, Any]] = []
        self.begun: list[str] = []
        self.streamed: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.given: list[dict[str, Any]] = []
        self.agents: list[str] = []
        self.unknown: list[str] = []
        self.preempting: list[str] = []
        self.door = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data of one request."""
        with self.door:
            if "Heartbeat" in query:
                return {"agentHeartbeat": {"agent": {"id": variables["id"]}, "commands": self._commands(variables)}}
            if "CreateAgent" in query:
                self.agents.append(f"agent-{len(self.agents)}")
                return {"createAgent": {"agent": {"id": self.agents[-1]}}}
            if "SweepWithRuns" in query:
                sweep = {"id": "1", "name": "stand-in", "config": yaml.safe_dump(self.content), "runs": {"edges": []}}
                return {"project": {"sweep": sweep}}
            if "UpsertBucket" in query:
                self.begun.append(variables["name"])
                return {"upsertBucket": {"bucket": _bucket(variables["name"]), "inserted": True}}
            if "RunResumeStatus" in query:
                return {"model": None}
            if "CreateRunFiles" in query:
                files = [{"name": name, "uploadUrl": f"{self.url}/upload"} for name in variables["files"]]
                return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
            if "OrganizationCoreWeave" in query:
                return {"entity": None}
            if "upsertView" in query:
                self.views.append(variables)
                return {"upsertView": {"view": {"id": "1", "name": variables["name"]}, "inserted": True}}
            if "query Runs(" in query:
                return {"project": self._runs(variables) if variables["project"] == "project" else None}
            if "viewer" in query:
                viewer = {"id": "1", "entity": "us", "username": "us", "email": "us@example.com", "flags": "{}"}
                return {"viewer": {**viewer, "teams": {"edges": []}, "admin": False}}
            self.unknown.append(query.strip().split("(")[0].split("{")[0].strip())
            return {}

    def stream(self, run: str, told: dict[str, Any]) -> None:
        """A part of a run's stream: lines of JSON by file."""
        with self.door:
            if told.get("preempting"):
                self.preempting.append(run)
            for name, part in (told.get("files") or {}).items():
                lines = [json.loads(line) for line in part["content"] if line]
                self.streamed.setdefault(run, {}).setdefault(name, []).extend(lines)

    def _runs(self, variables: dict[str, Any]) -> dict[str, Any]:
        """One page of the project's runs; a cursor is the number of runs told so far."""
        sweep = json.loads(variables["filters"]).get("sweep")
        found = [run for run in self.runs if sweep in (None, run["sweepName"])]
        first = int(variables["cursor"] or 0)
        page = found[first : first + 2]  # small pages, so that there are several
        last = first + len(page)
        return {
            "internalId": "1",
            "runCount": len(found),
            "readOnly": True,
            "runs": {
                "edges": [{"node": run, "cursor": str(last)} for run in page],
                "pageInfo": {"endCursor": str(last), "hasNextPage": last < len(found)},
            },
        }

    def _commands(self, variables: dict[str, Any]) -> str:
        if json.loads(variables["runState"]):
            return "[]"
        if not self.points:
            return json.dumps([{"type": "exit"}])
        point = self.points.pop(0)
        self.given.append(point)
        arguments = {key: {"value": value} for key, value in point.items()}
        run = {"type": "run", "run_id": f"run{len(self.given)}", "program": None, "args": arguments}
        return json.dumps([run])


def _bucket(name: str) -> dict[str, Any]:
    """A run that has just begun."""
    project = {"id": "1", "name": "project", "entity": {"id": "1", "name": "us"}}
    return {"id": "1", "name": name, "displayName": name, "description": "", "config": "{}", "project": project,
            "sweepName": None, "historyLineCount": 0}  # fmt: skip


def wandb_run(
    name: str, state: str, config: dict[str, Any], summary: dict[str, Any], sweep: str = "s"
) -> dict[str, Any]:
    """A run as W&B's API tells it: config and summary are JSON, each value of the config wrapped."""
    return {
        "id": f"graphql-{name}",
        "projectId": "1",
        "name": name,
        "displayName": f"run {name}",
        "state": state,
        "sweepName": sweep,
        "createdAt": "2026-11-30T12:00:00",
        "heartbeatAt": "2026-11-30T13:00:00",
        "tags": [],
        "config": json.dumps({key: {"value": value, "desc": None} for key, value in config.items()}),
        "summaryMetrics": json.dumps(summary),
        "systemMetrics": "{}",
        "user": {"name": "us", "username": "us"},
    }


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: StandIn

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        data = {}
        if self.path == "/graphql":
            asked = json.loads(body)
            data = self.server.answer(asked.get("query", ""), asked.get("variables") or {})
        elif self.path.endswith("/file_stream"):  # what else is sent is telemetry
            self.server.stream(self.path.split("/")[-2], json.loads(body))
        self._say(json.dumps({"data": data}).encode())

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say(b"")

    def _say(self, text: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""
