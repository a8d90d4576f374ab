"""`penstock bench batching`: what callers gain who share a round trip, and what waiting costs."""
