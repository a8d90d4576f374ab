"""Take messages, write rows, push results, acknowledge: one transaction, so it happens once or not at all."""

from penstock import Client, Transaction

with Client() as client:
    with client.transaction() as tx:
        tx.connection.execute("CREATE TABLE IF NOT EXISTS totals (customer text PRIMARY KEY, cents bigint)")
    client.push_many("payments", [("ada", {"cents": 1200}), ("bob", {"cents": 300}), ("ada", {"cents": 50})])

    def step(tx: Transaction) -> int:
        """Handle one batch; return how many messages that were."""
        batch = tx.pop("payments", "totals")
        if batch is None:
            return 0
        for message in batch.messages:
            total = tx.connection.execute(
                "INSERT INTO totals AS t VALUES (%s, %s)"
                " ON CONFLICT (customer) DO UPDATE SET cents = t.cents + excluded.cents RETURNING cents",
                (message.partition, message.json()["cents"]),
            ).fetchone()
            tx.push("balances", {"cents": total[0]}, partition=message.partition)
        tx.ack(batch)
        return len(batch)

    while True:
        with client.transaction() as tx:
            if step(tx) == 0:
                break
    for name in ("ada", "bob"):
        print(name, client.read("balances", name)[-1].json())
