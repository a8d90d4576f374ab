"""Many workers share one partition; what fails comes back alone and ends as a dead letter."""

from penstock import Client, StoredMessage

with Client() as client:
    client.create("thumbnails", max_attempts=2, backoff_initial=0)
    client.create_group("thumbnails", "workers", mode="shared")
    client.push("thumbnails", [{"picture": number} for number in range(100)])

    def shrink(message: StoredMessage) -> None:
        """Make one thumbnail; picture 13 is broken."""
        if message.json()["picture"] == 13:
            raise ValueError("not a picture")

    client.process("thumbnails", shrink, group="workers", concurrency=4, max_messages=10, idle_timeout=1)
    for letter in client.dead_letters("thumbnails", "workers"):
        print(letter.offset, letter.attempts, letter.last_error)
