"""One page to look at and to send: charts and tables from records, nothing that is not in them."""
