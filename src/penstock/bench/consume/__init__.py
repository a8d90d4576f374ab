"""`penstock bench consume`: take and acknowledge, beside an earlier penstock and beside the plainest queue."""
