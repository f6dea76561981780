package rig

import (
	"context"
	"fmt"
	"path/filepath"
)

// admins is the group that may do everything.
const admins = "system:masters"

// Upstream starts upstream's etcd and API server with their defaults and waits
// for /readyz; then its components of that name, which need no waiting for.
func Upstream(ctx context.Context, p Programs, dir string, components ...string) (*Cluster, error) {
	c, err := ControlPlane(ctx, p, dir, false)
	if err != nil {
		return nil, err
	}
	for _, name := range components {
		if err := c.AddUpstream(p, name); err != nil {
			c.Stop()
			return nil, err
		}
	}
	return c, nil
}

// AddUpstream starts upstream's scheduler, controller manager, node, proxy or CoreDNS
// against this cluster.
func (c *Cluster) AddUpstream(p Programs, name string) error {
	f := c.pki.file
	bin := func(name string) string { return filepath.Join(p.Upstream, name) }
	switch name {
	case "kube-scheduler":
		k, err := c.pki.kubeconfig(c.Server, name, "system:kube-scheduler")
		if err != nil {
			return err
		}
		config := filepath.Join(c.Dir, "scheduler.yaml")
		if err := writeFile(config, fmt.Sprintf("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+
			"leaderElection: {leaderElect: false}\nclientConnection: {kubeconfig: %s, qps: 10000, burst: 10000}\n", k)); err != nil {
			return err
		}
		return c.run(name, bin(name), "--config", config, "--secure-port", "0")
	case "kube-controller-manager":
		k, err := c.pki.kubeconfig(c.Server, name, "system:kube-controller-manager")
		if err != nil {
			return err
		}
		signing := f("sa.key")
		args := []string{"--kubeconfig", k, "--use-service-account-credentials", "--leader-elect=false", "--secure-port", "0",
			"--kube-api-qps", "10000", "--kube-api-burst", "10000", "--root-ca-file", f("ca.crt"),
			"--allocate-node-cidrs", "--cluster-cidr", c.Pods, "--service-cluster-ip-range", c.Services,
			"--cluster-signing-cert-file", f("ca.crt"), "--cluster-signing-key-file", f("ca.key"),
			// Nodes that are only objects renew no lease; after 50 s they would be
			// found lost, and all pods on them written, while pods are scheduled.
			"--node-monitor-grace-period", "10m"}
		if exists(signing) {
			args = append(args, "--service-account-private-key-file", signing)
		}
		return c.run(name, bin(name), args...)
	case "kube-proxy":
		k, err := c.pki.kubeconfig(c.Server, name, "system:kube-proxy")
		if err != nil {
			return err
		}
		ports, err := freePorts(2)
		if err != nil {
			return err
		}
		config := filepath.Join(c.Dir, "proxy.yaml")
		// By default it programs at most once a second, which would be all that one sees of
		// its changes. The host's connection tracking is not this cluster's to tune.
		if err := writeFile(config, fmt.Sprintf("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+
			"mode: nftables\nnftables: {minSyncPeriod: 10ms}\nclientConnection: {kubeconfig: %s}\nclusterCIDR: %s\nhostnameOverride: %s\n"+
			"conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n"+
			"healthzBindAddress: 127.0.0.1:%d\nmetricsBindAddress: 127.0.0.1:%d\n", k, podsOfNode, NodeName, ports[0], ports[1])); err != nil {
			return err
		}
		return c.run(name, bin(name), "--config", config)
	case "coredns":
		k, err := c.pki.kubeconfig(c.Server, name, "system:coredns", admins)
		if err != nil {
			return err
		}
		return c.startCoreDNS(p, hostAddress()+":10053", k, "/etc/resolv.conf")
	case "node":
		return c.upstreamNode(p)
	}
	return fmt.Errorf("rig has no component %q", name)
}
