"""A shop that writes about RATE changes a second into PG_URL, for as long as it runs; it makes its
tables and its publication first, if they are missing."""

import os
import time
from itertools import count

import psycopg

from penstock.demo.sources.postgres import PostgresWriter, shop
from penstock.demo.workload import Ledger

URL, RATE = os.environ["PG_URL"], float(os.environ["RATE"])

with psycopg.connect(URL, autocommit=True) as connection:
    found = connection.execute("SELECT FROM pg_publication WHERE pubname = %s", [shop.PUBLICATION])
    if found.fetchone() is None:
        connection.execute(shop.CREATE.encode())

with PostgresWriter(URL, rate=RATE) as writer:
    writer.first()
    for number in count(1):
        writer.turn(number)
        time.sleep(writer.ledger.count / RATE)
        writer.ledger = Ledger()  # what it wrote is of no use here
