"""What users import: the clients, their batches and transactions."""
