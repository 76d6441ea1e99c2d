"""Run the manifests of ``deploy/k8s`` without a cluster, by emulating nodes, scheduler and kubelet.

``starting`` renders an overlay, and ``objects`` holds the result. These modules are pure:
``plans`` turns a template into a pod and ``environment`` into its variables; ``probes``
and ``rollout`` decide like the kubelet and the StatefulSet controller; ``rbac`` and
``policies`` evaluate permissions. Their shells are ``enter`` (turns a process into a container),
``volumes``, ``containers``, ``kubelet``, ``services``, ``wiring``, ``api`` and, on top,
``cluster``. The drills are in ``families``; ``drilling`` runs and judges them.

Missing compared with a real cluster: images (the processes run from this machine's environment),
several kernels, CPU and memory limits, seccomp profiles, storage classes.
"""
