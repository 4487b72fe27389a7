"""What only a network of devices needs: patience, doubts, pauses, ownership of users' ids."""
