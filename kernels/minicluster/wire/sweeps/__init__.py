"""Messages of sweeps: `trials` between ranks and the service, `sweeps` between notebooks and the service."""
