package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"knarr/internal/failover"
	"knarr/internal/run"
)

// A cluster of several servers has a gate: a process of this host that listens
// on the bridge's own address, and leads to whichever servers answer, so that
// one kubeconfig serves while servers come and go.

func (c *Cluster) gateLock() string { return filepath.Join(c.dir, "gate.lock") }
func (c *Cluster) gateLog() string  { return filepath.Join(c.dir, "gate.log") }

// apiPort is where the servers listen, and the gate.
const apiPort = 6443

// serverAddresses are where the servers listen.
func (s state) serverAddresses() (all []string) {
	for n := 1; n <= s.Servers; n++ {
		all = append(all, netip.AddrPortFrom(s.address(n), apiPort).String())
	}
	return all
}

// startGate starts the gate unless it is there. It outlives this command.
func (c *Cluster) startGate(s state) error {
	if s.Servers < 2 || gatekeeper(c.gateLock()) != 0 {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(c.gateLog(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(self, "dev", "gate", "--dir", c.base, "--name", c.name)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the gate: %w", err)
	}
	run.Go("gate: wait", func() { _ = cmd.Wait() })
	return nil
}

// gatekeeper is the process that holds the gate's lock, 0 without.
func gatekeeper(file string) int {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		return 0
	}
	b, _ := io.ReadAll(io.LimitReader(f, 20))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

// stopGate ends the gate, if it is there.
func (c *Cluster) stopGate(ctx context.Context) error {
	for {
		pid := gatekeeper(c.gateLock())
		if pid == 0 {
			return nil
		}
		// The lock is held, so the process that wrote its id there is alive.
		_ = syscall.Kill(pid, syscall.SIGKILL)
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the gate, process %d, does not end: %w", pid, ctx.Err())
		}
	}
}

// Gate is the gate's process.
func (c *Cluster) Gate(ctx context.Context) error {
	s, made, err := c.load()
	if err != nil {
		return err
	}
	if !made {
		return c.absent()
	}
	lock, err := os.OpenFile(c.gateLock(), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil // there is one
	}
	if _, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return err
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(s.address(0), apiPort).String())
	if err != nil {
		return fmt.Errorf("open the gate: %w", err)
	}
	return pass(ctx, l, s.serverAddresses())
}

// pass leads connections to the servers in turn, until ctx ends.
func pass(ctx context.Context, l net.Listener, servers []string) error {
	var ways []*failover.Dialer
	for i := range servers {
		ways = append(ways, failover.New(append(append([]string{}, servers[i:]...), servers[:i]...)...))
	}
	ctx, cancel := context.WithCancel(ctx)
	var group run.Group
	defer group.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var turn atomic.Uint32
	for {
		client, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		way := ways[int(turn.Add(1))%len(ways)]
		group.Go("gate: connection", func() {
			defer client.Close()
			defer context.AfterFunc(ctx, func() { client.Close() })()
			lead(ctx, client, way, len(servers))
		})
	}
}

// helloTime is how long a client may take to say something.
const helloTime = 30 * time.Second

// lead connects a client with a server. What the client says first is said to
// the next server when the one before does not answer it: it is the beginning of
// a handshake, which did nothing yet.
func lead(ctx context.Context, client net.Conn, way *failover.Dialer, tries int) {
	hello, answer := make([]byte, 16<<10), make([]byte, 16<<10)
	_ = client.SetReadDeadline(time.Now().Add(helloTime))
	n, err := client.Read(hello)
	if err != nil {
		return
	}
	_ = client.SetReadDeadline(time.Time{})
	for range tries {
		server, err := way.DialContext(ctx, "tcp", "")
		if err != nil {
			return
		}
		m := 0
		if _, err = server.Write(hello[:n]); err == nil {
			m, err = server.Read(answer)
		}
		if err != nil {
			server.Close()
			continue
		}
		if _, err := client.Write(answer[:m]); err == nil {
			splice(ctx, client, server)
		}
		server.Close()
		return
	}
}

// splice copies both ways until both are done, or one breaks.
func splice(ctx context.Context, a, b net.Conn) {
	defer context.AfterFunc(ctx, func() { b.Close() })()
	back := make(chan struct{})
	run.Go("gate: copy", func() {
		defer close(back)
		_, _ = io.Copy(a, b)
		a.Close()
	})
	_, _ = io.Copy(b, a)
	b.Close()
	<-back
}
