"""A standalone cluster on this machine: a master, and a worker on each of two loopback addresses."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pyspark

from penstock.embedded.java import java_home
from penstock.settings import resolve

_CLASSES = "org.apache.spark.deploy"


class Standalone:
    """The processes of the cluster, ended by their ids."""

    def __init__(self, folder: Path, hosts: tuple[str, ...] = ("127.0.0.1", "127.0.0.2")) -> None:
        self._folder, self._hosts = folder, hosts
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.master = f"spark://127.0.0.1:{free.getsockname()[1]}"

    def __enter__(self) -> Self:
        port = self.master.rsplit(":", 1)[1]
        self._start("master", "127.0.0.1", "master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
        for host in self._hosts:
            words = ("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir")
            self._start(f"worker-{host}", host, "worker.Worker", *words, str(self._folder / host), self.master)
        deadline = time.monotonic() + 240
        log = self._folder / "master.log"
        while log.read_text().count("Registering worker") < len(self._hosts):
            if time.monotonic() > deadline:
                self.__exit__()
                raise AssertionError(log.read_text()[-2000:])
            time.sleep(0.1)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()

    def _start(self, name: str, host: str, role: str, *words: str) -> None:
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        environment = {
            **os.environ,
            "JAVA_HOME": str(java_home(resolve().home)),
            "SPARK_LOCAL_IP": host,
            # As clusters have it, with PySpark in a zip.
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(Path(__file__).parent.parent),
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(program), f"{_CLASSES}.{role}", *words], stdout=log, stderr=subprocess.STDOUT, env=environment
                )
            )
