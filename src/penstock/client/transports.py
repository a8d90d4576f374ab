"""Which transport a client uses: the one place where clients know of PostgreSQL."""

from penstock.broker.async_transport import AsyncTransport
from penstock.broker.transport import Transport
from penstock.postgres.async_database import AsyncDatabase
from penstock.postgres.database import Database
from penstock.settings import Settings


def transport_for(settings: Settings) -> Transport:
    """Return the transport that the settings ask for."""
    return Database(settings)


def async_transport_for(settings: Settings) -> AsyncTransport:
    """Do the same for an asynchronous client."""
    return AsyncDatabase(settings)
