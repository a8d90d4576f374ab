"""Ten flows that compete for two cores."""

from penstock.pipeline import Flow

for _number in range(10):
    globals()[f"flow{_number}"] = Flow(f"f{_number}", source=f"in{_number}", schema="id long", max_messages=100).to(
        f"out{_number}", partition="'p'"
    )
