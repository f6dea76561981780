// Package logindtest is a logind for tests, on a D-Bus of its own. It starts dbus-daemon,
// where that is installed, and counts who wants shutdowns to wait.
package logindtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"knarr/internal/need"
)

const (
	login     = "org.freedesktop.login1"
	loginPath = dbus.ObjectPath("/org/freedesktop/login1")
)

// Logind waits for those who have inhibited shutdowns.
type Logind struct {
	// Address is that of the bus.
	Address string

	conn  *dbus.Conn
	mu    sync.Mutex
	delay time.Duration
	pipes [][2]*os.File // of those that were given a lock
}

const config = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>
`

// Start starts the bus and a logind that waits for so long at most.
func Start(t testing.TB, delay time.Duration) *Logind {
	t.Helper()
	daemon, err := exec.LookPath("dbus-daemon")
	if err != nil {
		need.Skip(t, "dbus-daemon is not installed: apt-get install dbus-daemon")
	}
	dir, err := os.MkdirTemp("", "bus") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l := &Logind{Address: "unix:path=" + filepath.Join(dir, "bus"), delay: delay}
	file := filepath.Join(dir, "config")
	if err := os.WriteFile(file, fmt.Appendf(nil, config, l.Address), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(daemon, "--config-file="+file, "--nofork", "--nopidfile", "--print-address=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 256)); err != nil { // it has an address, so it listens
		t.Fatal(err)
	}
	if l.conn, err = dbus.Connect(l.Address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.conn.Close()
		for _, p := range l.pipes {
			_, _ = p[0].Close(), p[1].Close()
		}
	})
	for _, e := range []struct {
		object any
		path   dbus.ObjectPath
		name   string
	}{
		{manager{l}, loginPath, login + ".Manager"}, {properties{l}, loginPath, "org.freedesktop.DBus.Properties"},
		{systemd{l}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"},
	} {
		if err := l.conn.Export(e.object, e.path, e.name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{login, "org.freedesktop.systemd1"} {
		if r, err := l.conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil || r != dbus.RequestNameReplyPrimaryOwner {
			t.Fatal(r, err)
		}
	}
	return l
}

// Prepare says that a shutdown begins, or that it was called off.
func (l *Logind) Prepare(t testing.TB, begins bool) {
	t.Helper()
	if err := l.conn.Emit(loginPath, login+".Manager.PrepareForShutdown", begins); err != nil {
		t.Fatal(err)
	}
}

// Locks is how many want shutdowns to wait: who was given a pipe's end and holds it, in
// this process, beside the two ends that are kept here.
func (l *Logind) Locks() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := map[string]int{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			open[to]++
		}
	}
	for _, p := range l.pipes {
		if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", p[1].Fd())); err == nil && open[to] > 2 {
			n++
		}
	}
	return n
}

// WaitLocks waits until there are so many.
func (l *Logind) WaitLocks(t testing.TB, n int) {
	t.Helper()
	timeout := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for l.Locks() != n {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%d locks, not %d", l.Locks(), n)
		}
	}
}

type manager struct{ l *Logind }

// Inhibit gives a descriptor; the shutdown waits until it is closed.
func (m manager) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	if what != "shutdown" || mode != "delay" {
		return 0, dbus.MakeFailedError(fmt.Errorf("%s, %s", what, mode))
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	m.l.pipes = append(m.l.pipes, [2]*os.File{r, w})
	return dbus.UnixFD(w.Fd()), nil
}

type properties struct{ l *Logind }

// Get reads how long it waits.
func (p properties) Get(_, name string) (dbus.Variant, *dbus.Error) {
	if name != "InhibitDelayMaxUSec" {
		return dbus.Variant{}, dbus.MakeFailedError(fmt.Errorf("no property %s", name))
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	return dbus.MakeVariant(uint64(p.l.delay / time.Microsecond)), nil
}

type systemd struct{ l *Logind }

// KillUnit lets logind read its configuration again: from then on it waits for long.
func (s systemd) KillUnit(unit, _ string, _ int32) *dbus.Error {
	if unit != "systemd-logind.service" {
		return dbus.MakeFailedError(fmt.Errorf("no unit %s", unit))
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.delay = time.Hour
	return nil
}
