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
// it names; deafShim has it ignore SIGQUIT too.
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
	if _, err := net.Listen("unix", path); err != nil {
		panic(err)
	}
	time.Sleep(time.Minute)
}

// TestShimHangs: a shim that does not answer is ended, with what it was at in the log, and
// killed if that does not end it.
func TestShimHangs(t *testing.T) {
	for name, test := range map[string]struct{ as, ended, last string }{
		"and ends":         {"", "exit status 2", "SIGQUIT: quit"},
		"and does not end": {deafShim + "=1", "signal: killed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program := filepath.Join(dir, "shim")
			script := fmt.Sprintf("#!/bin/sh\nexec env %s=%s %s %s\n", silentShim, filepath.Join(dir, shimSocketName), test.as, os.Args[0])
			if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			f := newFront(Config{State: dir, Log: slog.New(slog.NewTextHandler(&log, nil))}, host{shim: program})
			f.timeouts = timeouts{every: 10 * time.Millisecond, answer: 50 * time.Millisecond, end: 100 * time.Millisecond}
			conn, err := f.connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			closed := make(chan struct{})
			client := ttrpc.NewClient(conn, ttrpc.WithOnClose(sync.OnceFunc(func() { close(closed) })))
			defer client.Close()
			f.attend(t.Context(), conn, client, closed)
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
