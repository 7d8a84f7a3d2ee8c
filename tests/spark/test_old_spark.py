"""With a Spark before 4.2, as far as it is in what 4.0 lacks: an error that says so, of penstock's
source alone."""

import subprocess
import sys

_OLD = """
import pyspark.sql.datasource
del pyspark.sql.datasource.DataSourceStreamArrowWriter
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _OLD + script], capture_output=True, text=True, check=False
    )


def test_registering_names_the_versions_that_work() -> None:
    found = run("import penstock; penstock.register(None)")
    assert found.returncode == 1
    assert "SettingsError: penstock needs Spark 4.2 or 4.3, this is PySpark" in found.stderr
    assert "[spark.version]" in found.stderr


def test_the_look_up_of_other_data_sources_goes_on() -> None:
    """PySpark imports every package `pyspark_*`, and fails with any of them."""
    found = run("""
import pickle
import pyspark_penstock
from pyspark.sql.datasource import DataSource
source = pickle.loads(pickle.dumps(pyspark_penstock.DefaultSource))
assert issubclass(source, DataSource)
print(source.name())
source({})
""")
    assert found.stdout == "penstock\n"
    assert "SettingsError: penstock needs Spark 4.2 or 4.3" in found.stderr
