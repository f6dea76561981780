package cluster

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
	"knarr/node/cni/network"
	"knarr/node/containerruntime"
	"knarr/node/kubeproxy"
)

// Each line is ok only when the kernel did the thing: here it refuses to write
// tables and links and to map users, though it has them all.
func TestCheckTriesTheThingItself(t *testing.T) {
	need.Root(t)
	without := func(capability uint, try func() error) func() error {
		return func() error {
			if err := drop(capability); err != nil {
				return err
			}
			return try()
		}
	}
	for _, n := range []requirement{
		{"services", spaces(unix.CLONE_NEWNET, without(unix.CAP_NET_ADMIN, kubeproxy.Check)), "nothing goes", true},
		{"bridges", spaces(unix.CLONE_NEWNET, without(unix.CAP_NET_ADMIN, network.CheckBridge)), "nothing goes", true},
		{"pods", spaces(unix.CLONE_NEWNET, without(unix.CAP_NET_ADMIN, network.CheckTable)), "nothing goes", true},
		{"users", spaces(unix.CLONE_NEWNS, without(unix.CAP_SETUID, containerruntime.CheckUserNamespaces)), "nothing goes", true},
	} {
		var b strings.Builder
		if check(&b, []requirement{n}) || !strings.HasPrefix(b.String(), "FAIL  "+n.what+": ") || !strings.Contains(b.String(), "operation not permitted: nothing goes\n") {
			t.Errorf("the kernel refuses, and check says %q", b.String())
		}
	}
	var b strings.Builder
	if !check(&b, []requirement{{"it", func() error { return errors.New("refused") }, "so", false}}) || b.String() != "note  it: refused: so\n" {
		t.Errorf("check says %q", b.String())
	}
	// Without a namespace to try it in, nothing is said of the thing, and another
	// user is told one cause, not what follows from it.
	for want, all := range map[string][]requirement{
		"FAIL  it: not tried: make namespaces: invalid argument\n":               {{"it", spaces(1, kubeproxy.Check), "so", true}},
		"FAIL  spaces: make namespaces: invalid argument: so\n":                  {{"spaces", spaces(1, nil), "so", true}},
		"FAIL  root: this is another user: so; the rest is only tried as root\n": {{"root", func() error { return errNotRoot }, "so", true}, {"it", spaces(1, nil), "so", true}},
	} {
		b.Reset()
		if check(&b, all) || b.String() != want {
			t.Errorf("check says %q, want %q", b.String(), want)
		}
	}
	// And this machine, which runs the tests of the rest, can all that is fatal.
	b.Reset()
	if !Check(&b) {
		t.Errorf("this machine lacks:\n%s", b.String())
	}
	t.Log("\n" + b.String())
}

// What never answers is named after a time, holds up nothing that does, and several of
// it take no longer than one.
func TestCheckWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		defer close(never)
		hang := func() error { <-never; return nil }
		began := time.Now()
		var b strings.Builder
		ok := check(&b, []requirement{
			{"root", func() error { return nil }, "so", true},
			{"one", hang, "no pods", true},
			{"slow", func() error { time.Sleep(answerTime - time.Second); return nil }, "so", true},
			{"two", hang, "less of it", false},
			{"bad", func() error { panic("it") }, "worse", false},
			{"three", func() error { return errors.New("refused") }, "so", false},
		})
		if took := time.Since(began); ok || took != answerTime {
			t.Errorf("check says %v after %v", ok, took)
		}
		want := "ok    root\nFAIL  one: " + errNoAnswer.Error() + ": no pods\nok    slow\nnote  two: " + errNoAnswer.Error() + ": less of it\nnote  bad: "
		if !strings.HasPrefix(b.String(), want) || !strings.HasSuffix(b.String(), ": worse\nnote  three: refused: so\n") {
			t.Errorf("check says\n%s", b.String())
		}
		// The first is tried alone.
		if check(io.Discard, []requirement{{"root", func() error { return errNotRoot }, "so", true}, {"it", func() error { t.Error("tried"); return nil }, "so", true}}) {
			t.Error("all is well for another user")
		}
	})
}

// drop takes a capability of the first 32 from the calling thread.
func drop(capability uint) error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return err
	}
	for _, set := range []*uint32{&d[0].Effective, &d[0].Permitted} {
		*set &^= 1 << capability
	}
	return unix.Capset(&h, &d[0])
}

// TestCheckSettings: each fault is a line of its own.
func TestCheckSettings(t *testing.T) {
	var b strings.Builder
	if !CheckSettings(&b, nil) || b.String() != "ok    settings\n" {
		t.Errorf("nothing is wrong: %q", b.String())
	}
	b.Reset()
	if CheckSettings(&b, errors.Join(errors.New("--a: x"), errors.New("--b: y"))) || b.String() != "FAIL  settings: --a: x\nFAIL  settings: --b: y\n" {
		t.Errorf("two are: %q", b.String())
	}
}
