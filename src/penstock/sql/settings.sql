-- Computes the settings of queues once more where this version has others: they are a stored column, which PostgreSQL does
-- not compute anew when the function behind it changes. Where nothing has changed it writes nothing.
UPDATE penstock.queues SET config = config WHERE settings IS DISTINCT FROM penstock.effective_settings(config);
