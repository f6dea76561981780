package shim

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"knarr/internal/need"
)

// TestRelayed: those have a relay whom a security module may keep from named pipes.
func TestRelayed(t *testing.T) {
	for name, test := range map[string]struct {
		process specs.Process
		want    bool
	}{
		"nothing":              {specs.Process{}, false},
		"SELinux":              {specs.Process{SelinuxLabel: "system_u:system_r:container_t:s0:c1,c2"}, true},
		"unconfined":           {specs.Process{ApparmorProfile: "unconfined"}, false},
		"containerd's profile": {specs.Process{ApparmorProfile: "cri-containerd.apparmor.d"}, false},
		"a profile":            {specs.Process{ApparmorProfile: "k8s-apparmor-example-deny-write"}, true},
		"both":                 {specs.Process{SelinuxLabel: "system_u:system_r:spc_t:s0", ApparmorProfile: "unconfined"}, true},
	} {
		if got := relayed(&test.process); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// soon is until when what is waited for must have happened.
func soon() time.Time { return time.Now().Add(20 * time.Second) }

// named makes containerd's pipes; those that are asked for.
func named(t *testing.T, names ...string) (s stdio) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		*map[string]*string{"stdin": &s.Stdin, "stdout": &s.Stdout, "stderr": &s.Stderr}[name] = path
	}
	s.Relayed = true
	return s
}

// end opens containerd's end of a pipe, whose other end is held.
func end(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.SetDeadline(soon()); err != nil {
		t.Fatal(err)
	}
	return f
}

// confined starts a shell in place of a process of a container.
func confined(t *testing.T, s stdio, script string) (*process, *exec.Cmd) {
	t.Helper()
	p, child := newProcess("", s), &libcontainer.Process{}
	own, err := p.connect(child, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	inTime, cancel := context.WithDeadline(t.Context(), soon())
	t.Cleanup(cancel)
	c := exec.CommandContext(inTime, "/bin/sh", "-c", script)
	c.Stdin, c.Stdout, c.Stderr = child.Stdin, child.Stdout, child.Stderr
	err = c.Start()
	own.close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	p.pid = c.Process.Pid
	return p, c
}

func readAll(t *testing.T, f *os.File) string {
	t.Helper()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// most is more than fits into two pipes, and little into two that nobody reads meanwhile.
const most, little = 300_000, 80_000

// TestRelayOutput: a process has pipes without a name, which it can open again; all that it
// writes is read, also what was left when it ended, and then there is an end.
func TestRelayOutput(t *testing.T) {
	s := named(t, "stdout", "stderr")
	p, c := confined(t, s, `readlink /proc/self/fd/1; echo wrong >/dev/stderr; head -c 300000 /dev/zero`)
	out, wrong := end(t, s.Stdout, os.O_RDONLY), end(t, s.Stderr, os.O_RDONLY)
	text := readAll(t, out)
	link, rest, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(link, "pipe:[") || rest != strings.Repeat("\x00", most) {
		t.Errorf("%d bytes of output, to %q", len(rest), link)
	}
	if got := readAll(t, wrong); got != "wrong\n" {
		t.Errorf("errors are %q", got)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	p.release()

	s = named(t, "stdout")
	p, c = confined(t, s, `head -c 80000 /dev/zero`)
	out = end(t, s.Stdout, os.O_RDONLY)
	if err := c.Wait(); err != nil { // it is in the pipes
		t.Error(err)
	}
	read := make(chan string)
	go func() { read <- readAll(t, out) }()
	p.release()
	if got := <-read; len(got) != little {
		t.Errorf("%d bytes of what was left", len(got))
	}
}

// TestRelayFull: an output is over with what fills containerd's pipe to its last byte.
func TestRelayFull(t *testing.T) {
	s := named(t, "stdout")
	p, c := confined(t, s, `head -c 65536 /dev/zero`)
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	out := end(t, s.Stdout, os.O_RDONLY)
	select {
	case <-p.held.relay.streams[0].over:
	case <-time.After(time.Until(soon())):
		t.Error("it waits for room")
	}
	if got := readAll(t, out); len(got) != 65536 {
		t.Errorf("%d bytes of output", len(got))
	}
	p.release()
}

// TestRelayHeld: another process with the pipes does not keep whoever deletes the one that they
// were for, nor does containerd that does not read.
func TestRelayHeld(t *testing.T) {
	s := named(t, "stdout")
	p, _ := confined(t, s, `exec sleep 1000`)
	late, cancel := context.WithCancel(t.Context())
	cancel()
	out := end(t, s.Stdout, os.O_RDONLY)
	p.held.relay.close(late)
	if got := readAll(t, out); got != "" {
		t.Errorf("%q was read", got)
	}
	s = named(t, "stdout")
	p, c := confined(t, s, `head -c 80000 /dev/zero`)
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	p.held.relay.close(late)
}

// TestRelayInput: a process reads all that containerd writes, one after the other, and sees the
// end once containerd has closed its end and does not want to go on.
func TestRelayInput(t *testing.T) {
	s := named(t, "stdin", "stdout")
	p, c := confined(t, s, `wc -c`)
	out := end(t, s.Stdout, os.O_RDONLY)
	for range 2 { // a containerd, and the one after it
		in := end(t, s.Stdin, os.O_WRONLY)
		if _, err := in.Write(make([]byte, most)); err != nil {
			t.Fatal(err)
		}
		in.Close()
	}
	in := end(t, s.Stdin, os.O_WRONLY)
	p.closeStdin()
	p.closeStdin()
	if _, err := in.Write([]byte("end")); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if got := strings.TrimSpace(readAll(t, out)); got != "600003" {
		t.Errorf("%s bytes were read", got)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	p.release()

	s = named(t, "stdout")
	p, _ = confined(t, s, `readlink /proc/self/fd/0; wc -c`)
	if got := strings.Fields(readAll(t, end(t, s.Stdout, os.O_RDONLY))); len(got) != 2 || got[0] != "/dev/null" || got[1] != "0" {
		t.Errorf("without an input: %q", got)
	}
	p.release()
}

// next has another program take the place of the one with a process, as far as that is seen by
// the process and by containerd.
func next(t *testing.T, p *process) *process {
	t.Helper()
	c := &task{key: key{"k8s.io", "c"}, bundle: t.TempDir(), init: p}
	s := &Service{tasks: map[key]*task{c.key: c}}
	words := s.handOver()
	for _, word := range words {
		if _, _, ok := strings.Cut(word, "="); !ok || len(word) > 20 {
			t.Errorf("handed over: %q", word)
		}
	}
	if err := c.save(nil); err != nil {
		t.Fatal(err)
	}
	for _, s := range p.held.relay.streams {
		s.close()
	}
	t.Setenv(inheritedEnv, strings.Join(words, ","))
	left := inherited()
	old, err := readSaved(c.bundle)
	if err != nil {
		t.Fatal(err)
	}
	c.init = newProcess("", old.IO)
	c.init.pid = old.Pid
	c.goOn(left)
	if len(left) > 0 || c.init.held.relay == nil {
		t.Fatalf("not taken: %v of %q", left, words)
	}
	return c.init
}

// TestRelayHandedOver: neither a process nor containerd sees that another program takes this
// one's place.
func TestRelayHandedOver(t *testing.T) {
	s := named(t, "stdin", "stdout")
	p, c := confined(t, s, `head -c 80000 /dev/zero; exec wc -c`)
	out, in := end(t, s.Stdout, os.O_RDONLY), end(t, s.Stdin, os.O_WRONLY)
	for range 2 {
		if _, err := in.Write([]byte("word")); err != nil {
			t.Fatal(err)
		}
		p = next(t, p)
	}
	p.closeStdin()
	p = next(t, p)
	if got := len(p.held.relay.streams); got != 2 {
		t.Errorf("%d streams", got)
	}
	in.Close()
	if got := readAll(t, out); strings.Trim(got, "\x00") != "8\n" || len(got) != little+2 {
		t.Errorf("%d bytes, with the end %q", len(got), strings.Trim(got, "\x00"))
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	for _, s := range p.held.relay.streams {
		<-s.over
	}
	c2 := &task{init: p}
	if words := (&Service{tasks: map[key]*task{c2.key: c2}}).handOver(); len(words) != 0 {
		t.Errorf("what is over is handed over: %q", words)
	}
	p.release()
}

// TestRelayNotHandedOver: what was saved by versions before is no relay; where the program
// before was killed a relay is over, but where it was replaced and the process had closed all.
func TestRelayNotHandedOver(t *testing.T) {
	c := &task{bundle: t.TempDir()}
	if err := os.WriteFile(filepath.Join(c.bundle, savedName), []byte(`{"IO":{"Stdout":"/x","Terminal":false}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if old, err := readSaved(c.bundle); err != nil || old.IO != (stdio{Stdout: "/x"}) {
		t.Errorf("%+v, %v", old, err)
	}
	p := newProcess("", stdio{Stdout: "/x", Relayed: true})
	if err := p.inheritRelay(nil); err == nil {
		t.Error("nothing is missed of what was killed")
	}
	if err := p.inheritRelay(leftFiles{}); err != nil {
		t.Error(err)
	}
	if err := newProcess("", stdio{Relayed: true}).inheritRelay(nil); err != nil {
		t.Errorf("a sandbox: %v", err)
	}
	left := leftFiles{}
	for _, name := range []string{"", "0/1"} {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		left[name] = []int{fd}
		defer func() {
			if unix.Close(fd) == nil {
				t.Errorf("what is left by the name %q stays open", name)
			}
		}()
	}
	if err := p.inheritRelay(left); err == nil {
		t.Error("a part is taken")
	}
	left.close()
}

// opened is how many descriptors and goroutines there are.
func opened(t *testing.T) [2]int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return [2]int{len(fds), runtime.NumGoroutine()}
}

// TestRelayLeavesNothing: neither a process that ends, nor one that cannot be started, nor one
// that is given up leaves a descriptor or a goroutine.
func TestRelayLeavesNothing(t *testing.T) {
	all := []string{"stdin", "stdout", "stderr"}
	ends := func(t *testing.T) {
		p, c := confined(t, named(t, all...), `echo here`)
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
		p.release()
	}
	ends(t) // what the runtime opens once
	for name, run := range map[string]func(t *testing.T){
		"ends": ends,
		"handed over": func(t *testing.T) {
			p, c := confined(t, named(t, all...), `read line; exit 0`)
			p = next(t, p)
			p.closeStdin()
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
			p.release()
		},
		"no pipe": func(t *testing.T) {
			s := named(t, all...)
			s.Stderr = "/dev/null"
			if _, err := newProcess("", s).connect(&libcontainer.Process{}, 0, 0); err == nil {
				t.Error("another file is taken for a pipe")
			}
		},
		"no program": func(t *testing.T) {
			p, child := newProcess("", named(t, all...)), &libcontainer.Process{}
			own, err := p.connect(child, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			own.close()
			p.release()
		},
		"given up": func(t *testing.T) {
			p, child := newProcess("", named(t, all...)), &libcontainer.Process{}
			own, err := p.connect(child, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			err = startWanted(p.wanted.Done(), func() error {
				c := exec.Command("/bin/sh", "-c", "kill -STOP $$")
				c.Stdin, c.Stdout, c.Stderr = child.Stdin, child.Stdout, child.Stderr
				if err := c.Start(); err != nil {
					return err
				}
				p.abandon()
				return c.Wait()
			})
			own.close()
			if err == nil {
				t.Error("it was not given up")
			}
			p.release()
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := opened(t)
			run(t)
			for until := soon(); ; <-time.After(time.Millisecond) {
				now := opened(t)
				if now[0] <= before[0] && now[1] <= before[1] {
					return
				}
				if time.Now().After(until) {
					stacks := make([]byte, 1<<20)
					t.Fatalf("descriptors and goroutines are %v, were %v\n%s", now, before, stacks[:runtime.Stack(stacks, true)])
				}
			}
		})
	}
}

// TestRelayOwner: a process that is not root can open its outputs again; it gets no hold of
// containerd's pipe.
func TestRelayOwner(t *testing.T) {
	need.Root(t)
	s := named(t, "stdout")
	p, child := newProcess("", s), &libcontainer.Process{}
	own, err := p.connect(child, 4000, 4001)
	if err != nil {
		t.Fatal(err)
	}
	defer p.release()
	defer own.close()
	for _, test := range []struct {
		file     func(*unix.Stat_t) error
		uid, gid uint32
	}{
		{func(s *unix.Stat_t) error { return unix.Fstat(int(child.Stdout.(*os.File).Fd()), s) }, 4000, 4001},
		{func(stat *unix.Stat_t) error { return unix.Stat(s.Stdout, stat) }, 0, 0},
	} {
		var is unix.Stat_t
		if err := test.file(&is); err != nil || is.Uid != test.uid || is.Gid != test.gid {
			t.Errorf("it is of %d and %d, want %d and %d, %v", is.Uid, is.Gid, test.uid, test.gid, err)
		}
	}
	flags, err := unix.FcntlInt(child.Stdout.(*os.File).Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Error("its end does not block:", errors.Join(err))
	}
}
