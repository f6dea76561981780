package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"knarr/cluster"
	"knarr/internal/run"
)

// Down ends the cluster and removes every trace of it, whatever state a crash
// left it in.
func (c *Cluster) Down(ctx context.Context) error {
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	s, made, err := c.load()
	if err != nil {
		return err
	}
	if !made {
		_ = os.Remove(c.lockFile())
		_ = os.Remove(c.base) // only if empty
		return c.absent()
	}
	if err := c.stopGate(ctx); err != nil {
		return err
	}
	errs := make([]error, s.Nodes)
	var group run.Group
	for n := 1; n <= s.Nodes; n++ {
		group.Go("dev down", func() { errs[n-1] = run.Catch("dev down", func() error { return c.downNode(ctx, n) }) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := errors.Join(c.unplug(s.Nodes), c.removeFirewall(s), c.removeRun()); err != nil {
		return err
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return err
	}
	_ = os.Remove(c.lockFile())
	_ = os.Remove(c.base) // only if empty
	cluster.RemoveKubeletDir()
	return nil
}

// downNode takes a node down from within its namespaces, where its mounts and
// links are, or from here when they are gone.
func (c *Cluster) downNode(ctx context.Context, n int) error {
	if !c.hasSpaces(n) {
		if _, err := os.Stat(c.data(n)); err != nil {
			return nil // it never began
		}
		_, err := cluster.Down(ctx, c.data(n), true, false)
		if errors.Is(err, cluster.ErrNoCluster) {
			return nil
		}
		return err
	}
	if !cluster.Running(c.data(n)) { // then it must not begin to now
		if err := c.killInside(ctx, n, beginner); err != nil {
			return err
		}
	}
	if _, err := os.Stat(cluster.StateFile(c.data(n))); err == nil {
		cmd, err := c.command(n, "down", "--purge", "--leave=false")
		if err != nil {
			return err
		}
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := c.within(n, spaces, cmd.Start); err != nil {
			return fmt.Errorf("take %s down: %w", c.node(n), err)
		}
		stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
		defer stop()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("take %s down: %w: %s", c.node(n), err, strings.TrimSpace(out.String()))
		}
	}
	return c.killInside(ctx, n, func(int) bool { return true })
}

// beginner reports whether a process is a node's knarr, which may have been started
// just now and not have its directory yet.
func beginner(pid int) bool {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	args := strings.Split(string(line), "\x00")
	return err == nil && len(args) > 1 && (args[1] == "server" || args[1] == "agent")
}

// killInside ends those processes in a node's network namespace, which is nobody
// else's, that are meant.
func (c *Cluster) killInside(ctx context.Context, n int, meant func(pid int) bool) error {
	for {
		pids, err := c.inside(n)
		pids = slices.DeleteFunc(pids, func(pid int) bool { return !meant(pid) })
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("processes %v of %s do not end: %w", pids, c.node(n), ctx.Err())
		}
	}
}

// inside gives the processes in a node's network namespace.
func (c *Cluster) inside(n int) (pids []int, err error) {
	var want unix.Stat_t
	if err := unix.Stat(c.space(n, spaces[0]), &want); err != nil {
		return nil, fmt.Errorf("look at the namespace of %s: %w", c.node(n), err)
	}
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, link := range links {
		var have unix.Stat_t
		pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
		if unix.Stat(link, &have) == nil && have.Ino == want.Ino && have.Dev == want.Dev && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids, err
}
