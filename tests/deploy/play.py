"""The compose file, played: each service in its order, with its command, environment and health
check, by the programs of this machine.

What an image does at its own start is done here: PostgreSQL's makes the user and the database.
Grafana is not there.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

from penstock.demo.servers import Daemon, beside_python
from tests.deploy.programs import program, prometheus_program
from tests.docs.pages import ROOT
from tests.pipeline.running import CLASSES, eventually
from tests.servers import Postgres, free_port

DEPLOY = ROOT / "deploy"
FILE = DEPLOY / "compose.yaml"
SERVICES: Mapping[str, Any] = yaml.safe_load(
    re.sub(r"\$\{\w+:-(\w+)\}", r"\1", re.sub(r"\$\{(\w+):\?[^}]*\}", r"a-\1", FILE.read_text()))
)["services"]


def after(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = SERVICES[name].get("depends_on", {})
    return found


ORDER = list(TopologicalSorter({name: after(name) for name in SERVICES}).static_order())


class Play:
    """The services that were started, and where on this machine is what their containers have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = {name: free_port() for name in ("nats", "monitor", "ops", "prometheus")}
        self.ports = ports
        self.done: list[str] = []
        self.places = {
            "nats:4222": f"127.0.0.1:{ports['nats']}",
            "127.0.0.1:8222": f"127.0.0.1:{ports['monitor']}",
            "--http_port=8222": f"--http_port={ports['monitor']}",
            "penstock:9090": f"127.0.0.1:{ports['ops']}",
            "=/data": f"={folder / 'nats'}",
            "/opt/penstock/bin/python": sys.executable,
            "/opt/penstock/alive.py": str(DEPLOY / "image" / "alive.py"),
            "/opt/penstock/spark-classes.jsa": str(CLASSES if CLASSES.exists() else folder / "no"),
            "/etc/penstock": str(folder),
        }

    def local(self, text: str) -> str:
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text

    def environment(self, name: str) -> dict[str, str]:
        given = SERVICES[name].get("environment", {})
        return {key: self.local(value) for key, value in given.items()}

    def run(self, name: str, *command: str, **environment: str) -> Daemon:
        """Starts it with what the file says after the program."""
        arguments = [self.local(each) for each in SERVICES[name].get("command", ())]
        daemon = Daemon(name, self.folder / f"{name}.log")
        daemon.spawn([*command, *arguments], self.environment(name) | environment, self.folder)
        return daemon

    def becomes_healthy(self, name: str, daemon: Daemon, port: int = 0) -> None:
        """By its own check; `port` is the one that it has here instead of 9090, where the check
        does not find it itself."""
        kind, *test = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        command = [self.local(each.replace("127.0.0.1:9090", f"127.0.0.1:{port}")) for each in test]
        environment = {**os.environ, **self.environment(name)}

        def healthy() -> bool:
            assert daemon.running, daemon.tail(40)
            done = subprocess.run(command, env=environment, check=False, capture_output=True)
            return done.returncode == 0

        eventually(healthy, seconds=120)


@contextmanager
def played(folder: Path) -> Iterator[Play]:
    """All services, started one after the other; `done` has their names."""
    prometheus_program("prometheus")
    program("wget", "wget")
    folder.chmod(0o755)
    play = Play(folder)
    with ExitStack() as stack:

        def start(name: str, *command: str, port: int = 0, **environment: str) -> None:
            assert after(name).keys() <= set(play.done)
            daemon = play.run(name, *command, **environment)
            stack.callback(daemon.wait, 60)
            stack.callback(daemon.signal, signal.SIGTERM)
            play.becomes_healthy(name, daemon, port)
            play.done.append(name)

        settings = [each.split("=") for each in SERVICES["postgres"]["command"] if "=" in each]
        server = stack.enter_context(Postgres(settings=dict(settings)))
        given = SERVICES["postgres"]["environment"]
        user, database = given["POSTGRES_USER"], given["POSTGRES_DB"]
        server.execute(
            f"CREATE ROLE {user} SUPERUSER LOGIN PASSWORD '{given['POSTGRES_PASSWORD']}'"
        )
        server.execute(f"CREATE DATABASE {database} OWNER {user}")
        play.places["postgres:5432"] = f"127.0.0.1:{server.port}"
        play.places["--dbname="] = f"--dbname=postgresql://127.0.0.1:{server.port}/"
        play.becomes_healthy("postgres", server)
        play.done.append("postgres")

        start("nats", str(beside_python("nats-server", extra="demo")), f"-p={play.ports['nats']}")
        (play.folder / "shop.py").write_text((DEPLOY / "compose" / "shop.py").read_text())
        start("shop", *map(play.local, SERVICES["shop"]["entrypoint"]))
        pipeline = yaml.safe_load(play.local((DEPLOY / "compose" / "pipeline.yaml").read_text()))
        pipeline["ops"]["port"] = play.ports["ops"]
        (play.folder / "pipeline.yaml").write_text(yaml.safe_dump(pipeline))
        start("penstock", sys.executable, "-m", "penstock", port=play.ports["ops"],
              XDG_STATE_HOME=str(play.folder))  # fmt: skip
        for name in ("compose/prometheus.yaml", "prometheus/alerts.yaml"):
            (play.folder / Path(name).name).write_text(play.local((DEPLOY / name).read_text()))
        start(
            "prometheus",
            prometheus_program("prometheus"),
            f"--config.file={play.folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={play.folder / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{play.ports['prometheus']}",
            port=play.ports["prometheus"],
        )
        yield play
