"""``python -m deploy.grafana``: write the dashboards' JSON files."""

from __future__ import annotations

from deploy.grafana.frame import write

if __name__ == "__main__":
    for path in write():
        print(f"{path.name}: {path.stat().st_size:,} bytes")
