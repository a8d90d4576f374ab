-- PUBLIC has no privileges. `penstock grant` grants the roles what they may call.
REVOKE ALL ON SCHEMA penstock FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA penstock FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA penstock FROM PUBLIC;
