"""The manifests of ``deploy/k8s`` without a cluster: what a node, a scheduler and a kubelet do.

``kustomize`` renders an overlay, ``objects`` holds what came out. ``plans`` makes a pod of a
template, ``environment`` its variables, ``probes``, ``backoff`` and ``rollout`` decide as the
kubelet and the StatefulSet's controller do, ``rbac`` and ``policies`` say who may do and reach
what: all pure. Their shells are ``enter`` (a process becomes a container), ``volumes``,
``containers``, ``kubelet``, ``services``, ``wiring``, ``api`` and, over all of them, ``cluster``.
The drills are ``families``; ``drilling`` runs and judges them.

What a real cluster has and this has not: images (the processes run from this machine's
environment), more than one kernel, limits of processor and memory, a seccomp profile, storage
classes.
"""
