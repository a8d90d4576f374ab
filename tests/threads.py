"""The threads that clients have beside their own."""

import threading


def hint_threads() -> set[threading.Thread]:
    """Return those that exchange hints; a test compares with those before it, which are none of its business."""
    return {thread for thread in threading.enumerate() if thread.name == "penstock-hints"}
