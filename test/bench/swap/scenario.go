package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"knarr/test/bench/rig"
)

// The scenario uses each component: controllers make pods of a Deployment, the
// scheduler places them, the kubelet runs them, the proxy leads to them, DNS
// names them, and the API server reaches into them.
const manifest = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: "hej"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello}
spec:
  replicas: 2
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: ` + rig.Image + `
        imagePullPolicy: Never
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: settings, mountPath: /settings}]
      volumes: [{name: settings, configMap: {name: settings}}]
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec:
  selector: {app: hello}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: "` + rig.Image + `", imagePullPolicy: Never, command: [sh, -c, "echo done"]}]
`

// dnsService leads pods to a DNS server that runs alone on the host.
const dnsService = `
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: %s
  internalTrafficPolicy: Cluster
  ports: [{name: dns, port: 53, targetPort: 10053, protocol: UDP}, {name: dns-tcp, port: 53, targetPort: 10053}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-host, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: ["%s"], conditions: {ready: true}}]
ports: [{name: dns, port: 10053, protocol: UDP}, {name: dns-tcp, port: 10053, protocol: TCP}]
`

func scenario(ctx context.Context, c *rig.Cluster, p rig.Programs) error {
	kubectl := func(stdin string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, 70*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, p.Knarr, append([]string{"kubectl", "--kubeconfig", c.Admin}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, lastLine(errs.String()))
		}
		return string(out), nil
	}
	// until tries again what takes a moment to become true.
	until := func(want, stdin string, args ...string) error {
		for {
			out, err := kubectl(stdin, args...)
			if err == nil && strings.Contains(out, want) {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("want %q, have %q: %w", want, out, err)
			case <-time.After(300 * time.Millisecond):
			}
		}
	}
	if c.DNSAlone() {
		if _, err := kubectl(fmt.Sprintf(dnsService, c.ClusterDNS, rig.HostAddress()), "apply", "-f", "-"); err != nil {
			return err
		}
	}
	if err := until("default", "", "get", "serviceaccount", "default"); err != nil { // a controller makes it
		return err
	}
	if _, err := kubectl(manifest, "apply", "-f", "-"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"rollout", "status", "deployment/hello", "--timeout=60s"},
		{"wait", "--for=condition=complete", "job/once", "--timeout=60s"},
	} {
		if _, err := kubectl("", args...); err != nil {
			return err
		}
	}
	for _, step := range []struct {
		want string
		args []string
	}{
		{"done", []string{"logs", "job/once"}},
		{"hej", []string{"exec", "deploy/hello", "--", "cat", "/settings/greeting"}},
		{"hello from hello-", []string{"exec", "deploy/hello", "--", "wget", "-qO-", "http://hello.default.svc.cluster.local"}},
		{"hello from hello-", []string{"exec", "deploy/hello", "--", "wget", "-qO-", "http://hello"}},
	} {
		if err := until(step.want, "", step.args...); err != nil {
			return err
		}
	}
	if _, err := kubectl("", "scale", "deployment/hello", "--replicas=3"); err != nil {
		return err
	}
	if _, err := kubectl("", "rollout", "status", "deployment/hello", "--timeout=60s"); err != nil {
		return err
	}
	if out, err := kubectl("", "get", "pods", "-l", "app=hello", "-o", "name"); err != nil || strings.Count(out, "pod/") != 3 {
		return fmt.Errorf("pods of a Deployment of 3: %q: %w", out, err)
	}
	if _, err := kubectl("", "delete", "deployment/hello", "job/once", "service/hello", "--cascade=foreground", "--timeout=60s"); err != nil {
		return err
	}
	out, err := kubectl("", "get", "pods", "-o", "name")
	if err == nil && out != "" {
		err = fmt.Errorf("left after everything was deleted: %q", out)
	}
	return err
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
