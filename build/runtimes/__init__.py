"""What each runtime's engines are made of: one module for each."""
