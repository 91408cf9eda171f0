"""An engine pair as a value, and the cpu engine."""
