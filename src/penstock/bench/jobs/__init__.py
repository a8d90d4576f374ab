"""Workers with a handler that does nothing, beside Procrastinate and PgQueuer: `penstock bench workers`."""
