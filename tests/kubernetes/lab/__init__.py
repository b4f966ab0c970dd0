"""A real Kubernetes cluster on one machine: its control plane, and kubelets on the lab's three machines."""
