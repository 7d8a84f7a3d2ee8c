#!/bin/sh
# trim.sh VENV: removes some 300 MB of what no pipeline with a local Spark uses, from an environment of
# an image. Jars: Spark Connect, Hive, Kubernetes, MLlib and its mathematics, RocksDB, Scala's compiler,
# other systems' libraries.
set -eu
cd "$1"/lib/python3*/site-packages
"$1"/bin/pip uninstall --quiet --yes pip setuptools
(
    cd pyspark/jars
    rm spark-connect_* spark-hive* hive-* datanucleus-* derby* \
        spark-kubernetes_* kubernetes-* volcano-* vertx-* \
        spark-mllib* spark-graphx_* breeze* spire* algebra* cats-kernel* lapack* arpack* blas* JTransforms* \
        rocksdbjni-* scala-compiler-* *-osx-*.jar *-windows-*.jar
)
rm -r pyspark/examples pyspark/jars/connect-repl pyarrow/include pyarrow/tests
rm pyarrow/*flight* pyarrow/*_s3*
# A wheel has no links: libarrow_python.so.N is the one that is loaded, the other two are its copies.
rm pyarrow/libarrow_python*.so pyarrow/libarrow_python*.so.*.*.*
find bson nacl pymongo yaml zstandard -name '*.so' -exec strip --strip-unneeded {} +
find . -type d -name tests -prune -exec rm -r {} +
