// Package logindtest is a logind for tests, on a D-Bus of its own. It counts who wants
// shutdowns to wait.
package logindtest

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"knarr/internal/bustest"
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

// Start starts the bus and a logind that waits for so long at most.
func Start(t testing.TB, delay time.Duration) *Logind {
	t.Helper()
	bus := bustest.Start(t)
	l := &Logind{Address: bus.Address, delay: delay}
	l.conn = bus.Serve(t, []string{login, "org.freedesktop.systemd1"}, []bustest.Object{
		{Methods: manager{l}, Path: loginPath, Interface: login + ".Manager"},
		{Methods: properties{l}, Path: loginPath, Interface: "org.freedesktop.DBus.Properties"},
		{Methods: systemd{l}, Path: "/org/freedesktop/systemd1", Interface: "org.freedesktop.systemd1.Manager"},
	})
	t.Cleanup(func() {
		for _, p := range l.pipes {
			_, _ = p[0].Close(), p[1].Close()
		}
	})
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
