"""An order and its message commit together; each customer's messages are handled in order."""

from penstock import Client, StoredMessage

with Client() as client:
    with client.transaction() as tx:
        tx.connection.execute("CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY, customer text, item text)")

    for number, customer, item in [(1, "ada", "kettle"), (2, "bob", "teapot"), (3, "ada", "cup")]:
        with client.transaction() as tx:
            tx.connection.execute("INSERT INTO orders VALUES (%s, %s, %s)", (number, customer, item))
            tx.push("orders", {"id": number, "item": item}, partition=customer)

    def ship(message: StoredMessage) -> None:
        """Ship one order."""
        print(f"{message.partition}: ship {message.json()['item']}")

    shipped = client.process("orders", ship, group="shipping", concurrency=4, idle_timeout=1)
    print(shipped, "shipped,", client.lag("orders", "shipping"), "left")  # 3 shipped, 0 left
