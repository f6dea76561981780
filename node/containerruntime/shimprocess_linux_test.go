package containerruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestShimsEnd: the log says how a shim ended, and what it wrote last is kept; where none
// starts the runtime is not ready, though its daemon is.
func TestShimsEnd(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "shim")
	script := "#!/bin/sh\necho all is well >&2\necho 'panic: no way out' >&2\necho >&2\necho 'goroutine 1 [running]:' >&2\nexit 2\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	f := newFront(Config{State: dir, Log: slog.New(slog.NewTextHandler(&log, nil))}, host{shim: program})
	_, err := f.connect(t.Context())
	if want := "the shim has ended: exit status 2: panic: no way out\n\ngoroutine 1 [running]:"; err == nil || err.Error() != want {
		t.Fatalf("got %v, want %s", err, want)
	}
	if args := fmt.Sprint(f.lastWords()); !strings.Contains(args, "state exit status 2") || !strings.Contains(args, "no way out") {
		t.Error("last words:", args)
	}
	status := func() *cri.RuntimeCondition {
		res, err := f.intercept(t.Context(), nil, nil, func(context.Context, any) (any, error) {
			return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{{Type: cri.NetworkReady, Status: true}, {Type: cri.RuntimeReady, Status: true}}}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return res.(*cri.StatusResponse).Status.Conditions[1]
	}
	f.missing(err)
	if c := status(); !c.Status {
		t.Error("a shim that starts makes the runtime not ready:", c)
	}
	f.gone.since = time.Now().Add(-shimMissed - time.Second)
	if c := status(); c.Status || c.Reason != "ShimNotRunning" || !strings.Contains(c.Message, "no way out") {
		t.Error("no shim for half a minute:", c)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 0\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := f.connect(t.Context()); !errors.Is(err, errShimEnded) {
		t.Error(err)
	}
	if kept, err := os.ReadFile(f.logPath() + ".1"); err != nil || !strings.Contains(string(kept), "no way out") {
		t.Errorf("%q, %v", kept, err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	f.keep(ctx)
	if got := strings.Count(log.String(), "start the shim"); got != 1 {
		t.Errorf("%d lines within a second:\n%s", got, log.String())
	}
}

// TestLastLines: of a long log the end, whole lines; of a long stack the beginning.
func TestLastLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	many := strings.Repeat("a line\n", 20_000)
	for text, want := range map[string]string{
		"":                                  "",
		many + "\xff\nlast\n":               "last",
		many + "panic: p\n" + many[:21_000]: "panic: p",
		"fatal error: f\n" + many:           "a line",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := lastLines(path)
		if len(got) > maxLastLines || !strings.HasPrefix(got, want) && !strings.HasSuffix(got, want) || strings.Contains(got, "\xff") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
