"""The operating-system account that the server runs as: PostgreSQL refuses to run as root."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from penstock.errors import EmbeddedError


class Identity(TypedDict, total=False):
    """The arguments of `subprocess.Popen` that change the user."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class Account:
    """A user and its group; `identity` is empty when we are that user already."""

    uid: int
    gid: int
    identity: Identity

    def reaches(self, path: Path) -> bool:
        """Return whether the account can enter the folder, or run the program, at this path."""
        if not self.identity:
            return os.access(path, os.X_OK)
        # The kernel's own answer: there is more to it than permission bits (ACLs, network mounts).
        child = os.fork()
        if child == 0:
            allowed = False
            try:
                os.setgroups([])
                os.setgid(self.gid)
                os.setuid(self.uid)
                allowed = os.access(path, os.X_OK)
            finally:
                os._exit(0 if allowed else 1)
        return os.waitpid(child, 0)[1] == 0

    def give(self, path: Path) -> None:
        """Make the account the owner of what we made for it."""
        if self.identity:
            os.chown(path, self.uid, self.gid)


def server_account(home: Path, data: Path) -> Account:
    """Return who the server runs as: us, or for root the owner of data or home, or `nobody`."""
    uid = os.geteuid()
    if uid != 0:
        return _account(uid, drop=False)
    for folder in (data, home):
        if folder.exists() and folder.stat().st_uid != 0:
            return _account(folder.stat().st_uid, drop=True)
    import pwd

    try:
        return _account(pwd.getpwnam("nobody").pw_uid, drop=True)
    except KeyError:
        raise EmbeddedError(
            "PostgreSQL does not run as root, and there is no user `nobody` to run it as. "
            "Run penstock as a plain user, or set PENSTOCK_URL to a PostgreSQL server."
        ) from None


def _account(uid: int, *, drop: bool) -> Account:
    # Not at the top, so that importing penstock works where there are no such accounts.
    import pwd

    try:
        gid = pwd.getpwuid(uid).pw_gid
    except KeyError:
        raise EmbeddedError(
            f"The user id {uid} has no entry in the passwd database, which PostgreSQL needs. "
            "Run as a user that has one, or set PENSTOCK_URL to a PostgreSQL server."
        ) from None
    identity = Identity(user=uid, group=gid, extra_groups=[]) if drop else Identity()
    return Account(uid, gid, identity)
