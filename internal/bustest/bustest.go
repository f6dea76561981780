// Package bustest is a D-Bus for tests, apart from the machine's. It starts dbus-daemon,
// where that is installed.
package bustest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/godbus/dbus/v5"

	"knarr/internal/need"
)

const config = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>
`

// A Bus is one, which ends with its test.
type Bus struct {
	// Address is what clients connect to.
	Address string

	daemon, config string
	cmd            *exec.Cmd // nil: it does not run
}

// Start starts a bus.
func Start(t testing.TB) *Bus {
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
	b := &Bus{Address: "unix:path=" + filepath.Join(dir, "bus"), daemon: daemon, config: filepath.Join(dir, "config")}
	if err := os.WriteFile(b.config, fmt.Appendf(nil, config, b.Address), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.End)
	b.Begin(t)
	return b
}

// Begin starts it again after its End, under the address that it had.
func (b *Bus) Begin(t testing.TB) {
	t.Helper()
	b.cmd = exec.Command(b.daemon, "--config-file="+b.config, "--nofork", "--nopidfile", "--print-address=1")
	out, err := b.cmd.StdoutPipe()
	if err == nil {
		err = b.cmd.Start()
	}
	if err == nil {
		_, err = out.Read(make([]byte, 256)) // it has an address, so it listens
	}
	if err != nil {
		t.Fatal(err)
	}
}

// End ends it; its clients lose their connections.
func (b *Bus) End() {
	if b.cmd == nil {
		return
	}
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
	b.cmd = nil
}

// Serve connects under names, with objects by their path and interface; the connection ends
// with the test.
func (b *Bus) Serve(t testing.TB, names []string, objects []Object) *dbus.Conn {
	t.Helper()
	conn, err := dbus.Connect(b.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for _, o := range objects {
		if err := conn.Export(o.Methods, o.Path, o.Interface); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		if r, err := conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil || r != dbus.RequestNameReplyPrimaryOwner {
			t.Fatal(r, err)
		}
	}
	return conn
}

// An Object is what a connection serves.
type Object struct {
	Methods   any
	Path      dbus.ObjectPath
	Interface string
}
