package iscsi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A fake is iscsiadm and the kernel of a node: sessions appear in its /sys as the kernel
// has them, and disks once they are looked for.
type fake struct {
	*testing.T
	sys   string
	calls []string
	fail  string // of iscsiadm's arguments, what fails
	hosts map[string]string
}

func newFake(t *testing.T) (*fake, *Host) {
	f := &fake{T: t, sys: t.TempDir(), hosts: map[string]string{}}
	return f, &Host{Run: f.run, Sys: f.sys, Appear: 10 * time.Second, Join: 10 * time.Second}
}

func (f *fake) write(path, text string) {
	f.Helper()
	path = filepath.Join(f.sys, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		f.Fatal(err)
	}
}

func after(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

func (f *fake) run(_ context.Context, program string, args ...string) (string, int, error) {
	call := program + " " + strings.Join(args, " ")
	f.calls = append(f.calls, call)
	if f.fail != "" && strings.Contains(call, f.fail) {
		return "no such thing", 4, errors.New("exit status 4")
	}
	key := after(args, "-I") + "@" + after(args, "-p")
	switch {
	case strings.Contains(call, "iface -I default -o show"):
		return "# BEGIN RECORD\niface.iscsi_ifacename = default\niface.transport_name = tcp\niface.mtu = 0\niface.initiatorname = <empty>\n", 0, nil
	case strings.Contains(call, "-o show"):
		return "", noObjects, errors.New("exit status 21")
	case slices.Contains(args, "--login") && f.hosts[key] != "":
		return "", sessionExists, errors.New("exit status 15")
	case slices.Contains(args, "--login"):
		n := len(f.hosts)
		host, session := fmt.Sprintf("host%d", n), fmt.Sprintf("session%d", n)
		f.hosts[key] = session
		f.write("class/iscsi_session/"+session+"/targetname", after(args, "-T")+"\n")
		f.write("class/iscsi_session/"+session+"/ifacename", after(args, "-I")+"\n")
		address, port, err := net.SplitHostPort(after(args, "-p"))
		if err != nil {
			f.Fatal(err)
		}
		f.write(fmt.Sprintf("class/iscsi_connection/connection%d:0/persistent_address", n), address+"\n")
		f.write(fmt.Sprintf("class/iscsi_connection/connection%d:0/persistent_port", n), port+"\n")
		f.write("class/scsi_host/"+host+"/scan", "")
		for lun := range 2 {
			name := fmt.Sprintf("sd%c%d", 'a'+n, lun)
			f.write(fmt.Sprintf("devices/%s/%s/target%d:0:0/%d:0:0:%d/block/%s/x", host, session, n, n, lun, name), "")
			f.write("block/"+name+"/device/delete", "")
		}
		if err := os.Symlink(filepath.Join(f.sys, "devices", host, session), filepath.Join(f.sys, "class/iscsi_session", session, "device")); err != nil {
			f.Fatal(err)
		}
	case slices.Contains(args, "--logout"):
		if err := os.RemoveAll(filepath.Join(f.sys, "class/iscsi_session", f.hosts[key])); err != nil {
			f.Fatal(err)
		}
		delete(f.hosts, key)
	}
	return "", 0, nil
}

func (f *fake) file(path string) string { return read(filepath.Join(f.sys, path)) }

// asked says whether one of the calls begins so.
func (f *fake) asked(call string) bool {
	return slices.ContainsFunc(f.calls, func(c string) bool { return strings.HasPrefix(c, call) })
}

const iqn = "iqn.2026-01.example:x"

func TestDisksOfOneTarget(t *testing.T) {
	f, h := newFake(t)
	one := Disk{Portals: []string{"192.0.2.1:3260"}, IQN: iqn, Interface: "default", Name: "one"}
	two := one
	two.LUN, two.Name = 1, "two"
	for _, c := range []struct {
		d    *Disk
		want string
	}{{&one, "/dev/sda0"}, {&two, "/dev/sda1"}} {
		if got, err := h.Attach(t.Context(), c.d); err != nil || got != c.want {
			t.Fatalf("%s: %s %v", c.d.Name, got, err)
		}
	}
	if got := f.file("class/scsi_host/host0/scan"); got != "0 0 1" {
		t.Errorf("the kernel looked for %q", got)
	}
	if err := h.Detach(t.Context(), &one, []Disk{two}); err != nil {
		t.Fatal(err)
	}
	if f.file("block/sda0/device/delete") != "1" || f.file("block/sda1/device/delete") != "" || len(f.hosts) != 1 {
		t.Error("the other disk of the target was taken too, or this one was not")
	}
	if err := h.Detach(t.Context(), &two, []Disk{two}); err != nil || f.file("block/sda1/device/delete") != "" {
		t.Errorf("another pod's disk was taken: %v", err)
	}
	if err := h.Detach(t.Context(), &two, nil); err != nil || len(f.hosts) != 0 || !f.asked("iscsiadm -m node -p 192.0.2.1:3260 -T "+iqn+" -I default -o delete") {
		t.Errorf("the session is left: %v, %q", err, f.calls)
	}
	before := len(f.calls)
	if err := h.Detach(t.Context(), &two, nil); err != nil || len(f.calls) != before {
		t.Errorf("what is not there was ended: %v", err)
	}
}

// A target that another tenant has under the same name is another one.
func TestTargetsOfOneName(t *testing.T) {
	f, h := newFake(t)
	mine := Disk{Portals: []string{"192.0.2.1:3260"}, IQN: iqn, Interface: "default", Name: "mine"}
	other := Disk{Portals: []string{"192.0.2.2:3260"}, IQN: iqn, Interface: "default", Name: "other"}
	for _, c := range []struct {
		d    *Disk
		want string
	}{{&mine, "/dev/sda0"}, {&other, "/dev/sdb0"}} {
		if got, err := h.Attach(t.Context(), c.d); err != nil || got != c.want {
			t.Errorf("%s: %s %v, want %s", c.d.Name, got, err, c.want)
		}
	}
	if err := h.Detach(t.Context(), &other, []Disk{mine}); err != nil || f.file("block/sdb0/device/delete") != "1" || f.file("block/sda0/device/delete") != "" || len(f.hosts) != 1 {
		t.Errorf("%v; sessions left: %v", err, f.hosts)
	}
}

func TestOwnInitiator(t *testing.T) {
	f, h := newFake(t)
	d := Disk{Portals: []string{"192.0.2.1:3260"}, IQN: iqn, Interface: "default", Name: "v", Initiator: "iqn.2026-01.example:node"}
	if _, err := h.Attach(t.Context(), &d); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"-o new", "-o update -n iface.transport_name -v tcp", "-o update -n iface.initiatorname -v iqn.2026-01.example:node"} {
		if !f.asked("iscsiadm -m iface -I 192.0.2.1:3260:v " + want) {
			t.Errorf("not asked: %s; %q", want, f.calls)
		}
	}
	if err := h.Detach(t.Context(), &d, nil); err != nil || !f.asked("iscsiadm -m iface -I 192.0.2.1:3260:v -o delete") {
		t.Errorf("its interface is left: %v", err)
	}
	f, h = newFake(t)
	f.fail = "--login"
	if _, err := h.Attach(t.Context(), &d); err == nil {
		t.Error("attached without a session")
	}
	if err := h.Detach(t.Context(), &d, nil); err != nil || !f.asked("iscsiadm -m iface -I 192.0.2.1:3260:v -o delete") {
		t.Errorf("the interface of a disk that was never attached is left: %v", err)
	}
}

func TestSeveralWays(t *testing.T) {
	f, h := newFake(t)
	d := Disk{Portals: []string{"192.0.2.1:3260", "[2001:db8::1]:3260"}, IQN: iqn, Interface: "default", Name: "v"}
	f.write("block/sdb0/holders/dm-3", "")
	f.write("block/dm-3/dm/uuid", "mpath-36001405\n")
	if got, err := h.Attach(t.Context(), &d); err != nil || got != "/dev/dm-3" {
		t.Fatalf("%s %v", got, err)
	}
	if err := h.Detach(t.Context(), &d, nil); err != nil || !f.asked("multipath -f /dev/dm-3") || len(f.hosts) != 0 {
		t.Errorf("%v %q", err, f.calls)
	}
}

// Names and passwords reach iscsiadm's records, and no error.
func TestCHAP(t *testing.T) {
	f, h := newFake(t)
	d := Disk{Portals: []string{"192.0.2.1:3260"}, IQN: iqn, Interface: "default", Name: "v", SessionCHAP: true, DiscoveryCHAP: true, Secret: map[string]string{
		"node.session.auth.password": "hidden", "discovery.sendtargets.auth.username": "user"}}
	if _, err := h.Attach(t.Context(), &d); err != nil || !f.asked("iscsiadm -m node -p 192.0.2.1:3260 -T "+iqn+" -I default -o update -n node.session.auth.password -v hidden") ||
		!f.asked("iscsiadm -m discoverydb -t sendtargets -p 192.0.2.1:3260 -I default -o update -n discovery.sendtargets.auth.username -v user") {
		t.Errorf("%v %q", err, f.calls)
	}
	f, h = newFake(t)
	f.fail = "-v hidden"
	if _, err := h.Attach(t.Context(), &d); err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), `failed to update key "node.session.auth.password"`) {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	good := Disk{Portals: []string{"192.0.2.1:3260"}, IQN: iqn, Interface: "default", Name: "v"}
	for name, edit := range map[string]func(*Disk){
		"no portal":            func(d *Disk) { d.Portals = nil },
		"a flag for a portal":  func(d *Disk) { d.Portals = []string{"--logoutall=all"} },
		"a path for a portal":  func(d *Disk) { d.Portals = []string{"x/../../sda:1"} },
		"a pattern for a name": func(d *Disk) { d.IQN = "iqn.2026-01.example:*" },
		"an interface's path":  func(d *Disk) { d.Interface = "../x" },
		"an initiator's flag":  func(d *Disk) { d.Initiator = "-x" },
	} {
		f, h := newFake(t)
		d := good
		edit(&d)
		if _, err := h.Attach(t.Context(), &d); err == nil || len(f.calls) > 0 {
			t.Errorf("%s: %v, %q", name, err, f.calls)
		}
		if err := h.Detach(t.Context(), &d, nil); err != nil || len(f.calls) > 0 {
			t.Errorf("%s: cannot go: %v", name, err)
		}
	}
	f, h := newFake(t)
	f.fail = "--discover"
	if _, err := h.Attach(t.Context(), &good); err == nil || !f.asked("iscsiadm -m discoverydb -t sendtargets -p 192.0.2.1:3260 -I default -o delete") {
		t.Errorf("%v %q", err, f.calls)
	}
}

func TestPortal(t *testing.T) {
	for in, want := range map[string]string{"192.0.2.1": "192.0.2.1:3260", "host:1": "host:1", "2001:db8::1": "[2001:db8::1]:3260", "[2001:db8::1]": "[2001:db8::1]:3260", "[2001:db8::1]:5": "[2001:db8::1]:5"} {
		if got := Portal(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}
