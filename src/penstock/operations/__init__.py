"""What an operator does, without its presentation: the CLI shows these results, and any other front end may.

To read further: `checks` is what `penstock doctor` checks, with `group_checks` for consumer groups; `status` says what
is stuck, why, and what to do; `verification` compares state with the log; `maintenance` is the loop of `penstock
maintain`; `envelopes` are messages as JSON. Nothing here prints, asks or exits: functions return values, yield events
or raise.
"""
