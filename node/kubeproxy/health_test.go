package kubeproxy

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/record"
)

// TestAddressIsTaken: what somebody else listens at is told once, with the flag.
func TestAddressIsTaken(t *testing.T) {
	var text bytes.Buffer
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	t.Cleanup(func() { slog.SetDefault(was) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		e := httpServer{"healthz-bind-address", addr, http.NotFoundHandler(), func(error) { tries++ }}
		go func() {
			defer close(ended)
			e.serve(ctx)
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		if tries != 1 {
			t.Errorf("told %d times", tries)
		}
		cancel()
		<-ended
	})
	got := text.String()
	if strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, `address=`+addr+` flag="kube-proxy --healthz-bind-address"`) {
		t.Errorf("logged:\n%s", got)
	}
}

// TestHealthzEvent: the Node's user is told that nobody can ask for its health.
func TestHealthzEvent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := &Proxy{cfg: Config{NodeName: "n1", Healthz: l.Addr().String()}, metrics: newMetrics()}
	events := record.NewFakeRecorder(10)
	p.serve(t.Context(), events)
	want := "Warning FailedToStartProxierHealthcheck failed to start proxier healthz on " + l.Addr().String() + ": "
	if e := <-events.Events; !strings.HasPrefix(e, want) {
		t.Errorf("%q, want %q", e, want)
	}
}
