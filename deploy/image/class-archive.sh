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
until python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:9090/ready')" 2>/dev/null; do
    kill -0 $!
    sleep 1
done
kill -TERM $!
wait $!
test -s "$1"
