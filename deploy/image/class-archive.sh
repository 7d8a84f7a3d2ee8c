#!/bin/sh
# class-archive.sh FILE: makes the archive of the classes that Spark loads, by a run of a pipeline of
# made-up changes.
set -eu
cd "$(mktemp -d)"
cat >pipeline.yaml <<PIPELINE
backends: [{type: memory}]
sink: {type: memory}
positions: "memory:"
spark: {class_archive: $1}
PIPELINE
# The name of a host that builds has no address.
TMPDIR=$PWD SPARK_LOCAL_HOSTNAME=localhost penstock run pipeline.yaml &
# The service makes it when it idles; the file has its name when it is complete.
until test -s "$1"; do
    kill -0 $!
    sleep 1
done
kill -TERM $!
wait $!
