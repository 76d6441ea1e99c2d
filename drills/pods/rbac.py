"""Evaluate the Roles of a manifest for a service account. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from drills.pods.objects import Manifest, Objects, namespace_of

_PATH: Final = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?P<sub>/.+)?"
)
_VERBS: Final = {
    ("GET", True): "get",
    ("GET", False): "list",
    ("POST", False): "create",
    ("PUT", True): "update",
    ("PATCH", True): "patch",
    ("DELETE", True): "delete",
    ("DELETE", False): "deletecollection",
}


class Account(NamedTuple):
    namespace: str
    name: str

    @property
    def user(self) -> str:
        """User name of the account at the API server."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def groups(self) -> frozenset[str]:
        accounts = "system:serviceaccounts"
        return frozenset({"system:authenticated", accounts, f"{accounts}:{self.namespace}"})


class Attempt(NamedTuple):
    verb: str
    group: str
    """API group; empty for pods."""
    resource: str
    namespace: str
    name: str
    """Empty if the URL has no name, as for create and list."""

    def refusal(self, account: Account) -> str:
        """Return the API server's message for a rejected request."""
        of_name = f' "{self.name}"' if self.name else ""
        return (
            f"{self.resource}{'.' if self.group else ''}{self.group}{of_name} is forbidden: User "
            f'"{account.user}" cannot {self.verb} resource "{self.resource}" in API group '
            f'"{self.group}" in the namespace "{self.namespace}"'
        )


def attempt_of(method: str, path: str) -> Attempt | None:
    """Parse a request; return None if it does not refer to an object."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    verb = _VERBS.get((method, found["name"] is not None))
    if verb is None:
        return None
    resource = found["resource"] + (found["sub"] or "")
    return Attempt(
        verb, found["group"] or "", resource, found["namespace"] or "", found["name"] or ""
    )


def is_allowed(objects: Objects, account: Account, attempt: Attempt) -> bool:
    """Return whether any binding gives the account a rule that covers the attempt."""
    return any(_covers(rule, attempt) for rule in _rules(objects, account, attempt.namespace))


def _rules(objects: Objects, account: Account, namespace: str) -> Iterator[Manifest]:
    bindings = (*objects.of_kind("RoleBinding", namespace), *objects.of_kind("ClusterRoleBinding"))
    for binding in bindings:
        if not any(_is(subject, account, binding) for subject in binding.get("subjects") or ()):
            continue
        role = binding["roleRef"]
        within = "" if role["kind"] == "ClusterRole" else namespace
        found = objects.find(role["kind"], within, role["name"])
        # A binding to a missing role grants nothing, as in a cluster.
        yield from (found or {}).get("rules") or ()


def _is(subject: Manifest, account: Account, binding: Manifest) -> bool:
    match subject["kind"]:
        case "ServiceAccount":
            namespace = subject.get("namespace") or namespace_of(binding)
            return (namespace, subject["name"]) == account
        case "User":
            return bool(subject["name"] == account.user)
        case "Group":
            return subject["name"] in account.groups
    return False


def _covers(rule: Manifest, attempt: Attempt) -> bool:
    names = rule.get("resourceNames") or ()
    return (
        _named(rule.get("verbs") or (), attempt.verb)
        and _named(rule.get("apiGroups") or (), attempt.group)
        and _named(rule.get("resources") or (), attempt.resource)
        # A create request has no name in the URL, so a rule with names never covers it.
        and (not names or attempt.name in names)
    )


def _named(listed: Iterable[str], wanted: str) -> bool:
    return any(entry in ("*", wanted) for entry in listed)
