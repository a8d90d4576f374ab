"""Which transport a client uses: the one place where clients know of PostgreSQL, Valkey and HTTP.

Each is imported only where it is used: imports take time.
"""

from penstock.broker.async_transport import AsyncTransport
from penstock.broker.transport import Transport
from penstock.http.address import is_gateway
from penstock.settings import Settings


def transport_for(settings: Settings) -> Transport:
    """Return the transport that the settings ask for."""
    if is_gateway(settings.url):
        from penstock.http.gateway import Gateway

        return Gateway(settings)
    from penstock.postgres.database import Database
    from penstock.valkey.address import find

    database = Database(settings)
    address = find(settings)
    if address is None:
        return database
    from penstock.warm.links import Link
    from penstock.warm.transport import WarmTransport

    return WarmTransport(database, Link(address))


def async_transport_for(settings: Settings) -> AsyncTransport:
    """Do the same for an asynchronous client."""
    if is_gateway(settings.url):
        from penstock.http.async_gateway import AsyncGateway

        return AsyncGateway(settings)
    from penstock.postgres.async_database import AsyncDatabase

    return with_windows(AsyncDatabase(settings), settings)


def with_windows(database: AsyncTransport, settings: Settings) -> AsyncTransport:
    """Let an asynchronous transport take from the windows in Valkey, if there is one."""
    from penstock.valkey.address import find

    address = find(settings)
    if address is None:
        return database
    from penstock.warm.async_transport import AsyncWarmTransport
    from penstock.warm.links import AsyncLink

    return AsyncWarmTransport(database, AsyncLink(address))
