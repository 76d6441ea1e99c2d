from __future__ import annotations

from typing import Any

import pytest

from drills.pods.objects import Objects
from drills.pods.rbac import Account, Attempt, attempt_of, is_allowed

ACCOUNT = Account("shop", "mark")
COORDINATION = "coordination.k8s.io"


def role(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Role", "metadata": {"name": "r", "namespace": "shop"}, "rules": list(rules)}


def binding(**subject: str) -> dict[str, Any]:
    return {
        "kind": "RoleBinding",
        "metadata": {"name": "b", "namespace": "shop"},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "mark", **subject}],
    }


def rule(verbs: list[str], resource: str, *names: str, group: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {"verbs": verbs, "resources": [resource], "apiGroups": [group]}
    return found | ({"resourceNames": list(names)} if names else {})


def attempt(verb: str, name: str = "mark-g0", *, resource: str = "leases") -> Attempt:
    return Attempt(verb, COORDINATION if resource == "leases" else "", resource, "shop", name)


LEASES = role(
    rule(["create"], "leases", group=COORDINATION),
    rule(["get", "update"], "leases", "mark-g0", group=COORDINATION),
    rule(["patch"], "pods", "mark-g0-0"),
)


@pytest.mark.parametrize(
    ("tried", "allowed"),
    [
        (attempt("get"), True),
        (attempt("update"), True),
        (attempt("create", ""), True),
        (attempt("delete"), False),
        (attempt("get", "other"), False),
        (attempt("list", ""), False),
        (attempt("patch", "mark-g0-0", resource="pods"), True),
        (attempt("patch", "mark-g0-1", resource="pods"), False),
        (attempt("get", "mark-g0-0", resource="pods"), False),
        (attempt("get")._replace(namespace="other"), False),
    ],
)
def test_only_what_a_rule_names_is_allowed(tried: Attempt, allowed: bool) -> None:
    assert is_allowed(Objects([LEASES, binding()]), ACCOUNT, tried) is allowed


def test_a_rule_by_name_does_not_cover_making() -> None:
    named = role(rule(["create"], "leases", "mark-g0", group=COORDINATION))
    assert not is_allowed(Objects([named, binding()]), ACCOUNT, attempt("create", ""))


def test_accounts_of_other_names_and_namespaces_get_nothing() -> None:
    found = Objects([LEASES, binding()])
    assert not is_allowed(found, Account("shop", "other"), attempt("get"))
    assert not is_allowed(found, Account("other", "mark"), attempt("get"))
    assert is_allowed(
        Objects([LEASES, binding(namespace="other")]), Account("other", "mark"), attempt("get")
    )


def test_without_a_role_a_binding_gives_nothing() -> None:
    assert not is_allowed(Objects([binding()]), ACCOUNT, attempt("get"))


@pytest.mark.parametrize(
    ("method", "path", "tried"),
    [
        ("GET", "/api/v1/namespaces/shop/pods/a", Attempt("get", "", "pods", "shop", "a")),
        ("GET", "/api/v1/namespaces/shop/pods", Attempt("list", "", "pods", "shop", "")),
        ("GET", "/api/v1/nodes", Attempt("list", "", "nodes", "", "")),
        ("PATCH", "/api/v1/namespaces/shop/pods/a", Attempt("patch", "", "pods", "shop", "a")),
        (
            "GET",
            "/api/v1/namespaces/shop/pods/a/log",
            Attempt("get", "", "pods/log", "shop", "a"),
        ),
        (
            "POST",
            f"/apis/{COORDINATION}/v1/namespaces/shop/leases",
            Attempt("create", COORDINATION, "leases", "shop", ""),
        ),
        (
            "PUT",
            f"/apis/{COORDINATION}/v1/namespaces/shop/leases/a",
            Attempt("update", COORDINATION, "leases", "shop", "a"),
        ),
        ("GET", "/faults", None),
        ("OPTIONS", "/api/v1/nodes", None),
    ],
)
def test_a_request_is_a_verb_on_an_object(method: str, path: str, tried: Attempt | None) -> None:
    assert attempt_of(method, path) == tried


def test_a_refusal_says_who_may_not_do_what() -> None:
    said = attempt("delete").refusal(ACCOUNT)
    assert said == (
        'leases.coordination.k8s.io "mark-g0" is forbidden: User "system:serviceaccount:shop:mark" '
        'cannot delete resource "leases" in API group "coordination.k8s.io" in the namespace "shop"'
    )
