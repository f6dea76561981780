package dev

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const denyFirst = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {matchLabels: {node: first}}}
`

const allowWeb = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow}
spec:
  podSelector: {matchLabels: {node: first}}
  ingress:
  - {from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 8080}]}
`

// networkPolicies close the first node's pod to the other's, also by a Service,
// open it again, and leave names and the node itself alone.
func networkPolicies(w *world) {
	if out, err := w.ask(w.two, w.one.Status.PodIP+":8080"); err != nil {
		w.t.Fatalf("without a policy: %v\n%s", err, out)
	}
	w.apply(denyFirst)
	w.until("the pod is closed", func() bool {
		_, err := w.ask(w.two, w.one.Status.PodIP+":8080")
		return err != nil
	})
	if out, err := w.ask(w.two, "first"); err == nil || strings.Contains(out, "bad address") {
		w.t.Errorf("by the Service: %v\n%s", err, out)
	}
	if out, err := w.ask(w.one, w.two.Status.PodIP+":8080"); err != nil {
		w.t.Errorf("the closed pod asks: %v\n%s", err, out)
	}
	w.apply(allowWeb)
	w.until("the pod is open to its like", func() bool {
		_, err := w.ask(w.two, "first")
		return err == nil
	})
	w.knarr("kubectl", "delete", "networkpolicy", "--all")
	w.until("the pod is open", func() bool {
		_, err := w.ask(w.two, w.one.Status.PodIP+":8080")
		return err == nil
	})
}

// ask has a pod ask, and waits two seconds for an answer.
func (w *world) ask(from corev1.Pod, host string) (string, error) {
	return w.try("kubectl", "exec", from.Name, "--", "busybox", "timeout", "2", "wget", "-qO-", "http://"+host)
}
