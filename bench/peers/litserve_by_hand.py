"""The same model behind LitServe, started by hand: python litserve_by_hand.py PORT."""

from __future__ import annotations

import sys

import litserve
import torch


class ByHand(litserve.LitAPI):
    def setup(self, device: str) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
        ).eval()

    def decode_request(self, request):  # type: ignore[no-untyped-def]
        return torch.tensor(request)

    def predict(self, x):  # type: ignore[no-untyped-def]
        with torch.inference_mode():
            return self.model(x)

    def encode_response(self, output):  # type: ignore[no-untyped-def]
        return output.tolist()


if __name__ == "__main__":
    server = litserve.LitServer(ByHand(), accelerator="cpu", devices=1)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )
