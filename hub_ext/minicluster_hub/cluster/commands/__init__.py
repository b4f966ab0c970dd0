"""The commands of `minicluster-cluster`: up, down, status, accounts, policy."""
