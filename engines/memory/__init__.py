"""What two engines need of GPU memory, and what is left for requests."""
