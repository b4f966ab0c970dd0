"""Notices by e-mail or webhook: off until an admin names a mail server or hosts, and a user subscribes."""
