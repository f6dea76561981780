// Package shutdown delays the machine's shutdown until pods have ended. It asks logind
// over D-Bus to be waited for, writes how long that may take below /etc/systemd, and
// reads when a shutdown begins and when it is called off.
package shutdown

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const (
	login        = "org.freedesktop.login1"
	loginPath    = dbus.ObjectPath("/org/freedesktop/login1")
	loginManager = login + ".Manager"
	signal       = "PrepareForShutdown"
	// callTime bounds a call over the bus.
	callTime = 10 * time.Second
	// reloadTime is how long logind may take to read its configuration again.
	reloadTime = 5 * time.Second
	// Override is the file that lets logind wait longer.
	Override = "99-knarr-kubelet.conf"
	// logindDir is logind's directory of configuration.
	logindDir = "/etc/systemd/logind.conf.d"
)

// Config is what a Run works with.
type Config struct {
	// Address is that of the bus. Default: the system's.
	Address string
	// Dir is logind's directory of configuration. Default /etc/systemd/logind.conf.d.
	Dir string
	// Owner is the directory of the kubelet, which the file names: others of this machine
	// leave it.
	Owner string
	// Delay is how long pods get in all.
	Delay time.Duration
	// Begin is called when a shutdown begins; it goes on when Begin returns. Cancelled is
	// called when a shutdown was called off.
	Begin, Cancelled func(context.Context)
}

// Run delays shutdowns until ctx ends.
func Run(ctx context.Context, c Config) error {
	if c.Dir == "" {
		c.Dir = logindDir
	}
	conn, err := c.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to D-Bus: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	undo, err := c.allowDelay(ctx, conn)
	if err != nil {
		return err
	}
	defer undo()
	// Signals first, so that none is lost between.
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(loginManager), dbus.WithMatchMember(signal), dbus.WithMatchObjectPath(loginPath)); err != nil {
		return fmt.Errorf("watch for shutdowns: %w", err)
	}
	lock, err := inhibit(ctx, conn)
	if err != nil {
		return err
	}
	defer func() { release(lock) }()
	for {
		var s *dbus.Signal
		var ok bool
		select {
		case <-ctx.Done():
			return nil
		case s, ok = <-signals:
		}
		if !ok {
			if ctx.Err() != nil {
				return nil
			}
			return errors.New("the connection to D-Bus has ended")
		}
		if s.Name != loginManager+"."+signal || len(s.Body) == 0 {
			continue
		}
		switch begins, isBool := s.Body[0].(bool); {
		case !isBool:
		case begins:
			c.Begin(ctx)
			release(lock)
			lock = -1
		default:
			c.Cancelled(ctx)
			release(lock)
			if lock, err = inhibit(ctx, conn); err != nil {
				return err
			}
		}
	}
}

func (c Config) connect(ctx context.Context) (*dbus.Conn, error) {
	if c.Address == "" {
		return dbus.ConnectSystemBus(dbus.WithContext(ctx))
	}
	return dbus.Connect(c.Address, dbus.WithContext(ctx))
}

func call(ctx context.Context, o dbus.BusObject, method string, args ...any) *dbus.Call {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return o.CallWithContext(ctx, method, 0, args...)
}

// inhibit makes logind wait until what it returns is closed.
func inhibit(ctx context.Context, conn *dbus.Conn) (int, error) {
	var fd dbus.UnixFD
	err := call(ctx, conn.Object(login, loginPath), loginManager+".Inhibit", "shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay").Store(&fd)
	if err != nil {
		return -1, fmt.Errorf("failed creating systemd inhibitor: %w", err)
	}
	unix.CloseOnExec(int(fd))
	return int(fd), nil
}

func release(lock int) {
	if lock >= 0 {
		_ = unix.Close(lock)
	}
}

// delay is how long logind waits.
func delay(ctx context.Context, conn *dbus.Conn) (time.Duration, error) {
	var v dbus.Variant
	if err := call(ctx, conn.Object(login, loginPath), "org.freedesktop.DBus.Properties.Get", loginManager, "InhibitDelayMaxUSec").Store(&v); err != nil {
		return 0, fmt.Errorf("failed reading InhibitDelayMaxUSec property from logind: %w", err)
	}
	usec, ok := v.Value().(uint64)
	if !ok {
		return 0, errors.New("InhibitDelayMaxUSec from logind is not a uint64 as expected")
	}
	return time.Duration(min(usec, uint64(1<<53))) * time.Microsecond, nil
}

// header begins the file of a kubelet.
func header(owner string) string {
	return fmt.Sprintf("# Time for pods to end before a shutdown, of %s.\n", owner)
}

// Forget removes what a Run of this owner has left that was killed. Dir is as in Config.
func Forget(dir, owner string) error {
	path := filepath.Join(cmp.Or(dir, logindDir), Override)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !strings.HasPrefix(string(text), header(owner)) {
		return err
	}
	return os.Remove(path)
}

// allowDelay lets logind wait for as long as pods get, and returns what undoes that.
func (c Config) allowDelay(ctx context.Context, conn *dbus.Conn) (undo func(), err error) {
	path := filepath.Join(c.Dir, Override)
	undo = func() { _ = os.Remove(path) }
	is, err := delay(ctx, conn)
	if err != nil {
		return nil, err
	}
	if is >= c.Delay {
		return undo, nil // by an earlier run's file, or anyway
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("failed creating %v directory: %w", c.Dir, err)
	}
	text := fmt.Sprintf("%s[Login]\nInhibitDelayMaxSec=%.0f\n", header(c.Owner), c.Delay.Seconds())
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // logind reads it
		return nil, fmt.Errorf("failed writing logind shutdown inhibit override file %v: %w", path, err)
	}
	systemd := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	if err := call(ctx, systemd, "org.freedesktop.systemd1.Manager.KillUnit", "systemd-logind.service", "all", int32(unix.SIGHUP)).Err; err != nil {
		return nil, fmt.Errorf("unable to reload logind conf: %w", err)
	}
	for began, wait := time.Now(), 50*time.Millisecond; ; wait *= 2 {
		if is, err = delay(ctx, conn); err != nil {
			return nil, err
		}
		if is >= c.Delay {
			return undo, nil
		}
		if time.Since(began) > reloadTime {
			return nil, fmt.Errorf("node shutdown manager was timed out waiting for logind InhibitDelayMaxSec to update to %v (ShutdownGracePeriod), current value is %v", c.Delay, is)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}
