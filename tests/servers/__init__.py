"""Real servers for the tests and the benchmark: the demo's, with what only tests need, and etcd.

All run on 127.0.0.1 in a folder of their own (a temporary one unless given), and may be stopped,
killed and started again on the same folder and port.
"""

from penstock.demo.servers import EmbeddedServer, free_port
from penstock.demo.sources.dynamodb import Moto
from penstock.demo.sources.mongodb import Secantus
from tests.servers.etcd import Etcd, etcd_program
from tests.servers.nats import Nats
from tests.servers.postgres import Database, Postgres, postgres_bin

__all__ = [
    "Database",
    "EmbeddedServer",
    "Etcd",
    "Moto",
    "Nats",
    "Postgres",
    "Secantus",
    "etcd_program",
    "free_port",
    "postgres_bin",
]
