"""What an operator applies: dashboards, rules, manifests, the image; and what generates them."""
