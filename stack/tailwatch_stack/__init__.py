"""The tailwatch command and the stack it runs."""
