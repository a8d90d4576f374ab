-- Nothing is for everybody: who may call what is granted to the three roles by `penstock grant`.
REVOKE ALL ON SCHEMA penstock FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA penstock FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA penstock FROM PUBLIC;
