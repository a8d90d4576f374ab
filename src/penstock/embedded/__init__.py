"""A real PostgreSQL that belongs to a folder, so that penstock works where no server was set up.

Processes that attach to the same home share one server. It starts with the first of them and stops
by itself soon after the last has gone, however that one ended; `start_detached` keeps it up until
`stop`.

To read further: `home` is what lies in the folder, `instance` what a user does with it, `keeper`
the process that looks after the server, `postgres` the server itself, `leftovers` how it ends,
`binaries` where its programs come from, `account` who runs them, and `locks` how processes agree.
"""

from penstock.embedded.instance import Instance, Status, attach, start_detached, status, stop

__all__ = ["Instance", "Status", "attach", "start_detached", "status", "stop"]
