"""The main job: two groups consume the same log, a consumer is killed, a message is poison, and nothing is lost.

What must come out is computed from what was pushed; what came out is what the consumer processes report.
"""

from collections import Counter

from penstock.demo.processes import Processes
from penstock.demo.stage import Stage
from penstock.demo.worker import BATCH, HELD_FROM, LEASE

CUSTOMERS = 10
ORDERS = 2_000
POISON = 777
ATTEMPTS = 3
CONSUMERS = 2


class Groups:
    """The part of the demo with consumers."""

    def __init__(self, stage: Stage, processes: Processes) -> None:
        self.client = stage.client
        self.processes = processes
        self.echo = stage.echo
        self.check = stage.check
        self.row = stage.row
        self.wait = stage.wait
        self.queue = stage.invoices
        self.pushed = {
            f"customer-{customer}": list(range(customer, ORDERS, CUSTOMERS)) for customer in range(CUSTOMERS)
        }

    def run(self) -> None:
        """Show everything; a count that is wrong raises."""
        self.push()
        self.kill_a_consumer()
        self.consume()
        self.redrive()
        self.summary()

    def push(self) -> None:
        """Push orders, one of which has a text where its amount should be."""
        self.echo("6. Two groups read the same log: billing in order, mailer shared")
        self.client.create(self.queue, max_attempts=ATTEMPTS, backoff_initial=0.1, backoff_factor=1)
        self.client.create_group(self.queue, "billing")
        self.client.create_group(self.queue, "mailer", mode="shared")
        for customer, orders in self.pushed.items():
            messages = [{"order": order, "cents": "12.50" if order == POISON else order} for order in orders]
            self.client.push(self.queue, messages, partition=customer)
        for group, behind in self.lags().items():
            self.check(f"lag of {group}, with all that was pushed", behind, ORDERS)

    def kill_a_consumer(self) -> None:
        """Kill a consumer that holds a claim."""
        self.echo("7. A consumer dies with messages in its hands")
        victim = self.processes.start(self.queue, "billing", "--hold")
        self.wait("a consumer takes a batch", lambda: len(victim.reports) == BATCH or self.someone_ended())
        victim.kill()
        taken = [(report.partition, report.order) for report in victim.reports]
        self.check("taken by it", taken, [(HELD_FROM, order) for order in self.pushed[HELD_FROM][:BATCH]])
        self.echo(
            f"   process {victim.process.pid} was killed; what it holds is free when its lease of {LEASE:g} s ends"
        )

    def consume(self) -> None:
        """Let other consumers do the work."""
        self.echo(f"8. {CONSUMERS} consumers for each group, every one a process")
        for group in ("billing", "mailer"):
            for _ in range(CONSUMERS):
                self.processes.start(self.queue, group)
        self.finish()
        good = [order for order in range(ORDERS) if order != POISON]
        self.check("orders billed, each once", self.done("billing"), good)
        self.check("orders mailed, each once", self.done("mailer"), list(range(ORDERS)))
        self.check("customers billed out of order", self.out_of_order(), [])
        letters = [
            (letter.group, letter.partition, letter.reason, letter.attempts)
            for letter in self.client.dead_letters(self.queue)
        ]
        self.check("dead letters", letters, [("billing", f"customer-{POISON % CUSTOMERS}", "ValueError", ATTEMPTS)])

    def redrive(self) -> None:
        """Deliver the dead letter again, to a consumer that can handle it."""
        self.echo("9. The consumer is mended, and the dead letter delivered again")
        self.check("redriven", self.client.redrive(self.queue, "billing"), 1)
        mended = self.processes.start(self.queue, "billing", "--mended")
        self.finish()
        self.check("handled by it", [(report.order, report.outcome) for report in mended.reports], [(POISON, "done")])

    def summary(self) -> None:
        """Count everything once more and print the result."""
        self.echo("10. All in all")
        everything = list(range(ORDERS))
        self.check("orders billed in the end, each once", self.done("billing"), everything)
        self.check("orders mailed in the end, each once", self.done("mailer"), everything)
        # What was found, and what must be: computed from what was pushed.
        self.row("pushed", sum(info.head for info in self.client.partitions(self.queue)), ORDERS)
        self.row("delivered to billing", len(set(self.done("billing"))), ORDERS)
        self.row("delivered to mailer", len(set(self.done("mailer"))), ORDERS)
        self.row("redelivered to billing", self.redelivered("billing"), BATCH + ATTEMPTS - 1)
        self.row("redelivered to mailer", self.redelivered("mailer"), 0)
        self.row("dead letters", len(self.client.dead_letters(self.queue)), 0)
        self.row("lag of billing", self.client.lag(self.queue, "billing"), 0)
        self.row("lag of mailer", self.client.lag(self.queue, "mailer"), 0)
        self.row("verify", sum(check.violations for check in self.client.verify()), 0)

    def finish(self) -> None:
        """Wait until nothing is left to do, and let the consumers go."""
        self.wait("the consumers are done", lambda: not any(self.lags().values()) or self.someone_ended())
        self.processes.stop()

    def someone_ended(self) -> bool:
        """Stop when a consumer has ended by itself; never true."""
        self.processes.require_alive()
        return False

    def lags(self) -> dict[str, int]:
        """Return how far each group is behind."""
        return {group: self.client.lag(self.queue, group) for group in ("billing", "mailer")}

    def done(self, group: str) -> list[int]:
        """Return the orders that a group has handled, as often as it has."""
        return sorted(report.order for report in self.processes.reports(group) if report.outcome == "done")

    def redelivered(self, group: str) -> int:
        """Count the times that a message was delivered again; a redriven one is a delivery of its own."""
        deliveries = Counter((report.partition, report.order) for report in self.processes.reports(group))
        return sum(deliveries.values()) - len(deliveries)

    def out_of_order(self) -> list[str]:
        """Return the customers whose bills were not made in the order of their orders."""
        billed: dict[str, list[int]] = {customer: [] for customer in self.pushed}
        for report in self.processes.reports("billing"):
            if report.outcome == "done":
                billed[report.partition].append(report.order)
        return [
            customer
            for customer, orders in self.pushed.items()
            if billed[customer] != [order for order in orders if order != POISON]
        ]
