package rig

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
)

const proxyName = "kube-proxy"

// StartProxy starts knarr's kube-proxy, or upstream's, against this cluster.
func (c *Cluster) StartProxy(p Programs, own bool) error {
	if own {
		return c.AddKnarr(p, proxyName)
	}
	return c.AddUpstream(p, proxyName)
}

// RemoveProxy ends the proxy, and lets it take out of the kernel what it wrote.
func (c *Cluster) RemoveProxy(ctx context.Context, p Programs, own bool) error {
	i := slices.IndexFunc(c.Processes, func(p *Process) bool { return p.Name == proxyName })
	if i < 0 {
		return nil
	}
	proxy := c.Processes[i]
	c.Processes = slices.Delete(c.Processes, i, i+1)
	proxy.stop()
	program, args := filepath.Join(p.Upstream, proxyName), []string{"--cleanup", "--hostname-override", NodeName}
	if own {
		program, args = p.Knarr, []string{proxyName, "--cleanup"}
	}
	cleanup, err := start(c.Dir, proxyName+"-cleanup", program, nil, args...)
	if err != nil {
		return err
	}
	select {
	case <-cleanup.done:
	case <-ctx.Done():
		cleanup.stop()
		return ctx.Err()
	}
	if cleanup.err != nil {
		return fmt.Errorf("remove what the proxy wrote: %w", cleanup.Ended())
	}
	return nil
}

// Proxy is the proxy's process.
func (c *Cluster) Proxy() *Process {
	i := slices.IndexFunc(c.Processes, func(p *Process) bool { return p.Name == proxyName })
	if i < 0 {
		return nil
	}
	return c.Processes[i]
}
