"""What builds have made, kept by what it was made from: a second build finds it, a killed one goes on."""
