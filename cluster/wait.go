package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// startTime is how long a server may take until it holds its data directory.
const startTime = 5 * time.Second

const (
	dnsService    = "kube-dns"
	defaultDomain = "cluster.local"
)

// Wait returns once the cluster of dir has a Ready node and answers DNS, if it has knarr's:
// where this machine does not serve the addresses of Services, once a node is behind the
// Service kube-dns. Without a domain it is the server's. An error says what it still lacked.
func Wait(ctx context.Context, dir, domain string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	l := layout{dir}
	if exists(l.joined()) && !exists(l.kubeconfig()) {
		return fmt.Errorf("the node of --data-dir %s is an agent's; run knarr wait on a server", dir)
	}
	began, seen := time.Now(), false
	var lacks error
	for {
		now := l.lacks(ctx, domain)
		if now == nil {
			return nil
		}
		if lacks == nil || ctx.Err() == nil { // that the time is up is not what it lacks
			lacks = now
		}
		running := l.running()
		switch seen = seen || running; {
		case seen && !running:
			return fmt.Errorf("the server of --data-dir %s ended; its log says why", dir)
		case !seen && time.Since(began) > startTime:
			return noServer(dir)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			if !running { // its sockets may be held for the next one, and answer nothing
				return noServer(dir)
			}
			return fmt.Errorf("not ready in time: %w", lacks)
		}
	}
}

func noServer(dir string) error {
	return fmt.Errorf("no server of --data-dir %s runs on this machine; start one with knarr server", dir)
}

// running reports whether the process that wrote its id into the lock holds it. The
// lock itself is not tried: a server that starts just then would fail.
func (l layout) running() bool {
	var st unix.Stat_t
	b, err := os.ReadFile(l.lock())
	pid := strings.TrimSpace(string(b))
	if err != nil || pid == "" || unix.Stat(l.lock(), &st) != nil {
		return false
	}
	locks, err := os.ReadFile("/proc/locks")
	return err == nil && holds(string(locks), pid, st.Ino)
}

// holds reports whether a process has a lock on a file, by what the kernel lists
// of all locks. Ids are reused, and a process that was killed may stay in the
// list of processes; neither has the lock. Pure.
func holds(locks, pid string, inode uint64) bool {
	file := ":" + strconv.FormatUint(inode, 10)
	for line := range strings.Lines(locks) {
		f := strings.Fields(line) // 1: FLOCK ADVISORY WRITE pid major:minor:inode 0 EOF
		if len(f) > 5 && f[1] == "FLOCK" && f[4] == pid && strings.HasSuffix(f[5], file) {
			return true
		}
	}
	return false
}

// lacks is what the cluster still needs to be of use.
func (l layout) lacks(ctx context.Context, domain string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", l.kubeconfig())
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Timeout = -1, 5*time.Second
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	have, err := l.readSettings()
	if err != nil {
		return err
	}
	return clusterLacks(ctx, client, have, cmp.Or(domain, have["cluster-domain"], defaultDomain))
}

// clusterLacks is what it needs to be of use that has these settings.
func clusterLacks(ctx context.Context, client kubernetes.Interface, have settings, domain string) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if !anyReady(nodes.Items) {
		return errors.New("no node is Ready")
	}
	switch {
	case have.without("coredns"):
		return nil
	case have.without("kube-proxy") || have["disable-agent"] == "true":
		return dnsPublished(ctx, client)
	}
	return dnsAnswers(ctx, client, domain)
}

// dnsPublished is whether a node answers DNS, as the cluster says.
func dnsPublished(ctx context.Context, client kubernetes.Interface) error {
	list, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + dnsService})
	if err != nil {
		return err
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				return nil
			}
		}
	}
	return fmt.Errorf("no node is behind Service %s/%s", metav1.NamespaceSystem, dnsService)
}

// dnsAnswers is whether the Service of DNS does.
func dnsAnswers(ctx context.Context, client kubernetes.Interface, domain string) error {
	service, err := client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, dnsService, metav1.GetOptions{})
	if err != nil {
		return err
	}
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn("kubernetes.default.svc."+domain), dns.TypeA)
	answer, _, err := (&dns.Client{Timeout: 300 * time.Millisecond}).ExchangeContext(ctx, q, net.JoinHostPort(service.Spec.ClusterIP, "53"))
	if err != nil {
		return fmt.Errorf("ask DNS: %w", err)
	}
	if len(answer.Answer) == 0 {
		return fmt.Errorf("DNS does not know %s; with another domain give --cluster-domain", q.Question[0].Name)
	}
	return nil
}

func anyReady(nodes []corev1.Node) bool {
	for _, n := range nodes {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return true
			}
		}
	}
	return false
}
