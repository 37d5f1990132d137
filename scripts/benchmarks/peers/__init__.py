"""Other programs in the broker's and the gateway's place, and what has to stand behind and in front of them."""
