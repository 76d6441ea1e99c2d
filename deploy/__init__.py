"""Deployment artifacts: dashboards, rules, manifests and image, and the code generating them."""
