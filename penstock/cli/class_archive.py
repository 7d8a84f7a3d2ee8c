"""`penstock class-archive`: makes the archive of Spark's classes, before pipelines start."""

import click


@click.command("class-archive")
def command() -> None:
    """Make an archive of the classes that Spark loads, unless there is one already.

    Loading classes is half of the CPU time of a start; pipelines that start later map the archive
    into memory instead. It takes 170 MB and half a minute, and belongs to this Java and this
    PySpark. The folder is PENSTOCK_CLASS_ARCHIVE, else ~/.cache/penstock; a pipeline must have the
    same setting to find it. Prints the file.
    """
    from penstock.spark.session.class_list import make_archive

    click.echo(make_archive())
