"""The stack as plain processes: no container engine, nothing installed on the host."""
