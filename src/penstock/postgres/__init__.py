"""The way to PostgreSQL: addresses, connections, statements, migrations, and connections of the user."""
