"""Roll out a dataset against a policy, write down every result, summarise the rewards."""
