package rig

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
)

// ControlPlane starts knarr's own etcd and API server, or upstream's, each a
// process by itself with the same flags, and waits for /readyz.
func ControlPlane(ctx context.Context, p Programs, dir string, own bool) (*Cluster, error) {
	c, err := newCluster(dir)
	if err != nil {
		return nil, err
	}
	if err = c.prepareControl(); err == nil {
		err = c.startControl(ctx, p, own)
	}
	if err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// prepareControl makes certificates, and the flags of an etcd and an API server
// that either side's programs take.
func (c *Cluster) prepareControl() error {
	c.Pods, c.Services, c.ClusterDNS = "10.164.0.0/16", "10.165.0.0/16", "10.165.0.10"
	var err error
	if c.pki, err = newAuthority(filepath.Join(c.Dir, "pki")); err != nil {
		return err
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	address := hostAddress()
	etcd, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	c.Server = fmt.Sprintf("https://127.0.0.1:%d", ports[2])
	if err := c.pki.issue("apiserver", "kube-apiserver", nil, []string{"localhost", "127.0.0.1", address, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.165.0.1"}); err != nil {
		return err
	}
	if err := c.pki.issue("kubelet-client", "kube-apiserver-kubelet-client", []string{admins}, nil); err != nil {
		return err
	}
	if c.Admin, err = c.pki.kubeconfig(c.Server, "admin", "system:admin", admins); err != nil {
		return err
	}
	f := c.pki.file
	c.store = []string{"--data-dir", filepath.Join(c.Dir, "etcd"),
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peer}
	c.api = []string{
		"--etcd-servers", etcd, "--secure-port", fmt.Sprint(ports[2]), "--bind-address", "0.0.0.0", "--advertise-address", address,
		"--tls-cert-file", f("apiserver.crt"), "--tls-private-key-file", f("apiserver.key"), "--client-ca-file", f("ca.crt"),
		"--kubelet-client-certificate", f("kubelet-client.crt"), "--kubelet-client-key", f("kubelet-client.key"),
		"--kubelet-preferred-address-types", "InternalIP",
		"--service-account-key-file", f("sa.key"), "--service-account-signing-key-file", f("sa.key"),
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"--service-cluster-ip-range", c.Services, "--authorization-mode", "Node,RBAC", "--allow-privileged",
		// The clients here are benchmarks: no limit on their rate.
		"--max-requests-inflight", "4000", "--max-mutating-requests-inflight", "2000"}
	return nil
}

// startControl starts etcd and API server, knarr's own or upstream's, and waits
// for /readyz.
func (c *Cluster) startControl(ctx context.Context, p Programs, own bool) error {
	etcd, api := filepath.Join(p.Upstream, "etcd"), filepath.Join(p.Upstream, "kube-apiserver")
	store, flags := slices.Concat(c.store, []string{"--log-level", "warn"}), c.api
	if own {
		etcd, api = p.Knarr, p.Knarr
		store, flags = slices.Concat([]string{"etcd"}, c.store), slices.Concat([]string{"apiserver"}, c.api)
	}
	if err := c.run("etcd", etcd, store...); err != nil {
		return err
	}
	if err := c.run("kube-apiserver", api, flags...); err != nil {
		return err
	}
	return c.ready(ctx)
}

// oldEtcd is the version of upstream's, older than that of knarr.
const oldEtcd = "3.6"

// Move ends the etcd and the API server of ControlPlane and starts those of the
// other side on the same data.
func (c *Cluster) Move(ctx context.Context, p Programs, own bool) error {
	for _, p := range slices.Backward(c.Processes) {
		p.stop()
	}
	c.Processes = nil
	if !own {
		down, err := start(c.Dir, "downgrade", p.Knarr, nil, "etcd", "--data-dir", filepath.Join(c.Dir, "etcd"), "--downgrade-to", oldEtcd)
		if err != nil {
			return err
		}
		if <-down.done; down.err != nil {
			return down.Ended()
		}
	}
	return c.startControl(ctx, p, own)
}
