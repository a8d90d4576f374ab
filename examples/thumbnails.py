"""An app with two actions: pictures become thumbnails, and thumbnails are announced."""

from penstock import DeadLetter, Item, Snooze, action


@action(queue="pictures", to="thumbnails", flow="images", max_attempts=5, timeout=30)
def resize(item: Item) -> dict[str, object]:
    """Make one thumbnail. What is returned is pushed to `thumbnails` together with the acknowledgement."""
    picture = item.json()
    if picture["width"] == 0:
        raise DeadLetter("the picture is empty")
    item.progress(40, "decoded")
    return {"name": picture["name"], "width": 128}


@action(queue="thumbnails", flow="images")
async def announce(item: Item) -> None:
    """Say that a thumbnail is there."""
    if item.json()["name"] == "secret.png" and item.attempt > 1:
        raise Snooze(3600)
    print(f"{item.json()['name']} entered as {item.data_source}")
