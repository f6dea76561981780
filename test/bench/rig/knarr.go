package rig

import (
	"context"
	"fmt"
	"path/filepath"
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
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(c.Dir, "data")
	args := []string{"server", "--data-dir", data, "--https-listen-port", strconv.Itoa(ports[0]), "--kubelet-port", strconv.Itoa(ports[1]),
		"--cluster-cidr", "10.162.0.0/16", "--service-cidr", "10.163.0.0/16", "--config", "/dev/null"}
	if !node {
		args = append(args, "--disable-agent", "--bind-address", "127.0.0.1")
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
