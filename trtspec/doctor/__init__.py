"""What this machine has, and which runtimes can be built and served on it."""
