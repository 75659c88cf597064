"""What people say: requests, events, templates and the syntaxes models answer in."""
