"""The servers of the coin-throwing methods, and their conversations with cohorts."""
