"""What commands are made of: kinds of options, tables, reports, and the servers they start."""
