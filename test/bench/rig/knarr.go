package rig

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Knarr starts `knarr server` without the parts in disable and waits for
// /readyz; with node it runs a node too.
func Knarr(ctx context.Context, p Programs, dir string, node bool, disable ...string) (*Cluster, error) {
	c, err := newCluster(dir)
	if err != nil {
		return nil, err
	}
	c.ownNode = node
	c.Pods, c.Services, c.ClusterDNS = "10.162.0.0/16", "10.163.0.0/16", "10.163.0.10"
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(c.Dir, "data")
	args := []string{"server", "--data-dir", data, "--https-listen-port", strconv.Itoa(ports[0]), "--kubelet-port", strconv.Itoa(ports[1]),
		"--cluster-cidr", c.Pods, "--service-cidr", c.Services, "--config", "/dev/null", "--node-name", NodeName}
	if !node {
		args = append(args, "--disable-agent")
	}
	if p.PodsOfNode > 0 {
		args = append(args, "--kubelet-arg", fmt.Sprint("max-pods=", p.PodsOfNode), "--node-cidr-mask-size-ipv4", "22")
	}
	if len(disable) > 0 {
		args = append(args, "--disable", strings.Join(disable, ","))
	}
	c.Server = fmt.Sprintf("https://127.0.0.1:%d", ports[0])
	c.Admin = filepath.Join(data, "kubeconfig")
	c.cleanup = append(c.cleanup, func() {
		down, err := start(c.Dir, "down", p.Knarr, nil, "down", "--data-dir", data, "--purge")
		if err == nil {
			<-down.done
		}
	})
	if err := c.run("knarr", p.Knarr, args...); err != nil {
		return nil, err
	}
	if err := c.ready(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	c.pki, err = openAuthority(filepath.Join(data, "tls"))
	return c, err
}

// Parts are what `knarr server --disable` takes. The program is asked, since the one
// that is measured against may be older and refuses a part that it does not know.
func Parts(ctx context.Context, p Programs) ([]string, error) {
	out, err := exec.CommandContext(ctx, p.Knarr, "__complete", "server", "--disable", "").Output()
	if err != nil {
		return nil, fmt.Errorf("%s: which parts can be disabled: %w", p.Knarr, err)
	}
	lines := strings.Split(string(out), "\n")
	end := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, ":") })
	if end <= 0 {
		return nil, fmt.Errorf("%s names no part that can be disabled: %q", p.Knarr, out)
	}
	return lines[:end], nil
}

// AddKnarr starts one of knarr's components alone against this cluster.
func (c *Cluster) AddKnarr(p Programs, name string) error {
	kubeconfig := func(user string, groups ...string) (string, error) {
		return c.pki.kubeconfig(c.Server, "knarr-"+name, user, groups...)
	}
	switch name {
	case "scheduler":
		k, err := kubeconfig("system:kube-scheduler")
		if err != nil {
			return err
		}
		return c.run(name, p.Knarr, name, "--kubeconfig", k, "--leader-elect=false", "--secure-port", "0")
	case "controller-manager":
		k, err := kubeconfig("system:kube-controller-manager")
		if err != nil {
			return err
		}
		return c.run(name, p.Knarr, name, "--kubeconfig", k, "--leader-elect=false", "--secure-port", "0", "--use-service-account-credentials",
			"--root-ca-file", c.pki.file("ca.crt"), "--allocate-node-cidrs", "--cluster-cidr", c.Pods, "--service-cluster-ip-range", c.Services)
	case "kube-proxy":
		k, err := kubeconfig("system:kube-proxy")
		if err != nil {
			return err
		}
		return c.run(name, p.Knarr, name, "--kubeconfig", k, "--hostname-override", NodeName, "--cluster-cidr", podsOfNode)
	case "dns":
		k, err := kubeconfig("system:knarr-dns", admins)
		if err != nil {
			return err
		}
		return c.run(name, p.Knarr, name, "--kubeconfig", k, "--listen", hostAddress()+":10053")
	case "node":
		return c.knarrNode(p)
	}
	return fmt.Errorf("knarr has no component %q", name)
}

// knarrNode starts knarr's kubelet on containerd.
func (c *Cluster) knarrNode(p Programs) error {
	if err := c.containerd(p); err != nil {
		return err
	}
	k, err := c.nodeIdentity()
	if err != nil {
		return err
	}
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	return c.run("kubelet", p.Knarr, "kubelet", "--kubeconfig", k, "--pod-manifest-path", c.manifests(), "--hostname-override", NodeName, "--node-ip", hostAddress(),
		"--root-dir", filepath.Join(c.Dir, "kubelet"), "--pod-logs-dir", filepath.Join(c.Dir, "pods"), "--listen", fmt.Sprintf(":%d", ports[0]),
		"--container-runtime-endpoint", "unix://"+filepath.Join(c.Dir, "containerd.sock"), "--cluster-dns", c.ClusterDNS,
		"--tls-cert-file", c.pki.file("kubelet-serving.crt"), "--tls-private-key-file", c.pki.file("kubelet-serving.key"),
		"--client-ca-file", c.pki.file("ca.crt"), "--cgroup-root", "/"+cgroup)
}
