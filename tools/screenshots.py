"""Makes pictures of every page, light and dark, for the docs: `make screenshots`.

Starts an embedded server in a temporary folder, a shop whose orders keep coming, its worker and a gateway, waits until
there is something to see, and takes the pictures with Chromium into docs/pictures. Then a burst on a small window in
Valkey, as `penstock up` serves it, makes a strip: the window full, more cold, draining, drained.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from playwright.sync_api import Browser, Page, expect, sync_playwright

from penstock import Client, embedded
from penstock.demo.live import Live

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
PAGES = {
    "overview": "/",
    "queue-metrics": "/queue-metrics?running=open",
    "queues": "/queues",
    "queue": "/queue?queue=orders",
    "groups": "/queue?queue=orders&tab=groups",
    "throughput": "/queue?queue=orders&tab=throughput",
    "messages": "/messages?queue=orders",
    "dead-letters": "/dead-letters",
    "consumers": "/consumers",
    "schedules": "/schedules",
    "flows": "/flows",
    "server": "/server",
}
# What clients have counted comes every few minutes; a picture wants an hour of it, and the same hour yesterday.
PAST = """
    INSERT INTO penstock.queue_metrics (queue_name, metric_name, metric_value, "timestamp", labels)
    SELECT m.queue, m.metric, greatest(0, m.mean * (1 + 0.35 * sin(n / 9.0)) + m.mean * 0.12 * random())::bigint,
        date_trunc('minute', clock_timestamp()) - make_interval(mins => n) + interval '30 seconds' - d.ago,
        CASE WHEN m.member IS NOT NULL THEN jsonb_build_object('group', m.member) END
    FROM generate_series(1, 62) n, (VALUES (interval '0'), (interval '1 day')) d (ago), (VALUES
        ('orders', 'pushed', 1140, NULL), ('orders', 'delivered', 1100, 'shop.payment'),
        ('orders', 'acked', 1090, 'shop.payment'), ('orders', 'failed', 22, 'shop.payment'),
        ('paid', 'acked', 820, 'shop.shipping'), ('paid', 'pushed', 1080, NULL), ('shipped', 'acked', 815, 'shop.mail')
    ) m (queue, metric, mean, member)
"""
# The lag of the last half hour, as samples would have it.
SAMPLES = """
    UPDATE penstock.group_samples s SET
        times = ARRAY(SELECT clock_timestamp() - make_interval(mins => 30 - n) FROM generate_series(0, 29) n),
        lags = ARRAY(SELECT (s.lag * (0.15 + n / 34.0 + 0.08 * sin(n)))::bigint FROM generate_series(0, 29) n),
        depths = ARRAY(SELECT (s.depth * (0.15 + n / 34.0))::bigint FROM generate_series(0, 29) n)
    WHERE s.lag > 0
"""
# What the burst is: so many messages at once, twice, for a window that holds a few of them.
BURST, WINDOW = 3000, 200


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=PICTURES, help="the folder for the pictures")
    parser.add_argument("--seconds", type=float, default=40, help="how long the shop runs before the first picture")
    parser.add_argument("--only", nargs="*", choices=PAGES, help="take only these")
    parser.add_argument("--burst", action=argparse.BooleanOptionalAction, help="take the strip of a burst, or only it")
    given = parser.parse_args()
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise SystemExit("this needs Chromium: apt-get install chromium")
    given.into.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        if not given.burst:
            take_pages(browser, given.into, given.seconds, given.only or list(PAGES))
        if given.burst or (given.burst is None and not given.only):
            take_burst(browser, given.into)
        browser.close()


def take_pages(browser: Browser, into: Path, seconds: float, names: list[str]) -> None:
    """Take the pages of a shop, light and dark, and one on a phone."""
    home = folder()
    try:
        with Client(home=str(home)) as client, Live(client, pause=0.35) as live:
            time.sleep(seconds)
            client.sample()
            with psycopg.connect(client.dsn, autocommit=True) as connection:
                connection.execute(PAST)
                connection.execute(SAMPLES)
            for theme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": 1280, "height": 720},
                    color_scheme="dark" if theme == "dark" else "light",
                    locale="en-GB",
                    timezone_id="UTC",
                )
                page = context.new_page()
                for name in names:
                    take(page, live.address + PAGES[name], into / f"{name}-{theme}.png")
                context.close()
            phone = browser.new_page(viewport={"width": 390, "height": 780}, locale="en-GB", timezone_id="UTC")
            take(phone, live.address + "/", into / "phone-light.png")
            phone.close()
    finally:
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)


def take_burst(browser: Browser, into: Path) -> None:
    """Take a burst: the window full, more cold while workers are slow, draining, drained."""
    home = folder()
    up = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "--home", str(home), "up", "--port", "0", "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    stop, fast = threading.Event(), threading.Event()
    try:
        assert up.stderr is not None  # noqa: S101
        address = next(line.split()[1] for line in up.stderr if line.startswith("gateway:"))
        with Client(home=str(home)) as client:
            client.create_group("orders", "packing", mode="shared", warm=True, in_memory_queue_size=WINDOW)
            wait_until(lambda: client.windows()[0].live)

            def push() -> None:
                for partition in range(10):
                    client.push("orders", [{"order": n} for n in range(BURST // 10)], partition=f"p{partition}")

            def work() -> None:
                for batch in client.consume("orders", "packing", max_messages=10, stop=stop):
                    time.sleep(0.1 if fast.is_set() else 0.5)
                    batch.ack()

            page = browser.new_page(viewport={"width": 1180, "height": 470}, locale="en-GB", timezone_id="UTC")

            def picture(name: str) -> None:
                # What waits is told from a sample that may be some seconds old.
                time.sleep(6)
                client.sample()
                take(page, f"{address}/queue-metrics", into / f"burst-{name}.png")

            push()
            wait_until(lambda: client.windows()[0].state == "cold" and client.windows()[0].items == WINDOW)
            picture("1-full")
            workers = [threading.Thread(target=work, daemon=True) for _ in range(2)]
            for worker in workers:
                worker.start()
            push()
            picture("2-cold")
            fast.set()
            wait_until(lambda: client.lag("orders", "packing") < BURST)
            picture("3-draining")
            wait_until(lambda: client.lag("orders", "packing") == 0 and client.windows()[0].state == "warm")
            picture("4-drained")
            stop.set()
            for worker in workers:
                worker.join(20)
            page.close()
    finally:
        stop.set()
        up.terminate()
        up.wait()
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)


def folder() -> Path:
    """Make a folder that the server may enter, whoever runs it."""
    home = Path(tempfile.mkdtemp(prefix="penstock-pictures-"))
    home.chmod(0o755)
    return home


def wait_until(reached: Callable[[], object], seconds: float = 180) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise SystemExit("waited in vain")
        time.sleep(0.1)


def take(page: Page, address: str, file: Path) -> None:
    """Take one picture when the page has its data."""
    page.goto(address)
    page.locator("main h1").first.wait_for()
    # The page's policy forbids to evaluate texts, so this asks by its locators.
    expect(page.locator("main .skeleton")).to_have_count(0, timeout=60_000)
    page.wait_for_timeout(1_500)
    page.screenshot(path=file)
    print(file.name, f"{file.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
