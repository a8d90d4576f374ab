"""Who may use the gateway: keys, tokens, sessions, limits, and what browsers may be made to do."""
