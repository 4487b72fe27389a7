"""An ordinary Flower app, whose users have models of their own."""
