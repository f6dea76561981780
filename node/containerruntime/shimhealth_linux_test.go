package containerruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// silentShim has this program be a shim that takes calls and answers none, on the socket
// it names, nor becomes another; deafShim has it ignore SIGQUIT too.
const (
	silentShim = "KNARR_TEST_SILENT_SHIM"
	deafShim   = "KNARR_TEST_DEAF_SHIM"
)

func TestMain(m *testing.M) {
	path := os.Getenv(silentShim)
	if path == "" {
		os.Exit(m.Run())
	}
	if os.Getenv(deafShim) != "" {
		signal.Ignore(unix.SIGQUIT)
	}
	signal.Ignore(unix.SIGHUP)
	_ = os.Remove(path)
	if _, err := net.Listen("unix", path); err != nil {
		panic(err)
	}
	time.Sleep(time.Minute)
}

// silentFront is the front of a shim that answers nothing, whose environment has as too.
func silentFront(t *testing.T, dir, as string, log *bytes.Buffer) *front {
	t.Helper()
	program := filepath.Join(dir, "shim")
	this, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec env %s=%s %s %s\n", silentShim, filepath.Join(dir, shimSocketName), as, this)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	c := Config{State: dir, Log: slog.New(slog.NewTextHandler(log, nil)), timeouts: timeouts{
		start: shimStart, every: 10 * time.Millisecond, answer: 50 * time.Millisecond, end: 100 * time.Millisecond,
	}}
	return newFront(c, host{shim: program})
}

// TestShimHangs: a shim that does not answer is ended, with what it was at in the log, and
// killed if that does not end it.
func TestShimHangs(t *testing.T) {
	for name, test := range map[string]struct{ as, ended, last string }{
		"and ends":         {"", "exit status 2", "SIGQUIT: quit"},
		"and does not end": {deafShim + "=1", "signal: killed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			f := silentFront(t, t.TempDir(), test.as, &log)
			conn, err := f.connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			closed := make(chan struct{})
			client := ttrpc.NewClient(conn, ttrpc.WithOnClose(sync.OnceFunc(func() { close(closed) })))
			defer client.Close()
			if reason := f.attend(t.Context(), client, closed); reason != shimSilent {
				t.Error("it ended as", reason)
			}
			<-f.process.ended.Done()
			if words := fmt.Sprint(f.lastWords()...); !strings.Contains(words, test.ended) || !strings.Contains(words, test.last) {
				t.Errorf("last words: %s, want %s and %s", words, test.ended, test.last)
			}
			for _, want := range []string{"the shim hangs and is ended", "has not answered within 50ms", "signal=SIGQUIT"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log lacks %q:\n%s", want, log.String())
				}
			}
			if f.hangs != nil {
				t.Error("one that has ended hangs:", f.hangs)
			}
		})
	}
}

// TestShimNotResponding: the runtime is not ready while a shim hangs that does not end.
func TestShimNotResponding(t *testing.T) {
	f := newFront(Config{State: t.TempDir()}, host{})
	f.set(&ttrpc.Client{})
	status := func() *cri.RuntimeCondition {
		c := &cri.RuntimeCondition{Type: cri.RuntimeReady, Status: true}
		_, err := f.intercept(t.Context(), nil, nil, func(context.Context, any) (any, error) {
			return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{c}}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	f.hang(&absence{since: time.Now().Add(-shimMissed - time.Second), err: errors.New("no answer")})
	if c := status(); c.Status || c.Reason != "ShimNotResponding" || c.Message != "no answer" {
		t.Error(c)
	}
	f.hang(nil)
	if c := status(); !c.Status {
		t.Error(c)
	}
}

// TestShimNotReplaced: a shim of another version that does not become this one's is ended
// before this version's is started, and its log and its end are those that are told.
func TestShimNotReplaced(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	before := silentFront(t, dir, "", &log)
	conn, err := before.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f := silentFront(t, dir, "", &log)
	conn, err = net.Dial("unix", f.path())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f.meet(conn)
	if f.process.pid != before.process.pid || f.current() || !f.tell() {
		t.Fatal("the shim of before is not found, or not told")
	}
	f.timeouts.start = 50 * time.Millisecond
	if conn, err := f.replace(t.Context(), f.process); err == nil {
		conn.Close()
		t.Error("a shim that hangs is this version's")
	}
	if f.process.ended.Err() == nil {
		t.Fatal("it has not ended")
	}
	for _, want := range []string{"told to become", "the shim hangs and is ended", "has not become this version's"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "the shim is this version's") {
		t.Error("a success is told of:", log.String())
	}
	f.timeouts.start = shimStart
	if conn, err = f.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if kept, err := os.ReadFile(f.logPath() + ".1"); err != nil || !strings.Contains(string(kept), "SIGQUIT: quit") {
		t.Errorf("%q, %v", kept, err)
	}
	_ = f.process.signal(unix.SIGKILL)
	<-f.process.ended.Done()
}

// TestNoShimBesideAnother: one that takes long to begin is waited for.
func TestNoShimBesideAnother(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "shim")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	f := newFront(Config{State: dir, timeouts: timeouts{start: 50 * time.Millisecond}}, host{shim: program})
	var first *shimProcess
	for range 2 {
		if conn, err := f.connect(t.Context()); err == nil {
			conn.Close()
			t.Fatal("connected to nobody")
		}
		if first == nil {
			first = f.process
		}
	}
	if f.process != first {
		t.Error("a second one was started")
	}
	_ = f.process.signal(unix.SIGKILL)
	<-first.ended.Done()
}

// TestStartWhileShimHangs: a runtime that finds a shim that hangs does not take its containers
// for unknown: it waits for the next shim, and does not start without one.
func TestStartWhileShimHangs(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	sandbox, container := n.shell(t, "stays", "exec sleep 1000")
	before := n.await(t, container, cri.ContainerState_CONTAINER_RUNNING)
	shim := n.shimPid(t)
	if err := unix.Kill(shim, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	n.stop()

	n.config.timeouts = timeouts{start: shimStart, every: time.Hour, answer: time.Hour, end: time.Hour, takeUp: 200 * time.Millisecond}
	r, err := New(n.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); !errors.Is(err, errShimSilent) {
		t.Error("without a shim that answers:", err)
	}

	n.config.timeouts = timeouts{start: shimStart, every: time.Hour, answer: 200 * time.Millisecond, end: 200 * time.Millisecond, takeUp: time.Minute}
	n.start(t)
	if now := n.shimPid(t); now == shim {
		t.Error("the shim that hangs was not ended")
	}
	if after := n.await(t, container, cri.ContainerState_CONTAINER_RUNNING); after.StartedAt != before.StartedAt {
		t.Error("the container was started again")
	}
	if err := n.remove(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
}
