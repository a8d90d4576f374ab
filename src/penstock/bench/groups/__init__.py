"""`penstock bench groups`: what consuming costs, and what it does not depend on."""
