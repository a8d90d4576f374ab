"""`python -m penstock.bench`: the same commands as `penstock bench`."""

from penstock.bench.cli import bench

bench(prog_name="penstock bench")
