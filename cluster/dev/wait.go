package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// wait returns once every node is Ready and answers DNS.
func (w *nodeProcesses) wait(ctx context.Context, s state, names bool) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", w.cluster.Kubeconfig())
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Timeout = -1, 5*time.Second
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	err = w.until(ctx, func(ctx context.Context) error { return w.ready(ctx, client, s) })
	for n := 1; err == nil && names && n <= s.Nodes; n++ {
		for _, f := range s.families() {
			err = errors.Join(err, w.until(ctx, func(ctx context.Context) error { return w.cluster.resolves(ctx, n, s, f) }))
		}
	}
	return err
}

// ready says which node is not Ready yet. The word of a node that was started
// just now counts only once it has renewed its lease: it may be an old one.
func (w *nodeProcesses) ready(ctx context.Context, client kubernetes.Interface, s state) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := map[string]bool{}
	for i := range nodes.Items {
		for _, cond := range nodes.Items[i].Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				ready[nodes.Items[i].Name] = true
			}
		}
	}
	for n := 1; n <= s.Nodes; n++ {
		name := w.cluster.node(n)
		if !ready[name] {
			return fmt.Errorf("node %s is not Ready", name)
		}
		began, ours := w.started[n]
		if !ours {
			continue
		}
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Before(&metav1.MicroTime{Time: began}) {
			return fmt.Errorf("node %s has not been heard of since it was started", name)
		}
	}
	return nil
}

// recordType is that of the Service kubernetes, which has an address of the first family.
func (s state) recordType() uint16 {
	if s.v6() {
		return dns.TypeAAAA
	}
	return dns.TypeA
}

// resolves asks for a name as a pod of a node would, at the address that DNS has of a
// family.
func (c *Cluster) resolves(ctx context.Context, n int, s state, f family) error {
	var conn net.Conn
	err := c.within(n, spaces[:1], func() (err error) { // a socket stays where it was made
		conn, err = (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(f.dns().String(), "53"))
		return err
	})
	if err != nil {
		return fmt.Errorf("ask DNS on %s: %w", c.node(n), err)
	}
	defer conn.Close()
	q := new(dns.Msg)
	q.SetQuestion("kubernetes.default.svc.cluster.local.", s.recordType())
	answer, _, err := (&dns.Client{Timeout: 300 * time.Millisecond}).ExchangeWithConnContext(ctx, q, &dns.Conn{Conn: conn})
	if err != nil {
		return fmt.Errorf("ask DNS on %s: %w", c.node(n), err)
	}
	if len(answer.Answer) == 0 {
		return errors.New("DNS on " + c.node(n) + " does not know kubernetes.default yet")
	}
	return nil
}
