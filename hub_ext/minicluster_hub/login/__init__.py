"""The built-in login beside its authenticator: throttling, sessions, and the pages for accounts."""
