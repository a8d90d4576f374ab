"""What `penstock bench warm` measures: the windows in Valkey beside PostgreSQL alone and beside bare lists."""
