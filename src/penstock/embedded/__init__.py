"""A real PostgreSQL, and a Valkey beside it, that belong to a folder: so penstock works where no server was set up.

Processes that attach to the same home share one server. It starts with the first of them and stops
by itself soon after the last has gone, however that one ended; `start_detached` keeps it up until
`stop`. Valkey starts when somebody first asks for it, and stops with PostgreSQL.

To read further: `home` is what lies in the folder, `instance` what a user does with it, `keeper`
the process that looks after the servers, `postgres` and `valkey` the servers, `leftovers` how one ends,
`binaries` where its programs come from, `account` who runs them, and `locks` how processes agree.
"""

from penstock.embedded.instance import Instance, Status, attach, start_detached, status, stop

__all__ = ["Instance", "Status", "attach", "start_detached", "status", "stop"]
