"""A real PostgreSQL and a real nats-server, embedded: for the demo, the tests and the benchmark.

Both run on 127.0.0.1 in a folder of their own (a temporary one unless given), and may be stopped,
killed and started again on the same folder and port.
"""

from penstock.demo.nats_server import Nats
from penstock.demo.postgres import Database, Postgres
from penstock.demo.programs import free_port

__all__ = ["Database", "Nats", "Postgres", "free_port"]
